package turn_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// inTalk returns the input of a Turn with the given message in the Session "talk".
func inTalk(uid, message string, chain ...loop.Candidate) turn.Input {
	in := input(chain...)
	in.UID, in.Name, in.Session = uid, "turn-"+uid, &turn.Session{UID: "talk-uid", Name: "talk"}
	in.Preparation = preparationOf(func(m *prepare.Input) { m.Turn.Message = message })
	return in
}

func mustRun(t *testing.T, j journal.Journal, in turn.Input) *turn.Result {
	t.Helper()
	result, err := engine(j).Run(t.Context(), new(in))
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func history(t *testing.T, j journal.Journal) *session.Conversation {
	t.Helper()
	h, err := session.Recall(t.Context(), j, "talk-uid", nil)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestAConversation(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			c, _ := candidate("p0", 1, answer{reply: calls("I look.", call("c1", "find"), call("c2", "send"))}, says("It is <here>."))
			in := inTalk("a", "Where is it?", c)
			in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("in the \u2028 shed")), named("send", tool.Destructive, saying(""))}
			first := mustRun(t, j, in)
			c, s := candidate("p0", 1, says("You are welcome."))
			second := mustRun(t, j, inTalk("b", "Thanks.", c))
			nonce := decoded[tool.Exposure](t, entries(t, j, "a")[1]).Nonce
			want := []model.Message{
				{Role: model.RoleUser, Content: "Where is it?"},
				{Role: model.RoleAssistant, Content: "I look.", ToolCalls: []model.ToolCall{call("c1", "find"), call("c2", "send")}},
				{Role: model.RoleTool, Content: toolOutput(nonce, "in the  shed"), ToolCallID: "c1"},
				{Role: model.RoleTool, Content: toolOutput(nonce, ""), ToolCallID: "c2"},
				{Role: model.RoleAssistant, Content: "It is <here>."},
			}
			if diff := cmp.Diff(want, history(t, j).Turns[0].Messages); diff != "" {
				t.Errorf("the first Turn has added: -want +got:\n%s", diff)
			}
			for i := range want {
				want[i].Name = prepare.MessageHistory
			}
			messages := s.requests[0].Messages
			from := slices.IndexFunc(messages, func(m model.Message) bool { return m.Name == prepare.MessageHistory })
			if diff := cmp.Diff(want, messages[from:from+len(want)]); diff != "" {
				t.Errorf("the messages that the second Turn received: -want +got:\n%s", diff)
			}
			if last := messages[len(messages)-1]; last.Content != "Thanks." || second.MessageCount != first.MessageCount+len(want) {
				t.Errorf("the prompt has %d messages and ends with %+v, want the history and the new message", second.MessageCount, last)
			}
			totals := session.Totals{
				Turns: 2, Usage: model.Usage{InputTokens: 3000, OutputTokens: 300},
				Cost: &finalize.Cost{Amount: "0.006", Currency: "USD"}, ContextTokens: 1100,
				KnownCost: decimal.RequireFromString("0.006"),
			}
			if diff := cmp.Diff(&turn.SessionPosition{UID: "talk-uid", Name: "talk", Number: 2, Last: "turn-b", Totals: totals},
				second.Session); diff != "" {
				t.Errorf("place: -want +got:\n%s", diff)
			}
			if first.Session.Number != 1 || first.Session.Totals.Turns != 1 {
				t.Errorf("the first Turn had the place %+v, want number 1 of 1", first.Session)
			}
			// If a Turn runs again after later Turns have ended, it keeps its number.
			in.Epoch = 2
			if again := mustRun(t, j, in); again.Session.Number != 1 || again.Session.Last != "turn-b" ||
				again.Session.Totals.Turns != 2 || len(history(t, j).Turns) != 2 {
				t.Errorf("the first Turn, run again, has the place %+v in %d Turns; want number 1 of 2", again.Session, len(history(t,
					j).Turns))
			}
		})
	}
}

