package loop

import (
	"hash/maphash"
	"sync"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer/codec"
)

const (
	// chunkBytes is how much of a text is counted at once. What is counted of a chunk is kept, so that a prompt that comes
	// again, or most of it, costs next to nothing.
	chunkBytes = 4 << 10
	// maxChunks is how many chunks of one text are counted; of a longer text as many, spread over it, stand for the rest.
	maxChunks = 16
	// bytesPerToken stands in for a tokenizer that fails.
	bytesPerToken = 4
)

// counter counts tokens for the whole process. Its table takes about 7 MiB, and is made when it is first used.
var counter = tokenCounter{codec: sync.OnceValue(codec.NewO200kBase), seed: maphash.MakeSeed()}

// tokenCounter counts the tokens of texts as a current model of OpenAI would; other models have about as many. It is safe for
// concurrent use.
type tokenCounter struct {
	codec func() *codec.Codec
	seed  maphash.Seed

	mu sync.Mutex
	// chunks are the counts of chunks by the hash of their text. One text that passes for another costs an estimate and no more.
	chunks map[uint64]int
}

// maxCounts bounds the counts that are kept, together about 1 MiB. Then they begin anew.
const maxCounts = 1 << 15

// count returns about how many tokens a text has. A long one is counted in chunks, which makes it a few too many.
func (c *tokenCounter) count(text string) int64 {
	if len(text) <= chunkBytes {
		return int64(c.chunk(text))
	}
	all := (len(text) + chunkBytes - 1) / chunkBytes
	counted := min(all, maxChunks)
	var tokens, bytes int64
	for i := range counted {
		begin := i * all / counted * chunkBytes
		part := text[runeStart(text, begin):runeStart(text, begin+chunkBytes)]
		tokens, bytes = tokens+int64(c.chunk(part)), bytes+int64(len(part))
	}
	return int64(float64(tokens) * float64(len(text)) / float64(bytes))
}

// runeStart moves a place in a text back to the beginning of a character.
func runeStart(text string, at int) int {
	if at >= len(text) {
		return len(text)
	}
	for back := range utf8.UTFMax {
		if at-back <= 0 || utf8.RuneStart(text[at-back]) {
			return at - back
		}
	}
	return at // no UTF-8 at all
}

func (c *tokenCounter) chunk(text string) int {
	if text == "" {
		return 0
	}
	key := maphash.String(c.seed, text)
	c.mu.Lock()
	n, known := c.chunks[key]
	c.mu.Unlock()
	if known {
		return n
	}
	n, err := c.codec().Count(text)
	if err != nil {
		n = (len(text) + bytesPerToken - 1) / bytesPerToken
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.chunks == nil || len(c.chunks) >= maxCounts {
		c.chunks = map[uint64]int{}
	}
	c.chunks[key] = n
	return n
}
