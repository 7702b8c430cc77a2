package redact

import (
	"bytes"
	"encoding/binary"
)

const (
	// gramSize is the number of bytes of a gram, and shortGramSize that of a gram of unfolded forms, which are short.
	gramSize, shortGramSize = 8, minSecret
	// The filter has 1<<filterBits bits. With 1,000 forms, one position of a text in 60 passes the filter by chance.
	filterBits = 16
	// mixer spreads the bits of a gram: it is the golden ratio in 64 bits.
	mixer = 0x9e3779b97f4a7c15
)

// filter finds the forms that may be in a text. It needs one pass for folded forms and one for unfolded forms, however
// many forms there are.
type filter struct {
	folded, unfolded grams
}

// grams has grams. A gram is the beginning of the pivot of a form, which the filter checks.
type grams struct {
	size int
	bits [1 << filterBits / 64]uint64
	// ids maps each gram to its index in forms, which has the indexes of the forms whose pivots begin with the gram.
	ids   map[uint64]int
	forms [][]int
}

func newFilter(forms []form) *filter {
	f := &filter{folded: grams{size: gramSize, ids: map[uint64]int{}}, unfolded: grams{size: shortGramSize, ids: map[uint64]int{}}}
	for i := range forms {
		if forms[i].folded {
			f.folded.add(forms[i].pivot, i)
			continue
		}
		f.unfolded.add(forms[i].pivot, i)
	}
	return f
}

// add maps the gram at the beginning of a pivot to a form. The pivot must not be shorter than a gram.
func (g *grams) add(pivot []byte, form int) {
	key := g.at(pivot)
	id, known := g.ids[key]
	if !known {
		id = len(g.forms)
		g.ids[key] = id
		g.forms = append(g.forms, nil)
		h := key * mixer >> (64 - filterBits)
		g.bits[h/64] |= 1 << (h % 64)
	}
	g.forms[id] = append(g.forms[id], form)
}

// at returns the gram at the beginning of a text.
func (g *grams) at(text []byte) uint64 {
	if g.size == shortGramSize {
		return uint64(binary.LittleEndian.Uint32(text))
	}
	return binary.LittleEndian.Uint64(text)
}

// candidates returns the forms whose pivot is in a view. Its time is linear in the length of the view, because each
// gram is checked only once.
func (r *Redactor) candidates(v *view) []int {
	return r.appendForms(&r.filter.folded, v.low, r.appendForms(&r.filter.unfolded, v.text, nil))
}

// appendForms adds to found the forms of g whose pivot is in a text.
func (r *Redactor) appendForms(g *grams, text []byte, found []int) []int {
	if len(g.forms) == 0 {
		return found
	}
	var seen map[int]bool
	for rest := text; len(rest) >= g.size; rest = rest[1:] {
		key := g.at(rest)
		h := key * mixer >> (64 - filterBits)
		if g.bits[h/64]&(1<<(h%64)) == 0 {
			continue
		}
		id, known := g.ids[key]
		if !known || seen[id] {
			continue
		}
		if seen == nil {
			seen = map[int]bool{}
		}
		seen[id] = true
		for _, i := range g.forms[id] {
			if bytes.Contains(rest, r.forms[i].pivot) {
				found = append(found, i)
			}
		}
	}
	return found
}