// TestAdditionOfATurnToItsSession checks the addition for each kind of end.
func TestAdditionOfATurnToItsSession(t *testing.T) {
	cut := says("half an ans")
	cut.reply.FinishReason = model.FinishLength
	for name, tc := range map[string]struct {
		reason   string
		answers  []answer
		change   func(*turn.Input)
		stop     turn.Stop
		number   int64
		messages int
		usage    model.Usage
		context  int64
	}{
		"answered": {
			"the messages are added",
			[]answer{says("Yes.")},
			nil, turn.StopCompleted, 2, 2,
			model.Usage{InputTokens: 1000, OutputTokens: 100},
			1100,
		},
		"out of steps": {
			"the best answer is added",
			[]answer{asks("find", "{}"), says("Perhaps.")},
			func(in *turn.Input) { in.Limits.MaxSteps = 1 }, turn.StopMaxSteps, 2, 4,
			model.Usage{InputTokens: 2000, OutputTokens: 200},
			1100,
		},
		"failed": {
			"the usage is added, but no message without an answer",
			[]answer{fails(model.Auth)},
			nil, turn.StopModelError,
			2, 0,
			model.Usage{InputTokens: 10},
			77,
		},
		"failed later": {
			"the messages of earlier steps are not added without an answer",
			[]answer{asks("find", "{}"), fails(model.Auth)},
			nil, turn.StopModelError, 2, 0,
			model.Usage{InputTokens: 1010, OutputTokens: 100},
			77,
		},
		"cut off": {
			"an incomplete answer is not added",
			[]answer{cut},
			nil, turn.StopMaxOutputTokens, 2, 0,
			model.Usage{InputTokens: 1000, OutputTokens: 100},
			77,
		},
		"over budget": {
			"no message is added without an answer",
			[]answer{asks("find", "{}")},
			func(in *turn.Input) { in.Limits.MaxTokens = 1500 }, turn.StopBudget, 2, 0,
			model.Usage{InputTokens: 1000, OutputTokens: 100},
			77,
		},
		"prepared": {
			"a Turn that asked no model adds nothing", nil, func(in *turn.Input) { in.PrepareOnly = true },
			turn.StopPrepared, 0, 0,
			model.Usage{},
			77,
		},
		"not prepared": {"a Turn without a prompt adds nothing", nil, func(in *turn.Input) {
			in.Preparation = func(context.Context) (prepare.Input, error) { return prepare.Input{}, invalid.Field("f", "is wrong") }
		}, turn.StopPreparationError, 0, 0, model.Usage{}, 77},
		"no time": {
			"a Turn without time adds nothing", nil, func(in *turn.Input) { in.Timeout = 0 }, turn.StopDeadline, 0, 0,
			model.Usage{},
			77,
		},
		"no budget left": {
			"a Turn without budget adds nothing", nil, func(in *turn.Input) { in.Limits.MaxTokens = 1 }, turn.StopBudget, 0,
			0,
			model.Usage{},
			77,
		},
		"not sent": {
			"a Turn whose request was not sent adds nothing", []answer{notSent()}, nil, turn.StopModelError, 0, 0, model.Usage{}, 77,
		},
		"not reached": {
			"a Turn whose request did not reach the endpoint adds nothing",
			[]answer{{err: &model.Error{Kind: model.Network, Message: "connection refused", NotReached: true}}},
			nil, turn.StopModelError, 0, 0,
			model.Usage{},
			77,
		},
		"cancelled": {"a Turn that was cancelled before its first request adds nothing", nil, func(in *turn.Input) {
			in.Cancel = cancelled()
		}, turn.StopCancelled, 0, 0, model.Usage{}, 77},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			earlier := session.Turn{
				UID:           "a",
				Messages:      []model.Message{{Role: model.RoleUser, Content: "Hello."}, {Role: model.RoleAssistant, Content: "Hi."}},
				ContextTokens: 77,
			}
			if _, err := session.Add(t.Context(), "talk-uid", earlier, session.ExternalState{},
				journal.Options{Journal: j, Now: func() time.Time { return at }}); err != nil {
				t.Fatal(err)
			}
			c, _ := candidate("p0", 1, append(tc.answers, says("never"))...)
			in := inTalk("b", "Is it so?", c)
			in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("found"))}
			if tc.change != nil {
				tc.change(&in)
			}
			result := mustRun(t, j, in)
			h := history(t, j)
			if result.Stop != tc.stop || result.Session.Number != tc.number || tc.number > 0 && int64(len(h.Turns)) != tc.number {
				t.Fatalf("the Turn ended with %s (%s) as number %d, want %s and %d: %s",
					result.Stop, result.Message, result.Session.Number, tc.stop, tc.number, tc.reason)
			}
			if len(h.Messages()) != 2+tc.messages || h.Totals.Usage != tc.usage || result.Session.Totals.ContextTokens != tc.context {
				t.Errorf("the Session has %d messages and %+v, want %d more, %+v and a context of %d: %s",
					len(h.Messages()), h.Totals, tc.messages, tc.usage, tc.context, tc.reason)
			}
			if last := h.Turns[len(h.Turns)-1]; tc.number > 0 && (last.Name != "turn-b" || last.Usage != result.Record.Usage) {
				t.Errorf("the Session has %+v, want the Turn's name and usage", last)
			}
		})
	}
}

