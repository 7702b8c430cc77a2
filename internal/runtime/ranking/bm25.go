// Package ranking scores how well texts match a query, by their words and by their meaning.
package ranking

import "math"

// The parameters of BM25. saturation limits the weight of repeated words, and lengthNorm lowers the weight of long
// texts.
const (
	saturation = 1.2  // k1
	lengthNorm = 0.75 // b
)

// BM25 returns a score for each text: how well it matches a query. Texts and query are lists of words. BM25 implements
// Okapi BM25 as in Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), equation
// 3.15, with the Robertson/Sparck Jones weight of a word. 1 is added within the logarithm, so that a word which most
// texts contain counts little but never negatively. The weights depend only on the given texts.
//
// Capstan implements this itself because the available libraries are unmaintained or are whole search engines.
func BM25(texts [][]string, query []string) []float64 {
	counts := make([]map[string]float64, len(texts)) // for each text, the number of occurrences of each word
	lengths := make([]float64, len(texts))
	within := map[string]float64{} // the number of texts that contain a word
	var total float64
	for i, text := range texts {
		counts[i] = map[string]float64{}
		for _, word := range text {
			if counts[i][word] == 0 {
				within[word]++
			}
			counts[i][word]++
			lengths[i]++
		}
		total += lengths[i]
	}
	scores := make([]float64, len(texts))
	n := float64(len(texts))
	asked := map[string]bool{}
	for _, word := range query {
		if asked[word] || within[word] == 0 {
			continue
		}
		asked[word] = true
		weight := math.Log(1 + (n-within[word]+0.5)/(within[word]+0.5))
		for i := range texts {
			if f := counts[i][word]; f > 0 {
				norm := 1 - lengthNorm + lengthNorm*lengths[i]/(total/n)
				scores[i] += weight * f * (saturation + 1) / (f + saturation*norm)
			}
		}
	}
	return scores
}
