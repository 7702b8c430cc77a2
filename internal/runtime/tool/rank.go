package tool

import (
	"strings"
	"unicode"

	"github.com/capstan-dev/capstan/internal/runtime/ranking"
)

// rank returns a score for each tool: how well its words match a query. If similar returns similarities, the score also
// says how well the meaning of the tool matches.
func rank(tools []Tool, query string, similar func(texts []string) []*float64) []float64 {
	texts, split := make([]string, len(tools)), make([][]string, len(tools))
	for i, t := range tools {
		texts[i] = textOf(t)
		split[i] = words(texts[i])
	}
	scores := ranking.BM25(split, words(query))
	if similar == nil {
		return scores
	}
	if meaning := similar(texts); meaning != nil {
		return ranking.Blend(scores, meaning)
	}
	return scores
}

// textOf returns the text about a tool that rank compares with a query: its names and descriptions.
func textOf(t Tool) string {
	var b strings.Builder
	for _, part := range []string{t.Name, t.Description, t.UseWhen} {
		b.WriteString(part + "\n")
	}
	for _, p := range t.Parameters {
		b.WriteString(p.Name + "\n" + p.Description + "\n")
	}
	return b.String()
}

// words returns the words of a text, and the pairs of characters in scripts without spaces. A capital letter after a
// small letter or a digit also begins a word, because names often combine words this way.
func words(text string) []string {
	var b strings.Builder
	before := ' '
	for _, r := range text {
		if unicode.IsUpper(r) && (unicode.IsLower(before) || unicode.IsDigit(before)) {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
		before = r
	}
	return ranking.WithPairs(ranking.Words(b.String()))
}
