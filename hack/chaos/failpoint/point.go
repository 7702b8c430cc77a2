// Package failpoint ends or stops a process at a chosen instant in the life of a Turn: before or after one of its effects. It
// stands between the parts of the kill test's manager and notes what they do; the product knows nothing of it.
package failpoint

import (
	"fmt"
	"strconv"
	"strings"
)

// Effect is something that a process does to the world outside it.
type Effect string

// The effects of a Turn.
const (
	// Append is an append to the journal. Its details are the kinds of its entries.
	Append Effect = "journal.append"
	// Request is a request to a model.
	Request Effect = "model.request"
	// Call is a call of a tool of a ToolServer. Its detail is the tool's name.
	Call Effect = "tool.call"
	// Create is the creation of the Turn of a sub-agent. It is an effect on the Turn that calls it.
	Create Effect = "turn.create"
	// Write is a write of a Turn's status, or of the totals of its Session. Its detail is one of the Detail constants.
	Write Effect = "status.write"
)

// What a write of a status does.
const (
	// DetailBind binds a Turn for the first time.
	DetailBind = "bind"
	// DetailClaim binds it anew, with another epoch.
	DetailClaim = "claim"
	// DetailPark unbinds it because it waits for people or for Turns of sub-agents.
	DetailPark = "park"
	// DetailEnd writes its end.
	DetailEnd = "end"
	// DetailTotals writes the totals of its Session.
	DetailTotals = "totals"
	// DetailOther is any other write, as that of a Turn that waits.
	DetailOther = "other"
)

// When is before or after an effect.
type When string

// The sides of an effect.
const (
	Before When = "before"
	After  When = "after"
)

// AnyTurn stands for the name of a Turn: the effects on all Turns count. Behind the beginning of a name it stands for the rest.
const AnyTurn = "*"

// Point is one instant: before or after the Nth effect of a kind that a process has on a Turn.
type Point struct {
	// Turn is its name, or the beginning of it and AnyTurn; AnyTurn alone for whichever comes first.
	Turn string
	// Effect and Detail say which effects count; an empty Detail means all.
	Effect Effect
	When   When
	Detail string
	// Nth of them, from 1.
	Nth int
}

// meets says whether the effects on a Turn of this name count. It is empty while nobody has told it.
func (p *Point) meets(name string) bool {
	if prefix, open := strings.CutSuffix(p.Turn, AnyTurn); open {
		return strings.HasPrefix(name, prefix)
	}
	return name == p.Turn
}

// String is what Parse reads: TURN/EFFECT:WHEN:DETAIL:N.
func (p Point) String() string { return p.Turn + "/" + p.Name() }

// Name is the point without its Turn.
func (p Point) Name() string {
	return fmt.Sprintf("%s:%s:%s:%d", p.Effect, p.When, p.Detail, p.Nth)
}

// Parse reads a point, as in point-3/journal.append:after:tool.intended:2.
func Parse(text string) (Point, error) {
	name, rest, ok := strings.Cut(text, "/")
	parts := strings.Split(rest, ":")
	if !ok || name == "" || len(parts) != 4 {
		return Point{}, fmt.Errorf("crash point %q must be of the form TURN/EFFECT:WHEN:DETAIL:N", text)
	}
	p := Point{Turn: name, Effect: Effect(parts[0]), When: When(parts[1]), Detail: parts[2]}
	switch p.Effect {
	case Append, Request, Call, Create, Write:
	default:
		return Point{}, fmt.Errorf("crash point %q: the effect must be %s, %s, %s, %s or %s", text, Append, Request, Call, Create, Write)
	}
	if p.When != Before && p.When != After {
		return Point{}, fmt.Errorf("crash point %q: it must be %s or %s an effect", text, Before, After)
	}
	var err error
	if p.Nth, err = strconv.Atoi(parts[3]); err != nil || p.Nth < 1 {
		return Point{}, fmt.Errorf("crash point %q: N must be a number from 1", text)
	}
	return p, nil
}
