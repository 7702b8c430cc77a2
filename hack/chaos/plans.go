package main

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"

	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

// plan scripts a Turn: which tools each reply calls, until the last reply answers.
type plan struct {
	name string
	// agent is the name of the Agent that runs the plan.
	agent string
	steps [][]string
	// child is the plan that a sub-agent follows.
	child string
	// chars is the minimum length of a result of toolLook.
	chars int
	// fastest and slowest are the minimum and the maximum time of a reply, in milliseconds.
	fastest, slowest int
	// same makes the calls of one tool in a step identical.
	same bool
	// hostile gives the calls the IDs that a hostile model server would give: see hostileID.
	hostile bool
	// inSession is true for the Turns of Sessions. The fake model finds the next reply of such a Turn by counting the
	// tool results after the user's message, because the history also holds replies of earlier Turns.
	inSession bool
}

// The tools. A call of toolCount or toolWipe must not be made twice; a call of toolLook may be made twice. toolWipe
// requires approval. toolHelper is another Agent.
const (
	toolCount  = "count"
	toolLook   = "look"
	toolWipe   = "wipe"
	toolHelper = "helper"
)

// The Agents.
const (
	// agentMain has all tools. It may call agentHelper, which has only the tools of the tool server.
	agentMain   = "main"
	agentHelper = "helper"
	// agentNarrow is like agentMain, but its model has a small context window, so long conversations are compacted.
	agentNarrow = "narrow"
)

// longLook is the length of a toolLook result in a conversation that grows until it is compacted, in characters.
// Three such results and the rest of the prompt fill narrowWindowTokens, the context window of the narrow model.
const (
	longLook           = 6000
	narrowWindowTokens = 6000
)

const (
	// longID is the number of characters that hostile IDs have in common.
	longID = 200
	// longAnswer is the length of an answer of a conversation that grows until it is compacted.
	longAnswer = 3000
)

// denied is part of the names of the plans whose calls are denied instead of approved.
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
	deniedCalls = plan{
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
	// siblings requests the same call several times in one reply.
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
		name: "plan-talk", agent: agentNarrow, fastest: 10, slowest: 200, inSession: true, steps: [][]string{{toolCount}},
	}
	// task is the plan of the sub-agents.
	task = plan{name: "plan-task", fastest: 10, slowest: 200, steps: [][]string{{toolCount}, {toolLook, toolCount}}}

	// mixed lists the plans that the phase random uses in turn.
	mixed = []plan{long, waves, approved, deniedCalls, nested, wide, siblings, hostile, talk}
)

// The plans of the phase points: one for each feature that a Turn can use.
var (
	short = plan{
		name: "plan-short", agent: agentMain, fastest: 1, slowest: 5, steps: [][]string{{toolCount, toolLook}, {toolCount}},
	}
	shortWave = plan{
		name: "plan-short-wave", agent: agentMain, fastest: 1, slowest: 5, steps: [][]string{{toolLook, toolLook, toolLook, toolCount}},
	}
	shortApproved = plan{name: "plan-short-approved", agent: agentMain, fastest: 1, slowest: 5, steps: [][]string{{toolWipe}}}
	shortDenied   = plan{name: "plan-short-" + denied, agent: agentMain, fastest: 1, slowest: 5, steps: [][]string{{toolWipe}}}
	shortNested   = plan{
		name: "plan-short-nested", agent: agentMain, fastest: 1, slowest: 5, child: shortTask.name, steps: [][]string{{toolHelper}},
	}
	shortWide = plan{
		name: "plan-short-wide", agent: agentNarrow, fastest: 1, slowest: 5, chars: longLook,
		steps: [][]string{{toolLook}, {toolLook}, {toolLook}},
	}
	shortSiblings = plan{
		name: "plan-short-siblings", agent: agentMain, fastest: 1, slowest: 5, same: true, steps: [][]string{{toolCount, toolCount}},
	}
	shortHostile = plan{
		name: "plan-short-hostile", agent: agentMain, fastest: 1, slowest: 5, hostile: true,
		steps: [][]string{{toolCount, toolCount}, {toolWipe}},
	}
	shortTalk = plan{
		name: "plan-short-talk", agent: agentNarrow, fastest: 1, slowest: 5, inSession: true, steps: [][]string{{toolCount}},
	}
	shortTask = plan{name: "plan-short-task", fastest: 1, slowest: 5, steps: [][]string{{toolCount}}}
)

