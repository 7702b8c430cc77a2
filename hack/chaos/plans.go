package main

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/capstan-dev/capstan/hack/fakemodel/server"
)

// plan is a course of a Turn: the tools that each reply asks for, until the last reply answers.
type plan struct {
	name string
	// agent is the name of the Agent that follows it.
	agent string
	steps [][]string
	// child is what a sub-agent is told to follow.
	child string
	// chars is how long what toolLook gives is at least.
	chars int
	// fastest and slowest that a reply takes, in milliseconds.
	fastest, slowest int
}

// The tools: toolCount and toolWipe must not be called twice, toolLook may be. toolWipe needs somebody's approval. toolHelper is
// another Agent.
const (
	toolCount  = "count"
	toolLook   = "look"
	toolWipe   = "wipe"
	toolHelper = "helper"
)

// The Agents.
const (
	// agentMain has all tools, and agentHelper is the one that it may call, which has those of the server alone.
	agentMain   = "main"
	agentHelper = "helper"
	// agentNarrow is like agentMain, and its model takes so little that long conversations are compacted.
	agentNarrow = "narrow"
)

// longLook is the length of what is looked at in a conversation that grows until it is compacted. The narrow model takes as many
// tokens as three of them and the rest of the prompt have.
const (
	longLook     = 6000
	narrowWindow = 6000
)

// denied is in the name of plans whose calls that need it are not approved.
const denied = "denied"

// The plans of Turns.
var (
	long = plan{
		name: "plan-long", agent: agentMain, fastest: 10, slowest: 400,
		steps: [][]string{{toolCount}, {toolLook, toolCount}, {toolCount}, {toolCount}},
	}
	waves = plan{
		name: "plan-waves", agent: agentMain, fastest: 10, slowest: 400,
		steps: [][]string{{toolLook, toolLook, toolLook, toolCount}, {toolCount, toolLook, toolLook}},
	}
	approved = plan{
		name: "plan-approved", agent: agentMain, fastest: 10, slowest: 400,
		steps: [][]string{{toolCount}, {toolLook, toolWipe, toolCount}, {toolWipe, toolWipe}},
	}
	refused = plan{
		name: "plan-" + denied, agent: agentMain, fastest: 10, slowest: 400,
		steps: [][]string{{toolCount}, {toolWipe, toolCount}, {toolLook, toolWipe}},
	}
	nested = plan{
		name: "plan-nested", agent: agentMain, fastest: 10, slowest: 400, child: task.name,
		steps: [][]string{{toolHelper}, {toolLook, toolHelper, toolCount}},
	}
	wide = plan{
		name: "plan-wide", agent: agentNarrow, fastest: 10, slowest: 400, chars: longLook,
		steps: [][]string{{toolLook}, {toolLook, toolCount}, {toolLook}, {toolCount}, {toolLook}},
	}
	// task is what sub-agents do.
	task = plan{name: "plan-task", fastest: 10, slowest: 200, steps: [][]string{{toolCount}, {toolLook, toolCount}}}

	// mixed are the plans of the phase random, in turn.
	mixed = []plan{long, waves, approved, refused, nested, wide}
)

// The plans of Turns in which a manager dies at a point: one for each thing that a Turn can do.
var (
	short = plan{
		name: "plan-short", agent: agentMain, fastest: 1, slowest: 5, steps: [][]string{{toolCount, toolLook}, {toolCount}},
	}
	shortWave = plan{
		name: "plan-short-wave", agent: agentMain, fastest: 1, slowest: 5, steps: [][]string{{toolLook, toolLook, toolLook, toolCount}},
	}
	shortApproved = plan{name: "plan-short-approved", agent: agentMain, fastest: 1, slowest: 5, steps: [][]string{{toolWipe}}}
	shortRefused  = plan{name: "plan-short-" + denied, agent: agentMain, fastest: 1, slowest: 5, steps: [][]string{{toolWipe}}}
	shortNested   = plan{
		name: "plan-short-nested", agent: agentMain, fastest: 1, slowest: 5, child: shortTask.name, steps: [][]string{{toolHelper}},
	}
	shortWide = plan{
		name: "plan-short-wide", agent: agentNarrow, fastest: 1, slowest: 5, chars: longLook, steps: [][]string{{toolLook}, {toolLook}, {toolLook}},
	}
	shortTask = plan{name: "plan-short-task", fastest: 1, slowest: 5, steps: [][]string{{toolCount}}}
)

