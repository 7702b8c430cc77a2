package redact

import (
	"bytes"
	"encoding/binary"
)

const (
	// gram is how many bytes at the beginning of a pivot the filter knows.
	gram = 8
	// filterBits is the size of the filter: with 1,000 forms, one place of a text in 60 passes it by chance.
	filterBits = 16
	// mixer spreads the bits of a gram: the golden ratio of 64 bits.
	mixer = 0x9e3779b97f4a7c15
)

// filter finds the forms that may be in a text, in one pass however many there are.
type filter struct {
	bits [1 << filterBits / 64]uint64
	// ids are the numbers of the grams, and forms those of the forms that have a gram of a number.
	ids   map[uint64]int
	forms [][]int
	// others are the forms whose pivot is shorter than a gram or that are compared in the case they have.
	others []int
}

func newFilter(forms []form) *filter {
	f := &filter{ids: map[uint64]int{}}
	for i := range forms {
		if !forms[i].folded {
			f.others = append(f.others, i)
			continue
		}
		g := binary.LittleEndian.Uint64(forms[i].pivot)
		id, known := f.ids[g]
		if !known {
			id = len(f.forms)
			f.ids[g] = id
			f.forms = append(f.forms, nil)
			h := g * mixer >> (64 - filterBits)
			f.bits[h/64] |= 1 << (h % 64)
		}
		f.forms[id] = append(f.forms[id], i)
	}
	return f
}

// candidates returns the forms whose pivot is in a view. Its time grows with the length of the view: each gram is followed up once.
func (r *Redactor) candidates(v *view) []int {
	var found []int
	check := func(i int) {
		if bytes.Contains(r.forms[i].in(v), r.forms[i].pivot) {
			found = append(found, i)
		}
	}
	for _, i := range r.filter.others {
		check(i)
	}
	if len(r.filter.forms) == 0 {
		return found
	}
	var seen map[int]bool
	for rest := v.low; len(rest) >= gram; rest = rest[1:] {
		g := binary.LittleEndian.Uint64(rest)
		h := g * mixer >> (64 - filterBits)
		if r.filter.bits[h/64]&(1<<(h%64)) == 0 {
			continue
		}
		id, known := r.filter.ids[g]
		if !known || seen[id] {
			continue
		}
		if seen == nil {
			seen = map[int]bool{}
		}
		seen[id] = true
		for _, i := range r.filter.forms[id] {
			check(i)
		}
	}
	return found
}
