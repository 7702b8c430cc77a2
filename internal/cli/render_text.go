package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// renderText shows messages to a person. Each of their lines begins with a bar, so that nothing in them can pass for a
// line of this tool.
func renderText(p *project, prepared *prepare.Prepared, report *v1alpha1.Preparation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d messages to model %s of ModelProvider %s\n",
		p.title(), len(prepared.Messages), oneLine(prepared.Model, 256), prepared.Provider)
	for i, m := range prepared.Messages {
		fmt.Fprintf(&b, "\n%d. %s (%s), %s characters\n", i+1, m.Name, m.Role, thousands(utf8.RuneCountInString(m.Content)))
		b.WriteString(quote(m))
	}
	b.WriteString("\nReport\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"promptProfile", fmt.Sprintf("%s (%s %s)", report.PromptProfile.Name, report.PromptProfile.ID, report.PromptProfile.Version)},
		{"promptRenderHash", report.PromptRenderHash},
		{"promptHash", report.PromptHash},
		{"contextHash", report.ContextHash},
		{"sections", strings.Join(report.Sections, ", ")},
		{"stableChars", thousands(int(report.StableChars))},
		{"dynamicChars", thousands(int(report.DynamicChars))},
		{"tools", "none"},
	} {
		fmt.Fprintf(w, "  %s\t%s\n", row[0], row[1]) //nolint:errcheck // because a strings.Builder takes all
	}
	w.Flush() //nolint:errcheck,gosec // because a strings.Builder takes all
	if n := prepared.Report.ReplacedBytes; n > 0 {
		fmt.Fprintf(&b, "  %d bytes of the input were no UTF-8 and became U+FFFD\n", n)
	}
	return b.String()
}

// quote sets a bar before each line of a message, and a marker of our own where its stable part ends. The line feed after
// the stable part is that of the line the part ends with.
func quote(m model.Message) string {
	if m.StableChars == 0 {
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
