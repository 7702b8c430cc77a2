package loop

import (
	"hash/maphash"
	"sync"

	"github.com/tiktoken-go/tokenizer/codec"

	"github.com/capstan-dev/capstan/internal/runtime/cut"
)

const (
	// chunkBytes is the length of the chunks in which a text is counted. The count of each chunk is cached, so a
	// prompt that is sent again, or only grows, costs almost nothing.
	chunkBytes = 4 << 10
	// maxChunks is the number of chunks that are counted. In a longer text, this number of chunks, spread evenly,
	// stands for the whole text.
	maxChunks = 16
	// bytesPerToken is the estimate if the tokenizer fails.
	bytesPerToken = 4
)

// counter counts tokens for the whole process. Its table uses about 7 MiB and is created at the first use.
var counter = tokenCounter{codec: sync.OnceValue(codec.NewO200kBase), seed: maphash.MakeSeed()}

// tokenCounter counts the tokens of texts like a current OpenAI model; other models have similar numbers. It is
// safe for concurrent use.
type tokenCounter struct {
	codec func() *codec.Codec
	seed  maphash.Seed

	mu sync.Mutex
	// chunks caches the counts of chunks by the hash of their text. A hash collision only makes an estimate wrong.
	chunks map[uint64]int
}

// maxCounts bounds the cached counts, together about 1 MiB. When it is reached, the cache starts empty again.
const maxCounts = 1 << 15

// count returns the approximate number of tokens in a text. Counting a long text in chunks gives a few tokens too many.
func (c *tokenCounter) count(text string) int64 {
	if len(text) <= chunkBytes {
		return int64(c.chunk(text))
	}
	all := (len(text) + chunkBytes - 1) / chunkBytes
	counted := min(all, maxChunks)
	var tokens, bytes int64
	for i := range counted {
		begin := i * all / counted * chunkBytes
		part := text[cut.Boundary(text, begin):cut.Boundary(text, begin+chunkBytes)]
		tokens, bytes = tokens+int64(c.chunk(part)), bytes+int64(len(part))
	}
	return int64(float64(tokens) * float64(len(text)) / float64(bytes))
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
