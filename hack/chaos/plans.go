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
	// same makes the calls of one tool in a step identical.
	same bool
	// hostile gives calls the IDs of a hostile model server: see hostileID.
	hostile bool
	// talks is true for the Turns of Sessions. Their replies are told by the results after the user's message, because the
	// history holds the replies of earlier Turns.
	talks bool
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

const (
	// longID is how many characters hostile IDs share.
	longID = 200
	// longAnswer is the length of an answer of a conversation that grows until it is compacted.
	longAnswer = 3000
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
	// siblings ask for the same call several times in one reply.
	siblings = plan{
		name: "plan-siblings", agent: agentMain, fastest: 10, slowest: 400, same: true,
		steps: [][]string{{toolCount, toolCount}, {toolLook, toolCount, toolCount}, {toolCount}},
	}
	hostile = plan{
		name: "plan-hostile", agent: agentMain, fastest: 10, slowest: 400, hostile: true,
		steps: [][]string{{toolCount, toolCount}, {toolWipe, toolCount, toolLook}, {toolWipe}},
	}
	// talk is a Turn of a Session. Its answer is long, so that the conversation is compacted again and again.
	talk = plan{
		name: "plan-talk", agent: agentNarrow, fastest: 10, slowest: 200, talks: true, steps: [][]string{{toolCount}},
	}
	// task is what sub-agents do.
	task = plan{name: "plan-task", fastest: 10, slowest: 200, steps: [][]string{{toolCount}, {toolLook, toolCount}}}

	// mixed are the plans of the phase random, in turn.
	mixed = []plan{long, waves, approved, refused, nested, wide, siblings, hostile, talk}
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
	shortSiblings = plan{
		name: "plan-short-siblings", agent: agentMain, fastest: 1, slowest: 5, same: true, steps: [][]string{{toolCount, toolCount}},
	}
	shortHostile = plan{
		name: "plan-short-hostile", agent: agentMain, fastest: 1, slowest: 5, hostile: true, steps: [][]string{{toolCount, toolCount}, {toolWipe}},
	}
	shortTalk = plan{
		name: "plan-short-talk", agent: agentNarrow, fastest: 1, slowest: 5, talks: true, steps: [][]string{{toolCount}},
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
	long, waves, approved, refused, nested, wide, siblings, hostile, talk, task,
	short, shortWave, shortApproved, shortRefused, shortNested, shortWide, shortSiblings, shortHostile, shortTalk, shortTask,
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
				switch {
				case p.talks:
					rule.When.ToolMessages = new(p.results(done))
				case done > 0:
					rule.When.AnyContains = doing(done)
				}
				switch {
				case done == len(p.steps) && p.talks:
					rule.Reply.Text, rule.Reply.Repeat = new("All is well. "), longAnswer/len("All is well. ")
				case done == len(p.steps):
					rule.Reply.Text = new("Done.")
				default:
					rule.Reply.Text, rule.Reply.ToolCalls = new(doing(done+1)), p.calls(done+1, pace)
				}
				all = append(all, rule)
			}
		}
	}
	return all
}

// results is how many results of tools come before the reply after this many steps.
func (p plan) results(done int) int {
	n := 0
	for _, step := range p.steps[:done] {
		n += len(step)
	}
	return n
}

// hostileID is the ID that a hostile model server gives a call. All IDs of the first calls of replies share more characters than
// any record of them may have, and all others are equal, in one reply and over all.
func hostileID(step, place int) string {
	if place == 1 {
		return strings.Repeat("x", longID) + fmt.Sprintf("-%d", step)
	}
	return "call"
}

// calls are those of a step. No two of a Turn are the same, unless the plan says so.
func (p plan) calls(step, pace int) []server.ToolCall {
	var all []server.ToolCall
	for i, name := range p.steps[step-1] {
		arguments := fmt.Sprintf(`{"step": %d, "place": %d}`, step, i+1)
		switch {
		case p.same:
			arguments = fmt.Sprintf(`{"step": %d, "place": 1}`, step)
		case name == toolHelper:
			arguments = fmt.Sprintf(`{"task": %q}`, follow(p.child, pace+step))
		case name == toolLook && p.chars > 0:
			arguments = fmt.Sprintf(`{"step": %d, "place": %d, "chars": %d}`, step, i+1, p.chars)
		}
		call := server.ToolCall{Name: name, Arguments: &arguments}
		if p.hostile {
			call.ID = hostileID(step, i+1)
		}
		all = append(all, call)
	}
	return all
}