// The plans of Turns that last: an executor is lost in the middle of many.
var (
	slow = plan{
		name: "plan-slow", agent: agentMain, fastest: 200, slowest: 1000,
		steps: [][]string{{toolCount}, {toolLook, toolCount}, {toolCount}, {toolCount}},
	}
	slowWaves = plan{
		name: "plan-slow-waves", agent: agentMain, fastest: 200, slowest: 1000,
		steps: [][]string{{toolLook, toolLook, toolLook, toolCount}, {toolCount}, {toolLook, toolLook}, {toolCount}},
	}
	slowApproved = plan{
		name: "plan-slow-approved", agent: agentMain, fastest: 200, slowest: 1000,
		steps: [][]string{{toolCount}, {toolWipe, toolLook}, {toolCount}, {toolCount}},
	}
	slowNested = plan{
		name: "plan-slow-nested", agent: agentMain, fastest: 200, slowest: 1000, child: slowTask.name,
		steps: [][]string{{toolCount}, {toolHelper}, {toolLook, toolCount}},
	}
	slowTask = plan{name: "plan-slow-task", fastest: 200, slowest: 1000, steps: [][]string{{toolCount}, {toolLook, toolCount}}}
	// lasting are these but for the task, in turn.
	lasting = []plan{slow, slowWaves, slowApproved, slowNested}
)

var plans = []plan{
	long, waves, approved, refused, nested, wide, task,
	short, shortWave, shortApproved, shortRefused, shortNested, shortWide, shortTask,
	slow, slowWaves, slowApproved, slowNested, slowTask,
}

// paces is how many Turns of a plan differ in how long their replies take.
const paces = 8

// message is what a Turn of the plan says.
func (p plan) message(number int) string { return follow(p.name, number) }

func follow(plan string, number int) string {
	return fmt.Sprintf("Follow %s at pace-%d.", plan, number%paces)
}

// isDenied says whether the calls that need it are not approved, of a Turn that says this.
func isDenied(message string) bool { return strings.Contains(message, denied) }

// doing is what the reply of a step says beside its calls. The next reply is told by it: results may be refusals, and older
// messages go away.
func doing(step int) string { return fmt.Sprintf("I am at step %d.", step) }

// rules are those of the fake model: one for summaries, and for each plan, pace and step a reply, which takes a while.
func rules(r *rand.Rand) []server.Rule {
	all := []server.Rule{{
		When:  server.When{SystemContains: "You shorten conversations."},
		Reply: server.Reply{Text: new("There was a look at the count, and it was fine.")},
		Fault: server.Fault{LatencyMilliseconds: 50},
	}}
	for _, p := range plans {
		for pace := range paces {
			for done := len(p.steps); done >= 0; done-- {
				rule := server.Rule{
					When:  server.When{Contains: follow(p.name, pace)},
					Fault: server.Fault{LatencyMilliseconds: p.fastest + r.IntN(p.slowest-p.fastest+1)},
				}
				if done > 0 {
					rule.When.AnyContains = doing(done)
				}
				if done == len(p.steps) {
					rule.Reply.Text = new("Done.")
				} else {
					rule.Reply.Text, rule.Reply.ToolCalls = new(doing(done+1)), p.calls(done+1, pace)
				}
				all = append(all, rule)
			}
		}
	}
	return all
}

// calls are those of a step. No two of a Turn are the same.
func (p plan) calls(step, pace int) []server.ToolCall {
	var all []server.ToolCall
	for i, name := range p.steps[step-1] {
		arguments := fmt.Sprintf(`{"step": %d, "place": %d}`, step, i+1)
		switch {
		case name == toolHelper:
			arguments = fmt.Sprintf(`{"task": %q}`, follow(p.child, pace+step))
		case name == toolLook && p.chars > 0:
			arguments = fmt.Sprintf(`{"step": %d, "place": %d, "chars": %d}`, step, i+1, p.chars)
		}
		all = append(all, server.ToolCall{Name: name, Arguments: &arguments})
	}
	return all
}
