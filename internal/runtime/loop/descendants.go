package loop

import "github.com/capstan-dev/capstan/internal/runtime/tool"

// Descendants is the number of Turns that count against Limits.MaxDescendants.
//
// Nobody counts the Turns of a tree. Each call of a sub-agent reserves, in its intent and so before its Turn is created, all
// Turns that are left to the caller: one for the Turn itself, the rest as the limit of that Turn. When the call ends, what the
// Turn has created replaces the reservation. So the Turns below a caller are never more than it has reserved, whichever
// executor creates them and wherever a run is cut off.
func (s *State) Descendants() int {
	n := 0
	for of, at := range s.intents {
		reserved := s.Intents[at].Descendants
		f := s.finish(of.step, of.callID)
		switch {
		case f != nil && f.Descendants != nil:
			n += *f.Descendants
		case reserved > 0:
			n += reserved
		case f != nil && f.Spent != nil:
			n++ // a call of an older version, which reserved nothing
		}
	}
	return n
}

// isSubAgent says whether a call of a tool is a Turn.
func isSubAgent(t *tool.Tool) bool { return t != nil && t.Source.Agent != "" }

// reserve is how many Turns a call may create that passed all gates: as many as before where it is made again, else all that are
// left.
func reserve(v view, before *Intent) int {
	switch {
	case !isSubAgent(v.tool):
		return 0
	case before != nil:
		return before.Descendants
	}
	return v.descendants
}