// TestEachCallInTheHistoryHasAResult checks that each call in the history has a result. Otherwise an endpoint would
// reject the next Turn of the Session.
func TestEachCallInTheHistoryHasAResult(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, asks("find", "{}"), asks("find", "{}")) // even if no tool is offered
	in := inTalk("a", "Is it so?", c)
	in.Tools, in.Limits.MaxSteps = []tool.Tool{named("find", tool.ReadOnly, saying("found"))}, 1
	if result := mustRun(t, j, in); result.Stop != turn.StopMaxSteps {
		t.Fatalf("the Turn ended with %s", result.Stop)
	}
	open, made := map[string]bool{}, 0
	for _, m := range history(t, j).Messages() {
		for _, c := range m.ToolCalls {
			open[c.ID] = true
			made++
		}
		delete(open, m.ToolCallID)
	}
	if len(open) > 0 || made == 0 {
		t.Errorf("of %d calls, %v have no result; want a result for each call, and at least one call", made, open)
	}
}

// TestAResumedTurnKeepsItsHistory continues a Turn after another Turn was added to its Session.
func TestAResumedTurnKeepsItsHistory(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, says("One."))
	mustRun(t, j, inTalk("a", "First?", c))
	one, _ := candidate("p0", 1, fails(model.Auth))
	two, second := candidate("p1", 1, says("Two."))
	in := inTalk("uid", "Second?", one, two)
	in.Interrupt = interrupted()
	if _, err := engine(j).Run(t.Context(), new(in)); !errors.Is(err, loop.ErrInterrupted) {
		t.Fatal(err)
	}
	c, _ = candidate("p0", 1, says("Meanwhile."))
	mustRun(t, j, inTalk("c", "Third?", c))
	in.Epoch, in.Interrupt = 2, nil
	result := mustRun(t, j, in)
	if got := len(second.requests[0].Messages); result.Session.Number != 3 || got != 4+2 {
		t.Errorf("the second model got %d messages and the Turn is number %d; want 6 messages, as in the first prompt, and number 3",
			got, result.Session.Number)
	}
}

// blind is a journal in which the first reads of one UID block until their context ends.
type blind struct {
	journal.Journal
	uid   string
	times int
}

// Last reads, or blocks until ctx ends.
func (b *blind) Last(ctx context.Context, uid string) (int64, error) {
	if uid != b.uid || b.times == 0 {
		return b.Journal.Last(ctx, uid)
	}
	b.times--
	<-ctx.Done()
	return 0, ctx.Err()
}

// Read reads, or blocks until ctx ends.
func (b *blind) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	if uid != b.uid || b.times == 0 {
		return b.Journal.Read(ctx, uid, after)
	}
	b.times--
	return func(yield func(journal.Entry, error) bool) {
		<-ctx.Done()
		yield(journal.Entry{}, ctx.Err())
	}
}

// TestUnreadableHistory checks that the time limit of the Turn includes the time to read the history.
func TestUnreadableHistory(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		do     func(*controls)
		stop   turn.Stop
	}{
		"deadline":  {"the Turn ends at its deadline", func(*controls) {}, turn.StopDeadline},
		"cancelled": {"a cancelled Turn ends immediately", (*controls).cancel, turn.StopCancelled},
		"abandoned": {"a later run may succeed", func(c *controls) { c.abandon(errBroken) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := candidate("p0", 1, says("never asked"))
				in := inTalk("b", "Is it so?", c)
				ctx, ctl := control(t, &in)
				time.AfterFunc(time.Second, func() { tc.do(ctl) })
				result, err := engine(&blind{&journaltest.Store{}, "talk-uid", 1}).Run(ctx, new(in))
				if (result == nil) != (tc.stop == "") || result != nil && result.Stop != tc.stop || tc.stop == "" &&
					!errors.Is(err, errBroken) || s.asked() != 0 {
					t.Errorf("Run = %+v, %v after %d requests; want %q: %s", result, err, s.asked(), tc.stop, tc.reason)
				}
			})
		})
	}
}

