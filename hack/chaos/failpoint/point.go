// Package failpoint ends or stops a process at a chosen instant in the life of a Turn: before or after one of its
// effects. It wraps the interfaces between the parts of the kill test's manager and traces their effects. The
// product does not depend on it.
package failpoint

import (
	"fmt"
	"strconv"
	"strings"
)

// Effect is an action of a process on the world outside it.
type Effect string

// The effects of a Turn.
const (
	// Append is an append to the journal. Its details are the kinds of the entries.
	Append Effect = "journal.append"
	// Request is a request to a model.
	Request Effect = "model.request"
	// Call is a call of a tool of a ToolServer. Its detail is the tool's name.
	Call Effect = "tool.call"
	// Create is the creation of the Turn of a sub-agent. It counts as an effect on the Turn that calls the
	// sub-agent.
	Create Effect = "turn.create"
	// Write is a write of a Turn's status, or of the totals of its Session. Its detail is one of the Detail constants.
	Write Effect = "status.write"
)

// The purposes of a status write.
const (
	// DetailBind binds a Turn for the first time.
	DetailBind = "bind"
	// DetailClaim binds the Turn again, with a new epoch.
	DetailClaim = "claim"
	// DetailPark unbinds the Turn because it waits for approval or for Turns of sub-agents.
	DetailPark = "park"
	// DetailEnd writes the end of the Turn.
	DetailEnd = "end"
	// DetailTotals writes the totals of the Turn's Session.
	DetailTotals = "totals"
	// DetailOther is any other write, such as a write for a Turn that waits.
	DetailOther = "other"
)

// When states whether a Point is before or after an effect.
type When string

// The values of When.
const (
	Before When = "before"
	After  When = "after"
)

// AnyTurn matches any Turn name. At the end of a prefix, it matches the rest of the name.
const AnyTurn = "*"

// Point is one instant: before or after the Nth effect of a kind that a process has on a Turn.
type Point struct {
	// Turn is the name of the Turn, a prefix followed by AnyTurn, or AnyTurn alone.
	Turn string
	// Effect and Detail select the effects that count. An empty Detail matches all.
	Effect Effect
	When   When
	Detail string
	// Nth is the number of the effect among those that count, from 1.
	Nth int
}

// matchesTurn reports whether effects on a Turn of this name count. The name is empty until the Line has learned it.
func (p *Point) matchesTurn(name string) bool {
	if prefix, open := strings.CutSuffix(p.Turn, AnyTurn); open {
		return strings.HasPrefix(name, prefix)
	}
	return name == p.Turn
}

// String returns the form that Parse reads: TURN/EFFECT:WHEN:DETAIL:N.
func (p Point) String() string { return p.Turn + "/" + p.Name() }

// Name returns the point without its Turn.
func (p Point) Name() string {
	return fmt.Sprintf("%s:%s:%s:%d", p.Effect, p.When, p.Detail, p.Nth)
}

// Parse parses a point, such as point-3/journal.append:after:tool.intended:2.
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
