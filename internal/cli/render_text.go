package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/screen"
)

// renderText shows messages to a person. Each of their lines begins with a bar, so that nothing in them can pass for a
// line of this tool.
func renderText(p *project, prepared *prepare.Prepared) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d messages to model %s of ModelProvider %s\n",
		p.title(), len(prepared.Messages), screen.Line(prepared.Model, longestID), prepared.Provider)
	for i, m := range prepared.Messages {
		fmt.Fprintf(&b, "\n%d. %s (%s), %s characters\n", i+1, m.Name, m.Role, screen.Thousands(chars(m)))
		b.WriteString(quote(m))
	}
	b.WriteString("\nReport\n" + table(reportRows(prepared)))
	if rows := leftOutRows(prepared); len(rows) > 0 {
		b.WriteString("\nLeft out\n" + table(rows))
	}
	if n := prepared.Report.ReplacedBytes; n > 0 {
		fmt.Fprintf(&b, "\n%s bytes of the input were no UTF-8 and became U+FFFD\n", screen.Thousands(n))
	}
	return b.String()
}

// chars is the length of a message in Unicode code points.
func chars(m model.Message) int { return utf8.RuneCountInString(m.Content) }

// quote sets a bar before each line of a message, and a marker of our own where its stable part ends. The line feed after
// the stable part is that of the line the part ends with.
func quote(m model.Message) string {
	switch {
	case m.Content == "":
		return ""
	case m.StableChars == 0:
		return screen.Quote(m.Content)
	}
	runes := []rune(m.Content)
	boundary := min(m.StableChars, len(runes))
	marker := fmt.Sprintf("+-- cache boundary: the %s characters above are the stable part --\n", screen.Thousands(boundary))
	if boundary == len(runes) {
		return screen.Quote(m.Content) + marker
	}
	return screen.Quote(string(runes[:boundary])) + marker + screen.Quote(strings.TrimPrefix(string(runes[boundary:]), "\n"))
}