// The plans of slow Turns, so that an executor can be lost in the middle of many of them.
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
	// lasting lists the slow plans, except for the task of sub-agents. The phases use them in turn.
	lasting = []plan{slow, slowWaves, slowApproved, slowNested}
)

var plans = []plan{
	long, waves, approved, deniedCalls, nested, wide, siblings, hostile, talk, task,
	short, shortWave, shortApproved, shortDenied, shortNested, shortWide, shortSiblings, shortHostile, shortTalk, shortTask,
	slow, slowWaves, slowApproved, slowNested, slowTask,
}

// paces is the number of different paces at which the Turns of a plan receive their replies.
const paces = 8

// message returns the message of a Turn that follows the plan.
func (p plan) message(number int) string { return follow(p.name, number) }

func follow(plan string, number int) string {
	return fmt.Sprintf("Follow %s at pace-%d.", plan, number%paces)
}

// turnMessage matches the message of a Turn in any request to the model, such as a request of a judge.
var turnMessage = regexp.MustCompile(`Follow \S+ at pace-\d+\.`)

// isDenied reports whether calls that require approval are denied for the Turn with this message.
func isDenied(message string) bool { return strings.Contains(message, denied) }

// stepText returns the text of a reply at this step. The fake model recognizes the next step by this text, because
// tool results may be refusals and older messages may be compacted.
func stepText(step int) string { return fmt.Sprintf("I am at step %d.", step) }

// rules returns the rules of the fake model: one each for summaries, judges and memories, and one for each plan, pace
// and step. All replies are delayed.
func rules(r *rand.Rand) []server.Rule {
	all := []server.Rule{{
		When:  server.When{SystemContains: "You shorten conversations."},
		Reply: server.Reply{Text: new("There was a look at the count, and it was fine.")},
		Fault: server.Fault{LatencyMilliseconds: 50},
	}, {
		When:  server.When{SystemContains: judgeMarker},
		Reply: server.Reply{Text: new(`{"score": 90, "reason": "It fits."}`)},
		Fault: server.Fault{LatencyMilliseconds: followUpMilliseconds},
	}, {
		When:  server.When{SystemContains: memoryMarker},
		Reply: server.Reply{Text: new(`{"memories": [{"content": "The user likes plans.", "scope": "User", "confidence": 90}]}`)},
		Fault: server.Fault{LatencyMilliseconds: followUpMilliseconds},
	}}
	for _, p := range plans {
		for pace := range paces {
			for done := len(p.steps); done >= 0; done-- {
				rule := server.Rule{
					When:  server.When{Contains: follow(p.name, pace)},
					Fault: server.Fault{LatencyMilliseconds: p.fastest + r.IntN(p.slowest-p.fastest+1)},
				}
				switch {
				case p.inSession:
					rule.When.ToolMessages = new(p.results(done))
				case done > 0:
					rule.When.AnyContains = stepText(done)
				}
				switch {
				case done == len(p.steps) && p.inSession:
					rule.Reply.Text, rule.Reply.Repeat = new("All is well. "), longAnswer/len("All is well. ")
				case done == len(p.steps):
					rule.Reply.Text = new("Done.")
				default:
					rule.Reply.Text, rule.Reply.ToolCalls = new(stepText(done+1)), p.calls(done+1, pace)
				}
				all = append(all, rule)
			}
		}
	}
	return all
}

// results returns the number of tool results before the reply that follows this many steps.
func (p plan) results(done int) int {
	n := 0
	for _, step := range p.steps[:done] {
		n += len(step)
	}
	return n
}

// hostileID returns the call ID that a hostile model server gives. The IDs of the first calls of all replies differ
// only after their first longID characters, and are so long that Capstan replaces each as a whole. All other IDs are
// equal, within a reply and across replies.
func hostileID(step, place int) string {
	if place == 1 {
		return strings.Repeat("x", longID) + fmt.Sprintf("-%d", step)
	}
	return "call"
}

// calls returns the calls of a step. All calls of a Turn differ, unless the plan asks for identical ones.
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
