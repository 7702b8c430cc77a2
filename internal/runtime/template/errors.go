package template

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
)

var (
	parsePosition = regexp.MustCompile(`(?s)^template: .*?:(\d+): (.*)$`)
	execPosition  = regexp.MustCompile(`(?s)^template: .*?:(\d+):(\d+): executing .*? at <(.*?)>: (.*)$`)
	absent        = regexp.MustCompile(`^map has no entry for key "`)
	undefined     = regexp.MustCompile(`^function "([^"]*)" not defined$`)
)

// parseError converts an error of the parser. The parser's message has a line but no column, so the column is that of
// the last action that begins on the line.
func parseError(field, text string, err error) error {
	m := parsePosition.FindStringSubmatch(err.Error())
	if m == nil {
		return &invalid.Error{Field: field, Reason: err.Error()}
	}
	line, _ := strconv.Atoi(m[1]) // the expression matches digits only
	e := &invalid.Error{Field: field, Line: line, Column: 1, Reason: "template error: " + m[2]}
	if f := undefined.FindStringSubmatch(m[2]); f != nil {
		e.Reason = fmt.Sprintf("function %q is not available: use one of %s", f[1], strings.Join(functions, ", "))
	}
	if lines := strings.Split(text, "\n"); line >= 1 && line <= len(lines) {
		if at := strings.LastIndex(lines[line-1], "{{"); at >= 0 {
			e.Column = 1 + utf8.RuneCountInString(lines[line-1][:at])
		}
	}
	return e
}

// execError converts an error that occurred while the template was executed.
func execError(field, text string, err error) error {
	if errors.Is(err, errTooLong) {
		return &invalid.Error{Field: field, Reason: fmt.Sprintf("renders to more than %d bytes: shorten the text or the values",
			MaxRenderedBytes)}
	}
	m := execPosition.FindStringSubmatch(err.Error())
	if m == nil {
		return &invalid.Error{Field: field, Reason: err.Error()}
	}
	line, _ := strconv.Atoi(m[1]) // the expression matches digits only
	column, _ := strconv.Atoi(m[2])
	if lines := strings.Split(text, "\n"); line >= 1 && line <= len(lines) {
		before := lines[line-1] // text/template counts bytes
		column = utf8.RuneCountInString(before[:min(column, len(before))])
	}
	reason := "template error: " + m[4]
	if absent.MatchString(m[4]) {
		object, _, _ := strings.Cut(strings.TrimLeft(m[3], "$."), ".")
		if strings.HasPrefix(m[3], ".") {
			column -= len("." + object) // text/template gives the position of the second name
		}
		reason = fmt.Sprintf("there is no .%s here: put the text within {{ if .%s }} and {{ end }}", object, object)
	}
	return &invalid.Error{Field: field, Line: line, Column: column + 1, Reason: reason}
}
