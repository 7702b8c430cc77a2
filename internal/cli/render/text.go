package render

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// describe returns the messages for a person. Each line of a message starts with a bar, so that no message can
// imitate the other lines.
func describe(p *bundle.Bundle, prepared *prepare.Prepared) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d messages to model %s of ModelProvider %s\n",
		p.Title(), len(prepared.Messages), termsafe.Line(prepared.Model, output.LongestID), prepared.Provider)
	for i, m := range prepared.Messages {
		fmt.Fprintf(&b, "\n%d. %s (%s), %s characters\n", i+1, m.Name, m.Role, termsafe.Thousands(chars(m)))
		b.WriteString(quote(m) + describeAttachments(&m))
	}
	b.WriteString("\nReport\n" + output.Table(reportRows(prepared)))
	if rows := leftOutRows(prepared); len(rows) > 0 {
		b.WriteString("\nLeft out\n" + output.Table(rows))
	}
	if n := prepared.Report.ReplacedBytes; n > 0 {
		fmt.Fprintf(&b, "\n%s bytes of the input were not valid UTF-8 and were replaced by U+FFFD\n", termsafe.Thousands(n))
	}
	return b.String()
}

// chars returns the length of a message in Unicode code points.
func chars(m model.Message) int { return utf8.RuneCountInString(m.Content) }

// quote puts a bar before each line of a message, and a marker at the end of its stable part. The line feed after
// the stable part belongs to the last line of that part.
func quote(m model.Message) string {
	switch {
	case m.Content == "":
		return ""
	case m.StableChars == 0:
		return termsafe.Quote(m.Content)
	}
	runes := []rune(m.Content)
	boundary := min(m.StableChars, len(runes))
	marker := fmt.Sprintf("+-- cache boundary: the %s characters above are the stable part --\n", termsafe.Thousands(boundary))
	if boundary == len(runes) {
		return termsafe.Quote(m.Content) + marker
	}
	return termsafe.Quote(string(runes[:boundary])) + marker + termsafe.Quote(strings.TrimPrefix(string(runes[boundary:]), "\n"))
}
