package turn_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// everything is a Turn with all features: a context pack, a wave of calls, an artifact, an approval and a sub-agent
// that the Turn waits for, a summary of older messages, an answer that is sent back, and a reflection.
var everything = ending{
	limits: loop.Limits{MaxSteps: 6, MaxToolCalls: 20, MaxDescendants: 25, ApprovalTimeout: time.Hour},
	stop:   turn.StopCompleted, text: checkedAnswer, steps: 5,
	made:   []string{"0/context-pack-1", "1/d1", "1/i1", "1/r1", "1/r2", "2/d2", "2/h1", "3/d3"},
	change: withEverything, asked: askedOfEverything, reply: repliesToEverything,
	counts: turn.Counts{Compactions: 1, Reflections: 1},
}

// checkedAnswer is the final answer.
const checkedAnswer = `{"done":true,"checked":true}`

// helped is the usage of the sub-agent.
var helped = tool.Spent{
	Turn: "child", Usage: model.Usage{InputTokens: 70, OutputTokens: 7},
	Cost: &model.Cost{Amount: decimal.RequireFromString("0.00014"), Currency: "USD"},
}

func withEverything(p *process, in *turn.Input) {
	in.Tools, in.Preparation = nil, preparationOf()
	in.Toolbox, in.Selection, in.TopK = processBox{p}, tool.Selection{Most: 9}, 4
	in.Output, in.ReflectEvery = json.RawMessage(`{"type":"object","required":["done"]}`), 2
	in.Context = loop.ContextPolicy{Compact: true, WarnPercent: 70, CompactPercent: 90}
	in.Decide = func(_ context.Context, a loop.Approval) (*loop.Decision, error) {
		if p.world.isFirst(p, "approval of "+a.CallID) {
			return nil, nil
		}
		d := a.Decided(true)
		d.By = "alice"
		return d, nil
	}
	for i := range in.Chain {
		in.Chain[i].ContextWindow = 20_000
	}
}

// isFirst reports whether p is the first process that asks for a decision or for the end of a child. The decision or
// the end is ready only for later processes.
func (w *world) isFirst(p *process, what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began[what] == 0 {
		w.began[what] = p.epoch
	}
	return w.began[what] >= p.epoch
}

// processBox is the toolbox of everything, as seen by a process.
type processBox struct{ *process }

// Offers returns the same offers each time.
func (b processBox) Offers(context.Context) ([]tool.Offer, error) {
	if !b.alive() {
		return nil, errKilled
	}
	pack := remote("recall", "", tool.ReadOnly)
	pack.Role = tool.ContextPack
	helper := tool.Tool{Tool: prompt.SubAgent("helper", "Helps."), Effect: tool.Idempotent, Source: tool.Source{Agent: "helper"}}
	return []tool.Offer{
		{Server: "kb", Tools: []tool.Tool{
			pack, remote("find", "Finds.", tool.ReadOnly), remote("dump", "Says all.", tool.ReadOnly),
			remote("store", "Stores.", tool.Idempotent),
			remote("send", "Sends.", tool.Destructive), remote("pay", "Pays.", tool.Destructive),
		}, RequireApproval: []string{"pay"}},
		{Tools: []tool.Tool{helper}},
	}, nil
}

// Effect returns the effect with which the tool was offered.
func (b processBox) Effect(_ context.Context, t tool.Tool) (tool.Effect, error) { return t.Effect, nil }

// Caller calls the server or begins a child.
func (b processBox) Caller(t tool.Tool) tool.Caller {
	s := t.Source
	return tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) {
		result, err := b.call(s.Name+s.Agent, c)
		switch {
		case err != nil:
		case s.Agent != "" && b.world.isFirst(b.process, c.IdempotencyKey):
			err = &tool.Pending{Turn: "child"}
		case s.Agent != "":
			result.Spent = &helped
		case s.Name == "dump":
			result.Content = strings.Repeat("All of it. ", 1200)
		case s.Name == "recall":
			result.Content = `{"facts":[{"id":"r","text":"Recalled."}]}`
		}
		return result, err
	})
}

