package tool

import (
	"math"
	"strings"
	"unicode"
)

// The parameters of BM25. saturation limits the weight of repeated words, and lengthNorm lowers the weight of long
// texts.
const (
	saturation = 1.2  // k1
	lengthNorm = 0.75 // b
)

// rank scores how well the words of each tool match a query. It implements Okapi BM25 as in Robertson and Zaragoza,
// "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), equation 3.15, with the Robertson/Sparck Jones
// weight of a word. 1 is added within the logarithm, so that a word which most tools contain counts little but
// never negatively.
//
// Capstan implements this itself because the available libraries are unmaintained or are whole search engines.
func rank(tools []Tool, query string) []float64 {
	counts := make([]map[string]float64, len(tools)) // of each word in each tool
	lengths := make([]float64, len(tools))
	within := map[string]float64{} // the number of tools that contain a word
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

// textOf returns all words that a model receives about a tool.
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

// words returns the words of a text in lower case: runs of letters and digits. A capital letter after a small
// letter or a digit also begins a word, because names often combine words this way.
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
