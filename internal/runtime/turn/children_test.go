package turn_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestTurnEndsAfterItsSubAgent checks that a Turn that is cancelled or late waits for the end of its sub-agent. The
// result of the Turn and the totals of its Session must include the usage of the sub-agent.
func TestTurnEndsAfterItsSubAgent(t *testing.T) {
	spent := &tool.Spent{
		Turn: "child", Usage: model.Usage{InputTokens: 500, OutputTokens: 20},
		Cost: &model.Cost{Amount: decimal.RequireFromString("0.25"), Currency: "USD"},
	}
	for stop, ends := range map[turn.Stop]func(*turn.Input){
		turn.StopCancelled: func(in *turn.Input) {
			in.Cancel = cancelled()
		},
		turn.StopDeadline: func(in *turn.Input) { in.Timeout, in.Chain = 0, nil }, // the Agent is gone, too
	} {
		t.Run(string(stop), func(t *testing.T) {
			j := &journaltest.Store{}
			c, _ := candidate("p0", 1, answer{reply: calls("", call("h1", "helper"))})
			in := inTalk("uid", "Hand it on.", c)
			in.Toolbox = &box{
				offers: []tool.Offer{{Tools: []tool.Tool{
					{Tool: prompt.SubAgent("helper", "Helps."), Effect: tool.Idempotent, Source: tool.Source{Agent: "helper"}},
				}}},
				do: map[string]tool.CallerFunc{"": func(context.Context, tool.Call) (tool.Result, error) {
					return tool.Result{}, &tool.Pending{Turn: "child"}
				}},
			}
			var asked []string
			working := true
			in.Child = func(_ context.Context, i loop.Intent, _ string) (tool.Result, error) {
				asked = append(asked, i.Name)
				if working {
					return tool.Result{}, &tool.Pending{Turn: "child"}
				}
				return tool.Result{Spent: spent, Descendants: new(3)}, nil
			}
			in.Policy.Unvalidated = true
			parks := func(when string) {
				_, err := engine(j).Run(t.Context(), new(in))
				if parked, ok := errors.AsType[*loop.Parked](err); !ok || !slices.Equal(parked.Turns, []string{"child"}) {
					t.Fatalf("%s: Run: %v, want it parked for the child", when, err)
				}
				in.Epoch++
			}
			parks("at first")
			if len(asked) != 0 {
				t.Errorf("asked for the usage of %v, although the Turn has not ended", asked)
			}
			ends(&in)
			parks("before the child has ended")
			working = false
			result := mustRun(t, j, in)
			want := &turn.SubAgents{Usage: spent.Usage}
			if result.Stop != stop || result.SubAgents == nil || result.SubAgents.Usage != want.Usage ||
				result.SubAgents.Cost == nil || result.SubAgents.Cost.Amount != "0.25" || result.Descendants != 3 {
				t.Errorf("it ends as %s with %+v and %d descendants, want %s with the usage of the child, and 3 descendants",
					result.Stop, result.SubAgents, result.Descendants, stop)
			}
			if total := result.Session.Totals.Usage.InputTokens; total != 1500 {
				t.Errorf("the Session counts %d tokens of input, want 1500", total)
			}
			ended := payloads[loop.CallResult](t, j, journal.ToolFinished)
			if len(ended) != 1 || ended[0].Outcome != loop.Failed ||
				ended[0].Content != "error (failed): the turn ended during the call" {
				t.Errorf("the results of the call are %+v, want one failure at the end of the Turn", ended)
			}
			in.Epoch++
			if diff := cmp.Diff(asJSON(t, result), asJSON(t, mustRun(t, j, in))); diff != "" {
				t.Errorf("another run returns another result: -want +got:\n%s", diff)
			}
		})
	}
}

