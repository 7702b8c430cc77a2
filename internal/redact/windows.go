package redact

import (
	"bytes"
	"hash/maphash"
)

// windows is a hash table with open addressing that has each window of a text once. It is created for one message,
// which is short. A permanent table of the windows of all forms would be about 400 times as large as the credentials.
type windows struct {
	text []byte
	seed maphash.Seed // random, so that no text can cause collisions on purpose
	// slots hold 0, or the first position of a window, counted from 1. The position of a marked window is negative.
	slots []int32
}

func newWindows(text []byte) *windows {
	size := 2
	for size < 2*len(text) {
		size *= 2
	}
	w := &windows{text: text, seed: maphash.MakeSeed(), slots: make([]int32, size)}
	for i := range len(text) - window + 1 {
		if slot := w.slot(text[i : i+window]); *slot == 0 {
			*slot = int32(i + 1)
		}
	}
	return w
}

// slot returns the slot of a window, or the free slot for it.
func (w *windows) slot(of []byte) *int32 {
	last := uint64(len(w.slots) - 1) //nolint:gosec // because a length is not negative
	for i := maphash.Bytes(w.seed, of); ; i++ {
		slot := &w.slots[i&last]
		at := max(*slot, -*slot)
		if at == 0 || bytes.Equal(w.text[at-1:at-1+window], of) {
			return slot
		}
	}
}

// mark marks the windows that also occur in a form. It reports whether the form has any of the windows.
func (w *windows) mark(form []byte) bool {
	found := false
	for i := range len(form) - window + 1 {
		slot := w.slot(form[i : i+window])
		if *slot > 0 {
			*slot = -*slot
		}
		found = found || *slot < 0
	}
	return found
}

// marked reports whether the window at a position of the text is marked.
func (w *windows) marked(at int) bool { return *w.slot(w.text[at : at+window]) < 0 }
