package model

import (
	"cmp"
	"fmt"
)

// MaxCallID bounds the ID of a call, in characters.
const MaxCallID = 128

// ValidCallID reports whether an ID can identify a call everywhere: in a journal, a status, a decision and a
// terminal. A valid ID has 1 to MaxCallID printable ASCII characters and no space.
func ValidCallID(id string) bool {
	if id == "" || len(id) > MaxCallID {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// IdentifyCalls gives each call of a reply a valid and unique ID, in place. A call keeps the ID of its endpoint if
// the ID is valid, no earlier call of the reply has it, and taken returns false for it.
//
// taken reports whether an earlier call of the Turn has an ID. If taken is nil, there are no earlier calls. The
// same calls always get the same IDs.
func IdentifyCalls(calls []ToolCall, taken func(id string) bool) {
	used := make(map[string]bool, len(calls))
	isUsed := func(id string) bool { return used[id] || taken != nil && taken(id) }
	var replaced []int
	for i := range calls {
		id := calls[i].ID
		if !ValidCallID(id) {
			calls[i].ID = ""
		}
		if calls[i].ID == "" || isUsed(id) {
			replaced = append(replaced, i)
			continue
		}
		used[id] = true
	}
	for _, i := range replaced {
		base := cmp.Or(calls[i].ID, fmt.Sprintf("call_%d", i))
		id := base
		for n := 2; isUsed(id); n++ {
			end := fmt.Sprintf("_%d", n)
			id = base[:min(len(base), MaxCallID-len(end))] + end
		}
		used[id], calls[i].ID = true, id
	}
}