// TestUndoOfASubAgentThatDidNotAnswer checks whether an undo reports the call of a sub-agent if the calling Turn ended
// first. The Turn of the sub-agent may have changed something, unless it certainly does not exist.
func TestUndoOfASubAgentThatDidNotAnswer(t *testing.T) {
	const reason = "helper (call h1): not undone: it was a call of a sub-agent: undo "
	for name, tc := range map[string]struct {
		pending tool.Pending
		child   tool.Result
		text    string
	}{
		"its usage is known": {
			tool.Pending{Turn: "child"},
			tool.Result{Spent: &tool.Spent{Turn: "child"}, Descendants: new(1)},
			reason + "its Turn \"child\"\n",
		},
		"it was deleted with its journal": {tool.Pending{Turn: "child"}, tool.Result{}, reason + "the Turn of the sub-agent\n"},
		"it does not exist":               {tool.Pending{Turn: "child"}, tool.Result{Descendants: new(0)}, ""},
		"it was not created":              {tool.Pending{Turn: "child", NotCreated: true}, tool.Result{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			c, _ := candidate("p0", 1, answer{reply: calls("", call("h1", "helper"))})
			in := input(c)
			in.Namespace, in.Name, in.About.Agent = "shop", "first", "helper"
			in.Policy.Unvalidated = true
			in.Toolbox = &box{
				offers: []tool.Offer{{Tools: []tool.Tool{
					{Tool: prompt.SubAgent("helper", "Helps."), Effect: tool.Idempotent, Source: tool.Source{Agent: "helper"}},
				}}},
				do: map[string]tool.CallerFunc{"": func(context.Context, tool.Call) (tool.Result, error) {
					return tool.Result{}, &tc.pending
				}},
			}
			in.Child = func(context.Context, loop.Intent, string) (tool.Result, error) { return tc.child, nil }
			if _, err := engine(j).Run(t.Context(), new(in)); err == nil {
				t.Fatal("the Turn has ended, want it parked for the child")
			}
			in.Epoch, in.Cancel = 2, cancelled()
			mustRun(t, j, in)
			result := undo(t, j, undoInput(&desk{}, "undo-uid"))
			if result.Text != tc.text || (result.Stop == turn.StopUndone) != (tc.text == "") {
				t.Errorf("%s with %q, want %q", result.Stop, result.Text, tc.text)
			}
		})
	}
}

// beforeAppend is a journal that calls a function before each append.
type beforeAppend struct {
	journal.Journal
	do func(entries []journal.Entry)
}

func (b *beforeAppend) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	b.do(entries)
	return b.Journal.Append(ctx, uid, entries...)
}

// TestUsageOfASubAgentIfItsCallIsNotRepeated checks that the usage of a sub-agent counts if the Turn is cancelled while
// the intent to repeat its call is written.
func TestUsageOfASubAgentIfItsCallIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journaltest.Store{}
		spent := &tool.Spent{Turn: "child", Usage: model.Usage{InputTokens: 500, OutputTokens: 20}}
		c, _ := candidate("p0", 1, answer{reply: calls("", call("h1", "helper"))})
		in := inTalk("uid", "Hand it on.", c)
		made := 0
		in.Toolbox = &box{
			offers: []tool.Offer{{Tools: []tool.Tool{
				{Tool: prompt.SubAgent("helper", "Helps."), Effect: tool.Idempotent, Source: tool.Source{Agent: "helper"}},
			}}},
			do: map[string]tool.CallerFunc{"": func(context.Context, tool.Call) (tool.Result, error) {
				made++
				return tool.Result{}, &tool.Pending{Turn: "child"}
			}},
		}
		in.Child = func(context.Context, loop.Intent, string) (tool.Result, error) {
			return tool.Result{Spent: spent, Descendants: new(3)}, nil
		}
		in.Policy.Unvalidated = true
		if _, err := engine(j).Run(t.Context(), new(in)); err == nil {
			t.Fatal("the Turn has ended, want it parked for the child")
		}
		in.Epoch++
		ctx, controls := control(t, &in)
		result, err := engine(&beforeAppend{j, func(entries []journal.Entry) {
			if slices.ContainsFunc(entries, func(e journal.Entry) bool { return e.Kind == journal.ToolIntended }) {
				controls.cancel()
				synctest.Wait()
			}
		}}).Run(ctx, new(in))
		if err != nil || result.Stop != turn.StopCancelled || made != 1 {
			t.Fatalf("Run = %+v, %v after %d calls; want a cancelled Turn after one", result, err, made)
		}
		if result.SubAgents == nil || result.SubAgents.Usage != spent.Usage || result.Descendants != 3 ||
			result.Session.Totals.Usage.InputTokens != 1500 {
			t.Errorf("sub-agents %+v with %d descendants in a Session with %+v, want the usage of the child", result.SubAgents,
				result.Descendants, result.Session.Totals.Usage)
		}
	})
}