// TestUnwritableSession checks that each Turn is added to its Session. The run repeats a failed append. If it must end
// first, the next run adds the Turn.
func TestUnwritableSession(t *testing.T) {
	// The appends are the preparation, a request, its reply, the end, and the addition to the Session.
	for _, written := range []bool{false, true} {
		for _, forGood := range []bool{false, true} {
			t.Run(fmt.Sprintf("written %t, for good %t", written, forGood), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					j := &journaltest.Store{}
					c, s := candidate("p0", 1, says("Yes."))
					in := inTalk("uid", "Is it so?", c)
					times := 3
					ctx, ctl := control(t, &in)
					if forGood {
						times = -1
						time.AfterFunc(time.Hour, func() { ctl.abandon(context.Canceled) })
					}
					result, err := engine(&breaking{Journal: j, n: 5, times: times, written: written}).Run(ctx, new(in))
					if forGood {
						if err == nil || result != nil {
							t.Fatalf("Run = %+v, %v; want an error, because the Session does not have the Turn", result, err)
						}
						in.Epoch = 2
						result, err = engine(j).Run(t.Context(), new(in))
					}
					if err != nil || result.Stop != turn.StopCompleted || result.Session.Number != 1 ||
						len(history(t, j).Turns) != 1 || s.asked() != 1 {
						t.Errorf("Run = %+v, %v after %d requests, and the Session has %d Turns; want an answer, and the Turn once in "+
							"the Session",
							result, err, s.asked(), len(history(t, j).Turns))
					}
				})
			})
		}
	}
}

func TestASessionOfTwoCurrencies(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, says("One."))
	first := mustRun(t, j, inTalk("a", "First?", c))
	c, _ = candidate("p0", 1, says("Two."))
	euro := *c.Pricing
	euro.Currency = "EUR"
	c.Pricing = &euro
	second := mustRun(t, j, inTalk("b", "Second?", c))
	if first.Session.Totals.Cost == nil || second.Session.Totals.Cost != nil || second.Record.Cost == nil ||
		second.Session.Totals.Usage.InputTokens != 2000 {
		t.Errorf("totals %+v and then %+v; want no total cost after the second currency", first.Session.Totals, second.Session.Totals)
	}
}

// TestADamagedHistory checks that a damaged history does not affect a Turn that has ended, and that no Turn starts with
// it.
func TestADamagedHistory(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		entry  journal.Entry
	}{
		"damaged": {"the entry makes no sense", journal.Entry{Version: 1, Payload: []byte("[]")}},
		"newer":   {"this version cannot read the entry", journal.Entry{Version: journal.PayloadVersion + 1, Payload: []byte("{}")}},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			c, s := candidate("p0", 1, says("Yes."))
			in := inTalk("uid", "Is it so?", c)
			in.HoldAnswer = func() bool { // damages the history after the model has answered
				e := tc.entry
				e.Seq, e.Epoch, e.Kind, e.Time = 1, 1, journal.SessionTurn, at
				if err := j.Append(t.Context(), "talk-uid", e); err != nil {
					t.Error(err)
				}
				return false
			}
			for _, reason := range []string{tc.reason, "a later run returns the same"} {
				result := mustRun(t, j, in)
				failures := result.Record.Failures
				if result.Stop != turn.StopCompleted || result.Text != "Yes." || result.Session != nil ||
					len(failures) != 1 || !strings.HasPrefix(failures[0], "session history: ") {
					t.Errorf("Run = %+v; want the answer without a place, and one failure: %s", result, reason)
				}
				in.Epoch++
			}
			if kept := payloads[turn.Result](t, j, journal.Finalized); s.asked() != 1 || len(kept) != 1 ||
				len(kept[0].Record.Failures) != 0 {
				t.Errorf("after %d requests the journal has %+v, want the Turn's own end once", s.asked(), kept)
			}
		})
	}
	t.Run("at the start", func(t *testing.T) {
		j := &journaltest.Store{}
		if err := j.Append(t.Context(), "talk-uid",
			journal.Entry{Seq: 1, Epoch: 1, Kind: journal.SessionTurn, Version: 1, Time: at, Payload: []byte("[]")}); err != nil {
			t.Fatal(err)
		}
		c, s := candidate("p0", 1, says("never asked"))
		result := mustRun(t, j, inTalk("uid", "Is it so?", c))
		if result.Stop != turn.StopPreparationError || s.asked() != 0 ||
			!strings.Contains(result.Message, `the history of session "talk" cannot be used: delete the Session to start a new history: `) {
			t.Errorf("Run = %+v after %d requests; want a preparation error with the remedy, and no request", result, s.asked())
		}
	})
}

// TestASessionOfUnpricedModels checks that the known part of the cost is counted.
func TestASessionOfUnpricedModels(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, says("One."))
	mustRun(t, j, inTalk("a", "First?", c))
	c, _ = candidate("p0", 1, asks("find", "{}"), fails(model.Auth))
	free, _ := candidate("p1", 1, says("Two."))
	free.Pricing = nil
	in := inTalk("b", "Second?", c, free)
	in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("found"))}
	got := mustRun(t, j, in).Session.Totals
	if got.Cost != nil || got.KnownCost.String() != "0.00401" { // two replies of 0.002 each and a failure of 0.00001
		t.Errorf("totals %+v, want no total cost, and the known cost of the first model in both Turns", got)
	}
}
