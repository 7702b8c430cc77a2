package redact

import (
	"bytes"
	"encoding/binary"
)

const (
	// gram is how many bytes at the beginning of a pivot the filter knows, and shortGram is that of short forms.
	gram, shortGram = 8, minSecret
	// filterBits is the size of the filter: with 1,000 forms, one place of a text in 60 passes it by chance.
	filterBits = 16
	// mixer spreads the bits of a gram: the golden ratio of 64 bits.
	mixer = 0x9e3779b97f4a7c15
)

// filter finds the forms that may be in a text, in one pass for folded forms and one for the others, however many there are.
type filter struct {
	folded, others grams
}

// grams are the beginnings of pivots.
type grams struct {
	size int
	bits [1 << filterBits / 64]uint64
	// ids are the numbers of the grams, and forms those of the forms that have a gram of a number.
	ids   map[uint64]int
	forms [][]int
}

func newFilter(forms []form) *filter {
	f := &filter{folded: grams{size: gram, ids: map[uint64]int{}}, others: grams{size: shortGram, ids: map[uint64]int{}}}
	for i := range forms {
		if forms[i].folded {
			f.folded.add(forms[i].pivot, i)
			continue
		}
		f.others.add(forms[i].pivot, i)
	}
	return f
}

// add has the gram at the beginning of a pivot, which is no shorter, lead to a form.
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

// at is the gram that a text begins with.
func (g *grams) at(text []byte) uint64 {
	if g.size == shortGram {
		return uint64(binary.LittleEndian.Uint32(text))
	}
	return binary.LittleEndian.Uint64(text)
}

// candidates returns the forms whose pivot is in a view. Its time grows with the length of the view: each gram is followed up once.
func (r *Redactor) candidates(v *view) []int {
	return r.in(&r.filter.folded, v.low, r.in(&r.filter.others, v.text, nil))
}

// in adds the forms of grams whose pivot is in a text.
func (r *Redactor) in(g *grams, text []byte, found []int) []int {
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
