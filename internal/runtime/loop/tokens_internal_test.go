package loop

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"testing"

	"github.com/tiktoken-go/tokenizer/codec"
)

// newCounter returns a counter with an empty cache that counts the uses of the tokenizer.
func newCounter(uses *int) *tokenCounter {
	return &tokenCounter{seed: maphash.MakeSeed(), codec: func() *codec.Codec {
		*uses++
		return counter.codec()
	}}
}

func TestTokens(t *testing.T) {
	prose := "The quick brown fox jumps over the lazy dog, and nobody knows why. "
	for name, tc := range map[string]struct {
		reason, text string
		least, most  int64
		uses         int
	}{
		"nothing":       {"the empty text has no tokens", "", 0, 0, 0},
		"words":         {"the tokenizer counts", "hello world", 2, 2, 1},
		"no UTF-8":      {"any bytes can be counted", "\xff\xfe", 1, 4, 1},
		"several":       {"the counts of chunks are added", strings.Repeat(prose, 300), 4800 - 300, 4800 + 10, 5},
		"long":          {"a sample of chunks is counted", strings.Repeat(prose, 30_000), 420_000, 480_000, 16},
		"wide letters":  {"no character is cut in two", strings.Repeat("日本語🙂", 3000), 9_000, 18_000, 10},
		"one long word": {"a long word is counted quickly", strings.Repeat("x", 1<<20), 1 << 16, 1 << 18, 1},
		"no text":       {"invalid bytes are counted quickly", strings.Repeat("\xbf", 1<<20), 1 << 17, 1 << 20, 1},
	} {
		t.Run(name, func(t *testing.T) {
			uses := 0
			c := newCounter(&uses)
			got := c.count(tc.text)
			if got < tc.least || got > tc.most {
				t.Errorf("%d tokens, want %d to %d: %s", got, tc.least, tc.most, tc.reason)
			}
			if uses > tc.uses {
				t.Errorf("%d texts were counted, want %d at most: %s", uses, tc.uses, tc.reason)
			}
			uses = 0
			if again := c.count(tc.text); again != got || uses > 0 {
				t.Errorf("%d tokens the second time, after %d counts; want %d without any", again, uses, got)
			}
		})
	}
}

// TestTokenCacheIsBounded checks that the cache starts empty again when it is full.
func TestTokenCacheIsBounded(t *testing.T) {
	uses := 0
	c := newCounter(&uses)
	c.chunks = map[uint64]int{}
	for i := range uint64(maxCounts) {
		c.chunks[i] = 1
	}
	if c.count("one more") != 2 || len(c.chunks) != 1 {
		t.Errorf("%d counts are cached, want 1, because a cache with %d counts starts empty again", len(c.chunks), maxCounts)
	}
}

func TestConcurrentCounts(t *testing.T) {
	uses := 0
	c := newCounter(&uses)
	c.codec = counter.codec // does not change uses, so there is no race
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				if got := c.count(fmt.Sprintf("text %d", n)); got != 3 && got != 2 {
					t.Errorf("worker %d: %d tokens of text %d, want 2 or 3", i, got, n)
				}
			}
		})
	}
	wg.Wait()
}
