package main

import (
	"fmt"

	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// scenario is a Turn of a plan whose managers die at these points, one after another, until the last one finishes it.
type scenario struct {
	name   string
	plan   plan
	points []failpoint.Point
}

// childOf stands for the Turns of sub-agents of a scenario's Turn.
const childOf = "-" + failpoint.AnyTurn

func having(e failpoint.Effect, detail string, nth int) failpoint.Point {
	return failpoint.Point{Effect: e, Detail: detail, Nth: nth}
}

func appended(k journal.Kind, nth int) failpoint.Point {
	return having(failpoint.Append, string(k), nth)
}

// effects are all that a Turn of the short plan does to the world, in their order.
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

// more are the effects of the other plans that the short one does not have, in their order.
func more() []scenario {
	var all []scenario
	add := func(p plan, points ...failpoint.Point) {
		for _, point := range points {
			all = append(all, scenario{plan: p, points: []failpoint.Point{point}})
		}
	}
	// Three calls that are in flight together, and one after them.
	add(shortWave, appended(journal.ToolIntended, 1), having(failpoint.Call, toolLook, 2), appended(journal.ToolFinished, 1),
		appended(journal.ToolFinished, 3), appended(journal.ToolIntended, 2), having(failpoint.Call, toolCount, 1))
	// A call that waits for people: the Turn is unbound, and bound anew when they have decided.
	add(shortApproved, appended(journal.ApprovalRequested, 1), appended(journal.RunParked, 1), having(failpoint.Write, failpoint.DetailPark, 1),
		having(failpoint.Write, failpoint.DetailClaim, 1), appended(journal.ApprovalDecided, 1), appended(journal.ToolIntended, 1),
		having(failpoint.Call, toolWipe, 1), appended(journal.ToolFinished, 1))
	add(shortRefused, appended(journal.ApprovalDecided, 1), appended(journal.ToolFinished, 1))
	// A call of a sub-agent: the child is made, and the Turn waits for it.
	add(shortNested, appended(journal.ToolIntended, 1), having(failpoint.Create, "", 1), appended(journal.RunParked, 1), having(failpoint.Write, failpoint.DetailPark, 1),
		having(failpoint.Write, failpoint.DetailClaim, 1), appended(journal.ToolIntended, 2), appended(journal.ToolFinished, 1))
	// The child dies as its parent does.
	for _, point := range []failpoint.Point{having(failpoint.Call, toolCount, 1), having(failpoint.Write, failpoint.DetailEnd, 1)} {
		point.Turn = childOf
		add(shortNested, point)
	}
	// A summary takes the place of older messages before the last request.
	last := len(shortWide.steps) + 1
	add(shortWide, appended(journal.ModelRequested, last), having(failpoint.Request, "", last), appended(journal.ModelReplied, last),
		appended(journal.Compacted, 1), appended(journal.ModelRequested, last+1))
	// The first of two identical calls: the second must not be made once nobody knows of the first.
	add(shortSiblings, appended(journal.ToolIntended, 1), having(failpoint.Call, toolCount, 1), appended(journal.ToolFinished, 1),
		having(failpoint.Call, toolCount, 2))
	// Calls whose IDs are equal, or differ only behind what a record of them may have.
	add(shortHostile, appended(journal.ModelReplied, 1), having(failpoint.Call, toolCount, 1), having(failpoint.Call, toolCount, 2),
		appended(journal.ApprovalRequested, 1), appended(journal.ApprovalDecided, 1), having(failpoint.Call, toolWipe, 1))
	// A Turn of a Session: it adds itself to the history, and the totals to the status, before its own end.
	add(shortTalk, appended(journal.Prepared, 1), appended(journal.Finalized, 1), appended(journal.SessionTurn, 1),
		having(failpoint.Write, failpoint.DetailTotals, 1), having(failpoint.Write, failpoint.DetailEnd, 1))
	return all
}

// again are the effects of the manager that goes on: it dies at them after another one has died while a call was under way.
func again() []failpoint.Point {
	return []failpoint.Point{
		having(failpoint.Write, failpoint.DetailClaim, 1),
		appended(journal.RunStarted, 1),
		appended(journal.Finalized, 1),
		having(failpoint.Write, failpoint.DetailEnd, 1),
	}
}

// scenarios are all deaths that are tried: at each effect alone, and at each of going on after one.
func (o options) scenarios() []scenario {
	whens := []failpoint.When{failpoint.Before, failpoint.After}
	if o.points == pointsAfter {
		whens = whens[1:]
	}
	var all []scenario
	add := func(of plan, points ...failpoint.Point) {
		s := scenario{name: fmt.Sprintf("point-%03d", len(all)), plan: of}
		for _, p := range points {
			p.Turn = s.name + p.Turn // that of a child begins with its parent's
			s.points = append(s.points, p)
		}
		all = append(all, s)
	}
	for _, p := range effects() {
		for _, p.When = range whens {
			add(short, p)
		}
	}
	for _, s := range more() {
		for _, when := range whens {
			p := s.points[0]
			p.When = when
			add(s.plan, p)
		}
	}
	first := failpoint.Point{Effect: failpoint.Call, Detail: toolCount, When: failpoint.After, Nth: 1}
	for _, p := range again() {
		for _, p.When = range whens {
			add(short, first, p)
		}
	}
	return all
}
