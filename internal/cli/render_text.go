package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// renderText shows messages to a person. Each of their lines begins with a bar, so that nothing in them can pass for a
// line of this tool.
func renderText(p *project, prepared *prepare.Prepared) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d messages to model %s of ModelProvider %s\n",
		p.title(), len(prepared.Messages), oneLine(prepared.Model, longestID), prepared.Provider)
	for i, m := range prepared.Messages {
		fmt.Fprintf(&b, "\n%d. %s (%s), %s characters\n", i+1, m.Name, m.Role, thousands(chars(m)))
		b.WriteString(quote(m))
	}
	b.WriteString("\nReport\n" + table(reportRows(prepared)))
	if rows := leftOutRows(prepared); len(rows) > 0 {
		b.WriteString("\nLeft out\n" + table(rows))
	}
	if n := prepared.Report.ReplacedBytes; n > 0 {
		fmt.Fprintf(&b, "\n%s bytes of the input were no UTF-8 and became U+FFFD\n", thousands(n))
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
		return bars(m.Content)
	}
	runes := []rune(m.Content)
	boundary := min(m.StableChars, len(runes))
	marker := fmt.Sprintf("+-- cache boundary: the %s characters above are the stable part --\n", thousands(boundary))
	if boundary == len(runes) {
		return bars(m.Content) + marker
	}
	return bars(string(runes[:boundary])) + marker + bars(strings.TrimPrefix(string(runes[boundary:]), "\n"))
}

func bars(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" {
			line = " " + line
		}
		b.WriteString("|" + line + "\n")
	}
	return b.String()
}

// thousands writes a number with a comma between its thousands.
func thousands(n int) string {
	digits := fmt.Sprint(n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
