package main

import (
	"fmt"

	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// scenario is a Turn of a plan, during which a manager dies at each of the points, one after another. The last manager
// finishes the Turn.
type scenario struct {
	name   string
	plan   plan
	points []failpoint.Point
}

// childOf is a suffix. After the name of a scenario's Turn, it matches the rest of the names of its sub-agents' Turns.
const childOf = "-" + failpoint.AnyTurn

func having(e failpoint.Effect, detail string, nth int) failpoint.Point {
	return failpoint.Point{Effect: e, Detail: detail, Nth: nth}
}

func appended(k journal.Kind, nth int) failpoint.Point {
	return having(failpoint.Append, string(k), nth)
}

// effects lists every effect of a Turn of the short plan, in order.
func effects() []failpoint.Point {
	all := []failpoint.Point{
		having(failpoint.Write, failpoint.DetailBind, 1),
		appended(journal.ToolsExposed, 1),
		appended(journal.Prepared, 1),
	}
	call := 0
	for i := range len(short.steps) + 1 {
		all = append(all, appended(journal.ModelRequested, i+1), having(failpoint.Request, "", i+1), appended(journal.ModelReplied, i+1))
		if i == len(short.steps) {
			break
		}
		for range short.steps[i] {
			call++
			all = append(all, appended(journal.ToolIntended, call), having(failpoint.Call, "", call), appended(journal.ToolFinished, call))
		}
	}
	return append(all, appended(journal.Finalized, 1), having(failpoint.Write, failpoint.DetailEnd, 1))
}

// furtherScenarios lists the effects that only the other plans have, in order.
func furtherScenarios() []scenario {
	var all []scenario
	add := func(p plan, points ...failpoint.Point) {
		for _, point := range points {
			all = append(all, scenario{plan: p, points: []failpoint.Point{point}})
		}
	}
	// Three calls that are in flight together, and one call after them.
	add(shortWave, appended(journal.ToolIntended, 1), having(failpoint.Call, toolLook, 2), appended(journal.ToolFinished, 1),
		appended(journal.ToolFinished, 3), appended(journal.ToolIntended, 2), having(failpoint.Call, toolCount, 1))
	// A call that waits for approval: the Turn is unbound, and bound again after the decision.
	add(shortApproved, appended(journal.ApprovalRequested, 1), appended(journal.RunParked, 1),
		having(failpoint.Write, failpoint.DetailPark, 1),
		having(failpoint.Write, failpoint.DetailClaim, 1), appended(journal.ApprovalDecided, 1), appended(journal.ToolIntended, 1),
		having(failpoint.Call, toolWipe, 1), appended(journal.ToolFinished, 1))
	add(shortDenied, appended(journal.ApprovalDecided, 1), appended(journal.ToolFinished, 1))
	// A call of a sub-agent: Capstan creates the child, and the Turn waits for it.
	add(shortNested, appended(journal.ToolIntended, 1), having(failpoint.Create, "", 1), appended(journal.RunParked, 1),
		having(failpoint.Write, failpoint.DetailPark, 1),
		having(failpoint.Write, failpoint.DetailClaim, 1), appended(journal.ToolIntended, 2), appended(journal.ToolFinished, 1))
	// The manager dies at an effect of the child.
	for _, point := range []failpoint.Point{having(failpoint.Call, toolCount, 1), having(failpoint.Write, failpoint.DetailEnd, 1)} {
		point.Turn = childOf
		add(shortNested, point)
	}
	// A summary replaces older messages before the last request.
	last := len(shortWide.steps) + 1
	add(shortWide, appended(journal.ModelRequested, last), having(failpoint.Request, "", last), appended(journal.ModelReplied, last),
		appended(journal.Compacted, 1), appended(journal.ModelRequested, last+1))
	// The first of two identical calls. If its outcome is unknown, the second must not be made.
	add(shortSiblings, appended(journal.ToolIntended, 1), having(failpoint.Call, toolCount, 1), appended(journal.ToolFinished, 1),
		having(failpoint.Call, toolCount, 2))
	// Calls whose IDs are equal, or differ only after the part of an ID that Capstan keeps.
	add(shortHostile, appended(journal.ModelReplied, 1), having(failpoint.Call, toolCount, 1), having(failpoint.Call, toolCount, 2),
		appended(journal.ApprovalRequested, 1), appended(journal.ApprovalDecided, 1), having(failpoint.Call, toolWipe, 1))
	// A Turn of a Session. Before its own end, it adds itself to the history and its totals to the status.
	add(shortTalk, appended(journal.Prepared, 1), appended(journal.Finalized, 1), appended(journal.SessionTurn, 1),
		having(failpoint.Write, failpoint.DetailTotals, 1), having(failpoint.Write, failpoint.DetailEnd, 1))
	return all
}

// secondCrashPoints lists the effects at which the second manager dies. The first manager has died right after a call.
func secondCrashPoints() []failpoint.Point {
	return []failpoint.Point{
		having(failpoint.Write, failpoint.DetailClaim, 1),
		appended(journal.RunStarted, 1),
		appended(journal.Finalized, 1),
		having(failpoint.Write, failpoint.DetailEnd, 1),
	}
}

// scenarios returns the scenarios of the phase points: one death at each effect, and scenarios with a second death
// while the Turn continues after the first death.
func (o options) scenarios() []scenario {
	whens := []failpoint.When{failpoint.Before, failpoint.After}
	if o.points == pointsAfter {
		whens = whens[1:]
	}
	var all []scenario
	add := func(of plan, points ...failpoint.Point) {
		s := scenario{name: fmt.Sprintf("point-%03d", len(all)), plan: of}
		for _, p := range points {
			p.Turn = s.name + p.Turn // the name of a child begins with its parent's name
			s.points = append(s.points, p)
		}
		all = append(all, s)
	}
	for _, p := range effects() {
		for _, p.When = range whens {
			add(short, p)
		}
	}
	for _, s := range furtherScenarios() {
		for _, when := range whens {
			p := s.points[0]
			p.When = when
			add(s.plan, p)
		}
	}
	first := failpoint.Point{Effect: failpoint.Call, Detail: toolCount, When: failpoint.After, Nth: 1}
	for _, p := range secondCrashPoints() {
		for _, p.When = range whens {
			add(short, first, p)
		}
	}
	return all
}
