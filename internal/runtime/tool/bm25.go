package tool

import (
	"math"
	"strings"
	"unicode"
)

// The parameters of BM25: how fast more of a word stops to count, and how much a long text counts for less.
const (
	saturation = 1.2  // k1
	lengthNorm = 0.75 // b
)

// rank scores each tool by how well its words fit a query: Okapi BM25, as in Robertson and Zaragoza, "The Probabilistic
// Relevance Framework: BM25 and Beyond" (2009), equation 3.15, with the Robertson/Sparck Jones weight of a word, to which 1 is
// added within the logarithm so that a word of most tools counts little and never against one.
//
// It is Capstan's own for want of a library: those that can be had are unmaintained or whole search engines.
func rank(tools []Tool, query string) []float64 {
	counts := make([]map[string]float64, len(tools)) // of each word in each tool
	lengths := make([]float64, len(tools))
	within := map[string]float64{} // in how many tools a word is
	var total float64
	for i, t := range tools {
		counts[i] = map[string]float64{}
		for _, word := range words(textOf(t)) {
			if counts[i][word] == 0 {
				within[word]++
			}
			counts[i][word]++
			lengths[i]++
		}
		total += lengths[i]
	}
	scores := make([]float64, len(tools))
	n := float64(len(tools))
	asked := map[string]bool{}
	for _, word := range words(query) {
		if asked[word] || within[word] == 0 {
			continue
		}
		asked[word] = true
		weight := math.Log(1 + (n-within[word]+0.5)/(within[word]+0.5))
		for i := range tools {
			if f := counts[i][word]; f > 0 {
				norm := 1 - lengthNorm + lengthNorm*lengths[i]/(total/n)
				scores[i] += weight * f * (saturation + 1) / (f + saturation*norm)
			}
		}
	}
	return scores
}

// textOf is all that a model is told of a tool in words.
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

// words of a text, in lower case: runs of letters and digits, parted where a small letter or a digit comes before a capital one
// as well, as names are made of words in several ways.
func words(text string) []string {
	var b strings.Builder
	before := ' '
	for _, r := range text {
		if unicode.IsUpper(r) && (unicode.IsLower(before) || unicode.IsDigit(before)) {
			b.WriteRune(' ')
		}
		b.WriteRune(unicode.ToLower(r))
		before = r
	}
	return strings.FieldsFunc(b.String(), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) })
}
