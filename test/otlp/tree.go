package otlp

import (
	"fmt"
	"reflect"
)

// skew bounds the difference between the clocks of two executors, in nanoseconds: see docs/architecture.md.
const skew = 2_000_000_000

// Tree returns the spans by their IDs, and the reasons why the spans are not one connected trace below the caller's
// span: spans of several traces, no root or several roots, a missing parent, a span that ends before its start or is
// outside the time of its parent, or different spans with the same ID. The evaluation of a Turn and the extraction of
// memories must begin after their parent has ended. caller is the ID of the caller's span, or empty. The same span may
// arrive twice, because a sender that receives no answer sends it again.
func Tree(spans []Span, caller string) (byID map[string]Span, problems []string) {
	byID = map[string]Span{}
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, s := range spans {
		if first, twice := byID[s.ID]; twice && !reflect.DeepEqual(first, s) {
			add("two spans have the ID %s: %+v and %+v", s.ID, first, s)
		}
		byID[s.ID] = s
	}
	trace, root := "", ""
	for id, s := range byID {
		if trace == "" {
			trace = s.TraceID
		}
		if s.TraceID != trace {
			add("the span %q is in the trace %s, other spans are in %s", s.Name, s.TraceID, trace)
		}
		if s.End < s.Start {
			add("the span %q ends before its start", s.Name)
		}
		if s.Parent == caller {
			if root != "" {
				add("the spans %q and %q are both roots", byID[root].Name, s.Name)
			}
			root = id
			continue
		}
		parent, known := byID[s.Parent]
		switch {
		case !known:
			add("the span %q has the parent %q, which did not arrive", s.Name, s.Parent)
		case s.Name == "evaluation", s.Name == "memory":
			if s.Start+skew < parent.End {
				add("the span %q begins at %d, before its parent %q ends at %d", s.Name, s.Start, parent.Name, parent.End)
			}
		case s.Start+skew < parent.Start || s.End > parent.End+skew:
			add("the span %q is from %d to %d, its parent %q from %d to %d", s.Name, s.Start, s.End, parent.Name, parent.Start, parent.End)
		}
	}
	if root == "" {
		add("there is no root")
	}
	return byID, problems
}
