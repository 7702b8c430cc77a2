package loop

import "github.com/capstan-dev/capstan/internal/runtime/tool"

// Descendants returns the number of Turns that count against Limits.MaxDescendants. No process counts the Turns of
// a tree. Instead:
//  1. The intent of a sub-agent's call is recorded before its Turn is created. It reserves all Turns that are left
//     to the caller: one for the new Turn, the rest as the limit of that Turn.
//  2. When the call ends, the number of Turns that were created replaces the reservation.
//
// So the Turns below a caller never exceed its reservations, whichever executor creates them and wherever a run is
// cut off.
func (s *State) Descendants() int {
	n := 0
	for of, at := range s.intentIndex.All() {
		reserved := s.Intents[at].Descendants
		f := s.result(of.step, of.callID)
		switch {
		case f != nil && f.Descendants != nil:
			n += *f.Descendants
		case reserved > 0:
			n += reserved
		case f != nil && f.Spent != nil:
			n++ // older versions reserved nothing
		}
	}
	return n
}

// isSubAgent reports whether the tool is a sub-agent, so that each call of the tool creates a Turn.
func isSubAgent(t *tool.Tool) bool { return t != nil && t.Source.Agent != "" }

// descendantsFor returns the number of Turns that a call may create after it passed all gates. A repeated call
// keeps its reservation; a new call reserves all Turns that are left.
func descendantsFor(v view, before *Intent) int {
	switch {
	case !isSubAgent(v.tool):
		return 0
	case before != nil:
		return before.Descendants
	}
	return v.descendants
}