// askedOfEverything returns the step and the purpose of a request. It looks only at the newest reply in the request,
// because a summary may have replaced older replies.
func askedOfEverything(messages []model.Message) (int, loop.Purpose) {
	last := model.Message{}
	for _, m := range messages {
		if m.Role == model.RoleAssistant && m.Name != prepare.MessageHistory {
			last = m
		}
	}
	asks := func(id string) bool {
		return slices.ContainsFunc(last.ToolCalls, func(c model.ToolCall) bool { return c.ID == id })
	}
	switch {
	case messages[0].Name == "compaction":
		return 4, loop.ForCompaction
	case messages[len(messages)-1].Name == loop.MessageReflection:
		return 5, loop.ForReflection
	case asks("r1"):
		return 2, loop.ForStep
	case asks("d2"):
		return 3, loop.ForStep
	case asks("d3"):
		return 4, loop.ForStep
	case last.Content == "Done.":
		return 5, loop.ForStep
	}
	return 1, loop.ForStep
}

func repliesToEverything(step int, purpose loop.Purpose) model.Reply {
	switch asked(step, purpose) {
	case "1":
		return calls("I look.", call("r1", "find"), call("r2", "dump"), call("i1", "store"), call("d1", "send"))
	case "2":
		read := model.ToolCall{ID: "a1", Name: "read_artifact", Arguments: `{"name":"turn-2-call-1-2","limit":9}`}
		return calls("", read, call("d2", "pay"), model.ToolCall{ID: "h1", Name: "helper", Arguments: `{"task":"Help."}`})
	case "3":
		reply := calls("", call("d3", "send"))
		reply.Usage.InputTokens = 18_500 // in a context window of 20,000
		return reply
	case "4compaction":
		return says("They have looked for it.").reply
	case "4":
		return says("Done.").reply
	case "5":
		return says(`{"done":true}`).reply
	}
	return says(checkedAnswer).reply
}

// checkEverything checks the properties that only this Turn has.
func (w *world) checkEverything(t *testing.T, result *turn.Result, said session.Turn) {
	t.Helper()
	if string(result.Data) != checkedAnswer || !result.Warned || result.SubAgents == nil || result.SubAgents.Usage != helped.Usage {
		t.Errorf("result %+v with data %s, want the answer as data, a warning and the usage of the sub-agent", result, result.Data)
	}
	outcomes := map[string]loop.Outcome{}
	for _, c := range result.Calls {
		outcomes[c.CallID] = c.Outcome
		if c.CallID == "d2" && c.DecidedBy != "alice" || c.CallID == "h1" && c.Turn != "child" || c.CallID == "r2" &&
			c.Artifact != "turn-2-call-1-2" {
			t.Errorf("the call %+v lacks the approver, the Turn of the sub-agent or the artifact", c)
		}
	}
	for _, id := range []string{"context-pack-1", "r1", "r2", "i1", "d1", "a1", "d2", "h1", "d3"} {
		if o := outcomes[id]; o != loop.Succeeded && (o != loop.Unknown || id[0] != 'd') {
			t.Errorf("the outcome of call %s is %q, want a success, or unknown for a harmful call", id, o)
		}
	}
	if !slices.ContainsFunc(w.last, func(m model.Message) bool { return strings.Contains(m.Content, "[r] Recalled.") }) {
		t.Error("the model did not receive the facts of the context pack")
	}
	checkAnswers(t, said.Messages)
	replies := 0
	for _, m := range said.Messages {
		if m.Role == model.RoleAssistant {
			replies++
		}
		if m.Content == "Done." || m.Role == model.RoleUser && m.Content != "What is new?" {
			t.Errorf("later Turns receive a draft that was not accepted, or the message that rejected it: %+v", m)
		}
	}
	if last := said.Messages[len(said.Messages)-1]; replies != 3 || last.Content != checkedAnswer {
		t.Errorf("later Turns receive %d replies, the last %+v, want three and the answer: the summary replaces the first", replies, last)
	}
	if diff := cmp.Diff(&session.Compaction{Summary: "They have looked for it.", First: 1}, said.Compaction); diff != "" {
		t.Errorf("the summary with which later Turns begin: -want +got:\n%s", diff)
	}
}
