package evaluation

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/termsafe"
)

const (
	// maxRows is the maximum number of results in a comment on a pull request.
	maxRows = 200
	// maxComment bounds a comment, in bytes. GitHub refuses a comment with more than 65,536 characters. noteBytes is
	// the part for the notes about what is left out.
	maxComment, noteBytes = 60_000, 500
)

// space is the number of bytes that are left in a comment.
type space int

// take takes the space for a text and its line break. It returns false if there is not enough.
func (s *space) take(text string) bool {
	n := space(len(text) + 1)
	if n > *s {
		return false
	}
	*s -= n
	return true
}

// markdown returns the report for a comment on a pull request. If the comment would be too long, changes of prompts are
// left out first, then problems, and then rows.
func (r *Report) markdown() string {
	head := "passed"
	if !r.OK {
		head = "failed"
	}
	title, about := "Evaluation", r.spending()
	if r.Backtest != nil {
		title, about = "Backtest", r.Backtest.total()+" "+r.spending()
	}
	lines := []string{
		fmt.Sprintf("### %s %s: %s", title, head, r.summary()), "",
		fmt.Sprintf("Agent `%s`, PromptProfile `%s` %s. %s", r.Agent, r.PromptProfile, inMarkdown(r.Version), about), "",
	}
	skipped := r.skipped(inMarkdown)
	left := space(maxComment - noteBytes)
	for _, line := range slices.Concat(lines, skipped) {
		left.take(line)
	}
	lines = append(lines, r.rows(&left)...)
	lines = append(lines, r.changes(func(c *Change) []string {
		diff := termsafe.Inert(c.Diff)
		fence := strings.Repeat("`", max(3, longestRun(diff, '`')+1))
		text := strings.Join([]string{
			"", "<details><summary>" + inMarkdown(c.title()) + "</summary>", "", fence + "diff",
			strings.TrimSuffix(termsafe.Exact(diff), "\n"), fence, "", "</details>",
		}, "\n")
		if !left.take(text) {
			return nil
		}
		return []string{text}
	})...)
	return strings.Join(append(lines, skipped...), "\n") + "\n"
}

// rows returns the table of a comment, as far as there is space. Turns of a backtest that passed with the same prompt
// are left out. All rows get their space before the first problem.
func (r *Report) rows(left *space) []string {
	titles := []string{"case", "result", "judges", "tokens", "cost", "problems"}
	cells := func(c *Result) []string { return []string{c.Name, string(c.Outcome), c.scores(), c.tokens(), c.cost()} }
	if r.Backtest != nil {
		titles, cells = r.columns()
		titles = append(titles, "problems")
	}
	lines := []string{"| " + strings.Join(titles, " | ") + " |", strings.Repeat("| --- ", len(titles)) + "|"}
	left.take(lines[0])
	left.take(lines[1])
	var rows []string
	var listed []*Result
	for _, c := range r.Cases {
		if r.Backtest != nil && c.Prompt == PromptSame && len(c.Problems) == 0 {
			continue
		}
		var all []string
		for _, cell := range cells(c) {
			all = append(all, inMarkdown(cell))
		}
		if row := "| " + strings.Join(all, " | ") + " |"; len(rows) < maxRows && left.take(row+"  |") {
			rows, listed = append(rows, row), append(listed, c)
		}
	}
	omitted := 0
	for i, c := range listed {
		var problems []string
		for _, p := range c.Problems {
			if p = inMarkdown(termsafe.Line(p, maxShown)); left.take(p + "<br>") {
				problems = append(problems, p)
			} else {
				omitted++
			}
		}
		lines = append(lines, rows[i]+" "+strings.Join(problems, "<br>")+" |")
	}
	if n := len(r.Cases) - len(listed); n > 0 {
		lines = append(lines, "", fmt.Sprintf("%d more %s are not listed.", n, r.unit()))
	}
	if omitted > 0 {
		lines = append(lines, "", fmt.Sprintf("%d problems are left out.", omitted))
	}
	return lines
}

// longestRun returns the length of the longest run of a character.
func longestRun(text string, char rune) int {
	longest, run := 0, 0
	for _, r := range text {
		if run++; r != char {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

// inMarkdown returns a text as literal text in a cell of a table. A problem may quote an answer, so it must not make
// links, images, mentions, references or HTML. GitHub finds addresses, mentions and references even if they are
// written with HTML entities, so a zero-width space divides them.
func inMarkdown(text string) string {
	return linked.ReplaceAllString(markdownEscaper.Replace(text), "${1}&#8203;${2}")
}

// linked matches the beginnings of addresses without a scheme, and of references to issues of the form GH-1.
var linked = regexp.MustCompile(`(?i)\b(www|gh)([.-])`)

var markdownEscaper = strings.NewReplacer(
	"&", "&amp;", "<", "&lt;", ">", "&gt;", "|", "&#124;", "`", "&#96;", "[", "&#91;", "]", "&#93;", "!", "&#33;", "*", "&#42;",
	"_", "&#95;", "@", "@&#8203;", "#", "#&#8203;", "~", "&#126;", "\\", "&#92;", "://", ":&#8203;//", "\n", " ",
)
