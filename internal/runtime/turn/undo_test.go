package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// desk is a tool server that opens and closes tickets. It records the closed tickets in order.
type desk struct {
	mu     sync.Mutex
	closed []string
	// fail returns the error of closing a ticket. It may be nil.
	fail func(id string) error
}

func (d *desk) open(_ context.Context, c tool.Call) (tool.Result, error) {
	var a struct{ Name string }
	if err := json.Unmarshal(c.Arguments, &a); err != nil {
		return tool.Result{}, err
	}
	if a.Name == "late" {
		return tool.Result{}, &tool.Error{Class: tool.Timeout, Message: "no result"}
	}
	if a.Name == "odd" {
		return tool.Result{Content: `{"ticket":"odd"}`}, nil
	}
	return tool.Result{Content: fmt.Sprintf(`{"id":%q}`, "T-"+a.Name)}, nil
}

// set always fails. The name of the ticket determines the error.
func (d *desk) set(_ context.Context, c tool.Call) (tool.Result, error) {
	var a struct{ Name string }
	if err := json.Unmarshal(c.Arguments, &a); err != nil {
		return tool.Result{}, err
	}
	switch a.Name {
	case "late":
		return tool.Result{}, &tool.Error{Class: tool.Timeout, Message: "no result"}
	case "broken":
		return tool.Result{}, errors.New("reset")
	case "twice":
		return tool.Result{}, &tool.Error{Class: tool.Failed, Message: "it is set", MayHaveActed: true}
	}
	return tool.Result{}, &tool.Error{Class: tool.Failed, Message: "there is no such ticket"}
}

func (d *desk) close(_ context.Context, c tool.Call) (tool.Result, error) {
	var a struct{ ID string }
	if err := json.Unmarshal(c.Arguments, &a); err != nil {
		return tool.Result{}, err
	}
	if d.fail != nil {
		if err := d.fail(a.ID); err != nil {
			return tool.Result{}, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = append(d.closed, a.ID)
	return tool.Result{Content: "closed"}, nil
}

// box returns the tools of the desk. The Agent does not allow models to close tickets.
func (d *desk) box() *box {
	opening := remote("open", "", tool.Destructive)
	opening.Compensation = &tool.Compensation{
		Tool: "close", Arguments: []tool.CompensationArgument{{Name: "id", Value: "result.id"}},
	}
	b := server("desk", remote("look", "", tool.ReadOnly), opening, remote("mail", "", tool.Destructive), remote("close", "", ""),
		remote("set", "", tool.Idempotent))
	b.offers[0].UID = "desk-uid"
	b.offers[0].Allow = []string{"look", "open", "mail", "set"}
	b.do = map[string]tool.CallerFunc{
		"open": d.open, "close": d.close, "look": saying("seen"), "mail": saying("sent"), "set": d.set,
	}
	return b
}

// runCalls runs a Turn that makes the calls, with the journal j. Each call is NAME, for the tool open, or TOOL:NAME.
func runCalls(t *testing.T, j journal.Journal, d *desk, names ...string) {
	t.Helper()
	var all []model.ToolCall
	for i, name := range names {
		toolName, name, hasTool := strings.Cut(name, ":")
		if !hasTool {
			toolName, name = "open", toolName
		}
		all = append(all, model.ToolCall{ID: fmt.Sprintf("c%d", i+1), Name: toolName, Arguments: fmt.Sprintf(`{"name":%q}`, name)})
	}
	c, _ := candidate("p0", 1, answer{reply: calls("", all...)}, says("Done."))
	in := input(c)
	in.Namespace, in.Name, in.About.Agent = "shop", "first", "helper"
	in.Toolbox, in.Selection = d.box(), tool.Selection{Most: 9}
	if _, err := engine(j).Run(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
}

// undoInput returns the input of a Turn that undoes calls of the Turn that runCalls has run.
func undoInput(d *desk, uid string, ids ...string) *turn.Input {
	c, _ := candidate("p0", 1, says("A model must not be asked."))
	in := input(c)
	in.UID, in.Namespace, in.Name, in.About.Agent = uid, "shop", uid, "helper"
	in.Undo = &turn.Undo{TurnUID: "uid", Calls: ids}
	in.Toolbox, in.Limits.ApprovalTimeout = d.box(), time.Hour
	in.Decide = deciding(0, true)
	return &in
}

// approvingOnly approves one call. For the other calls, it decides as others.
func approvingOnly(
	callID string, others func(context.Context, loop.Approval) (*loop.Decision, error),
) func(context.Context, loop.Approval) (*loop.Decision, error) {
	approve := deciding(0, true)
	return func(ctx context.Context, a loop.Approval) (*loop.Decision, error) {
		if a.CallID == callID {
			return approve(ctx, a)
		}
		return others(ctx, a)
	}
}

// undo runs a Turn that undoes calls.
func undo(t *testing.T, j journal.Journal, in *turn.Input) *turn.Result {
	t.Helper()
	result, err := engine(j).Run(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if result.Counts.ModelRequests > 0 || result.Counts.Steps > 0 {
		t.Errorf("%d requests and %d steps, want none: no model is asked", result.Counts.ModelRequests, result.Counts.Steps)
	}
	return result
}

// noSuchTurn returns the message for a Turn that does not exist, or that belongs to another namespace or Agent.
func noSuchTurn(uid string) string {
	return fmt.Sprintf("Turn spec.undo.turnUID: there is no journal of a Turn %q of this namespace and this Agent: "+
		"it may have been deleted, or the Turn is of another Agent", uid)
}

// reportOfRest returns the lines of the report about n calls that are not undone. Calls with an odd number have no
// compensation, and the other calls were not selected.
func reportOfRest(n int) string {
	var b strings.Builder
	for i := n; i > 0; i-- {
		if i%2 == 0 {
			fmt.Fprintf(&b, "open (call c%d): not undone: it was not selected\n", i)
			continue
		}
		fmt.Fprintf(&b, "mail (call c%d): not undone: the ToolServer declared no compensation for the tool when the call was made\n", i)
	}
	return b.String()
}

// TestUndo checks which calls of a Turn are undone, in which order, and the report about each call.
func TestUndo(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		calls   []string
		ids     []string
		change  func(*turn.Input, *desk)
		stop    turn.Stop
		message string
		closed  []string
		text    string
	}{
		"all": {
			reason: "the newest call is undone first", calls: []string{"a", "look:x", "b"},
			stop: turn.StopUndone, message: `all 2 calls of the turn "first" are undone`, closed: []string{"T-b", "T-a"},
			text: "open (call c3): undone by close\nopen (call c1): undone by close\n",
		},
		"one": {
			reason: "only the selected call is undone", calls: []string{"a", "mail:x", "b"}, ids: []string{"c1"},
			stop: turn.StopUndoIncomplete, closed: []string{"T-a"},
			message: `2 of 3 calls of the turn "first" are not undone (c3, c2): the result has the reasons`,
			text: "open (call c3): not undone: it was not selected\n" +
				"mail (call c2): not undone: the ToolServer declared no compensation for the tool when the call was made\n" +
				"open (call c1): undone by close\n",
		},
		"all, by their IDs": {
			reason: "no call is left", calls: []string{"a", "look:x", "b"}, ids: []string{"c3", "c1"},
			stop: turn.StopUndone, message: `all 2 calls of the turn "first" are undone`, closed: []string{"T-b", "T-a"},
			text: "open (call c3): undone by close\nopen (call c1): undone by close\n",
		},
		"many": {
			reason: "the message names 10 calls, and the result all", calls: slices.Repeat([]string{"mail:x", "a"}, 12),
			ids:  []string{"c24"},
			stop: turn.StopUndoIncomplete, closed: []string{"T-a"},
			message: `23 of 24 calls of the turn "first" are not undone (c23, c22, c21, c20, c19, c18, c17, c16, c15, c14 and 13 more): ` +
				"the result has the reasons",
			text: "open (call c24): undone by close\n" + reportOfRest(23),
		},
		"nothing": {
			reason: "a call that only reads leaves nothing to undo", calls: []string{"look:x"},
			stop: turn.StopUndone, message: `the turn "first" has no call that changed something: there is nothing to undo`,
		},
		"calls that cannot be undone": {
			reason: "the other call is undone", calls: []string{"a", "mail:x", "late", "odd"},
			stop: turn.StopUndoIncomplete, closed: []string{"T-a"},
			message: `3 of 4 calls of the turn "first" are not undone (c4, c3, c2): the result has the reasons`,
			text: "open (call c4): not undone: argument \"id\" of the tool \"close\": a value that its expression names is missing " +
				"from the call and its result, or has another type\n" +
				"open (call c3): not undone: its outcome is unknown: check whether it took effect\n" +
				"mail (call c2): not undone: the ToolServer declared no compensation for the tool when the call was made\n" +
				"open (call c1): undone by close\n",
		},
		"failed calls that may have taken effect": {
			reason:  "a failure of an idempotent tool is reported unless it is certain",
			calls:   []string{"set:late", "set:none", "set:broken", "set:twice"},
			stop:    turn.StopUndoIncomplete,
			message: `3 of 3 calls of the turn "first" are not undone (c4, c3, c1): the result has the reasons`,
			text: "set (call c4): not undone: it may have taken effect before it failed: check what \"set\" has changed\n" +
				"set (call c3): not undone: it may have taken effect before it failed: check what \"set\" has changed\n" +
				"set (call c1): not undone: it may have taken effect before it failed: check what \"set\" has changed\n",
		},
		"a failure": {
			reason: "the calls after it are not undone", calls: []string{"a", "b", "c"},
			change: func(_ *turn.Input, d *desk) {
				d.fail = func(id string) error {
					if id == "T-b" {
						return &tool.Error{Class: tool.Failed, Message: "it is locked"}
					}
					return nil
				}
			},
			stop: turn.StopUndoIncomplete, message: `2 of 3 calls of the turn "first" are not undone (c2, c1): the result has the reasons`,
			closed: []string{"T-c"},
			text: "open (call c3): undone by close\n" +
				"open (call c2): not undone: it is locked\n" +
				"open (call c1): not undone: the tool was not called, because the call \"c2\" before it did not succeed\n",
		},
		"a denial": {
			reason: "each call requires approval", calls: []string{"a", "b"},
			change:  func(in *turn.Input, _ *desk) { in.Decide = deciding(0, false) },
			stop:    turn.StopUndoIncomplete,
			message: `2 of 2 calls of the turn "first" are not undone (c2, c1): the result has the reasons`,
			text: "open (call c2): not undone: alice has denied this call (because)\n" +
				"open (call c1): not undone: alice has denied this call (because)\n",
		},
		"a denial of the newest call": {
			reason: "the older call is not undone, although it is approved", calls: []string{"a", "b"},
			change:  func(in *turn.Input, _ *desk) { in.Decide = approvingOnly("c1", deciding(0, false)) },
			stop:    turn.StopUndoIncomplete,
			message: `2 of 2 calls of the turn "first" are not undone (c2, c1): the result has the reasons`,
			text: "open (call c2): not undone: alice has denied this call (because)\n" +
				"open (call c1): not undone: the tool was not called, because the call \"c2\" before it did not succeed\n",
		},
		"the newest call expires": {
			reason: "the older call is not undone, although it is approved", calls: []string{"a", "b"},
			change: func(in *turn.Input, _ *desk) {
				in.Limits.ApprovalTimeout = 0
				in.Decide = approvingOnly("c1", deciding(1, true))
			},
			stop: turn.StopUndoIncomplete, message: `2 of 2 calls of the turn "first" are not undone (c2, c1): the result has the reasons`,
			text: "open (call c2): not undone: this call was not approved in time\n" +
				"open (call c1): not undone: the tool was not called, because the call \"c2\" before it did not succeed\n",
		},
		"no tool": {
			reason: "the server no longer has the tool", calls: []string{"a"},
			change: func(in *turn.Input, d *desk) {
				b := d.box()
				b.offers[0].Tools = slices.DeleteFunc(b.offers[0].Tools, func(t tool.Tool) bool { return t.Name == "close" })
				in.Toolbox = b
			},
			stop: turn.StopUndoIncomplete, message: `1 of 1 calls of the turn "first" are not undone (c1): the result has the reasons`,
			text: "open (call c1): not undone: the Agent has no usable tool \"close\" of ToolServer \"desk\" now: the server may not be " +
				"reachable, or has changed\n",
		},
		"another server": {
			reason: "another server has the same name", calls: []string{"a"},
			change: func(in *turn.Input, d *desk) {
				b := d.box()
				b.offers[0].UID = "other"
				in.Toolbox = b
			},
			stop: turn.StopUndoIncomplete, message: `1 of 1 calls of the turn "first" are not undone (c1): the result has the reasons`,
			text: "open (call c1): not undone: the ToolServer \"desk\" was replaced by another one with the same name\n",
		},
		"limit of calls": {
			reason: "the limits of a Turn apply", calls: []string{"a", "b"},
			change: func(in *turn.Input, _ *desk) { in.Limits.MaxToolCalls = 1 },
			stop:   turn.StopUndoIncomplete, message: `1 of 2 calls of the turn "first" are not undone (c1): the result has the reasons`,
			closed: []string{"T-b"},
			text: "open (call c2): undone by close\n" +
				"open (call c1): not undone: the turn has used all of its 1 tool calls\n",
		},
		"read-only policy": {
			reason: "the Agent's policy applies", calls: []string{"a"},
			change: func(in *turn.Input, _ *desk) { in.Policy.ReadOnly = true },
			stop:   turn.StopUndoIncomplete, message: `1 of 1 calls of the turn "first" are not undone (c1): the result has the reasons`,
			text: "open (call c1): not undone: this turn may call only read-only tools, and \"close\" is not read-only\n",
		},
		"another namespace": {
			reason: "its journal must not be readable", calls: []string{"a"},
			change:  func(in *turn.Input, _ *desk) { in.Namespace = "other" },
			stop:    turn.StopPreparationError,
			message: noSuchTurn("uid"),
		},
		"another agent": {
			reason: "its tools may differ", calls: []string{"a"},
			change:  func(in *turn.Input, _ *desk) { in.About.Agent = "other" },
			stop:    turn.StopPreparationError,
			message: noSuchTurn("uid"),
		},
		"no journal": {
			reason: "it was deleted", calls: []string{"a"},
			change:  func(in *turn.Input, _ *desk) { in.Undo.TurnUID = "none" },
			stop:    turn.StopPreparationError,
			message: noSuchTurn("none"),
		},
		"an unknown call": {
			reason: "the call with this ID changed nothing", calls: []string{"a", "look:x"}, ids: []string{"c2"},
			stop: turn.StopPreparationError,
			message: `Turn spec.undo.calls: the Turn "first" has no call "c2" that may have changed something: ` +
				"capstan logs lists its calls",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for store, open := range journals {
				j, d := open(t), &desk{}
				runCalls(t, j, d, tc.calls...)
				in := undoInput(d, "undo-uid", tc.ids...)
				if tc.change != nil {
					tc.change(in, d)
				}
				result := undo(t, j, in)
				if result.Stop != tc.stop || result.Message != tc.message {
					t.Errorf("%s: %s: stop %s: %s\nwant %s: %s", store, tc.reason, result.Stop, result.Message, tc.stop, tc.message)
				}
				if diff := cmp.Diff(tc.text, result.Text); diff != "" {
					t.Errorf("%s: text: -want +got:\n%s", store, diff)
				}
				if diff := cmp.Diff(tc.closed, d.closed); diff != "" {
					t.Errorf("%s: closed tickets: -want +got:\n%s", store, diff)
				}
				if tc.stop == turn.StopUndone && len(tc.closed) > 0 {
					again := undo(t, j, undoInput(d, "again-uid", tc.ids...))
					if again.Stop != turn.StopUndone || len(d.closed) != len(tc.closed) ||
						!strings.Contains(again.Text, `the Turn "undo-uid" has undone`) {
						t.Errorf("%s: a second Turn: %+v, closed %v; want no compensation twice", store, again, d.closed)
					}
				}
			}
		})
	}
}

// correctedTo returns a tool whose owner has corrected its effect.
func correctedTo(effect tool.Effect) []tool.Tool {
	return []tool.Tool{named("set", effect, func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{Content: "done"}, nil
	})}
}

// TestUndoOfACallThatWasCutOff checks that a call of an idempotent tool whose result is missing is reported, because it
// may have taken effect.
func TestUndoOfACallThatWasCutOff(t *testing.T) {
	const want = "set (call c1): not undone: it may have taken effect before it failed: check what \"set\" has changed\n"
	for name, tc := range map[string]struct {
		reason string
		// during is called during the call. It returns the result of the call.
		during func(ctx context.Context, ctl *controls) error
		// next changes the input of a next run. If it is nil, the first run ends the Turn.
		next func(*turn.Input)
		text string
		// effect is the effect of the tool in the first run. If it is empty, the tool is idempotent.
		effect tool.Effect
	}{
		"cancelled": {
			reason: "the Turn ended during the call",
			during: func(ctx context.Context, ctl *controls) error { ctl.cancel(); <-ctx.Done(); return ctx.Err() },
			text:   want,
		},
		"killed and cancelled": {
			reason: "no run has the result of the call",
			during: func(_ context.Context, ctl *controls) error { ctl.abandon(errKilled); return errKilled },
			next:   func(in *turn.Input) { in.Cancel = cancelled() },
			text:   want,
		},
		"killed and refused": {
			reason: "the tool no longer exists, so the call cannot be repeated",
			during: func(_ context.Context, ctl *controls) error { ctl.abandon(errKilled); return errKilled },
			next:   func(in *turn.Input) { in.Tools = nil },
			text:   want,
		},
		"killed and failed": {
			reason: "the second attempt failed with certainty, but not the first one",
			during: func(_ context.Context, ctl *controls) error { ctl.abandon(errKilled); return errKilled },
			next: func(in *turn.Input) {
				in.Tools = []tool.Tool{named("set", tool.Idempotent, func(context.Context, tool.Call) (tool.Result, error) {
					return tool.Result{}, &tool.Error{Class: tool.Failed, Message: "no"}
				})}
			},
			text: want,
		},
		"killed while it only reads": {
			reason: "a read-only call changed nothing", effect: tool.ReadOnly,
			during: func(_ context.Context, ctl *controls) error { ctl.abandon(errKilled); return errKilled },
			next:   func(in *turn.Input) { in.Cancel = cancelled() },
		},
		"killed before the owner says that it destroys": {
			reason: "the first attempt was made as read-only by mistake", effect: tool.ReadOnly,
			during: func(_ context.Context, ctl *controls) error { ctl.abandon(errKilled); return errKilled },
			next:   func(in *turn.Input) { in.Tools = correctedTo(tool.Destructive) },
			text:   "set (call c1): not undone: its outcome is unknown: check whether it took effect\n",
		},
		"killed before the owner says that it changes something": {
			reason: "the second attempt was made with the correct effect", effect: tool.ReadOnly,
			during: func(_ context.Context, ctl *controls) error { ctl.abandon(errKilled); return errKilled },
			next:   func(in *turn.Input) { in.Tools = correctedTo(tool.Idempotent) },
			text:   "set (call c1): not undone: the ToolServer declared no compensation for the tool when the call was made\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			effect := tool.Idempotent
			if tc.effect != "" {
				effect = tc.effect
			}
			j := &journaltest.Store{}
			c, _ := candidate("p0", 1, answer{reply: calls("", call("c1", "set"))}, says("Done."))
			in := input(c)
			in.Namespace, in.Name, in.About.Agent = "shop", "first", "helper"
			ctx, ctl := control(t, &in)
			in.Tools = []tool.Tool{named("set", effect, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
				return tool.Result{}, tc.during(ctx, ctl)
			})}
			_, err := engine(j).Run(ctx, new(in))
			if tc.next != nil {
				in.Epoch, in.Cancel = 2, nil
				tc.next(&in)
				_, err = engine(j).Run(t.Context(), new(in))
			}
			if err != nil {
				t.Fatal(err)
			}
			result := undo(t, j, undoInput(&desk{}, "undo-uid"))
			if result.Text != tc.text || (result.Stop == turn.StopUndone) != (tc.text == "") {
				t.Errorf("%s: %s with %q, want %q", tc.reason, result.Stop, result.Text, tc.text)
			}
		})
	}
}

// TestUndoOfARunningTurn checks that only a Turn that has ended can be undone.
func TestUndoOfARunningTurn(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a")
	all := entries(t, j, "uid")
	open := copyOf(t, j, &journaltest.Store{}, len(all)-1)
	result := undo(t, open, undoInput(d, "undo-uid"))
	if want := `Turn spec.undo.turnUID: the Turn "first" has not ended: wait for its end, or cancel it`; result.Message != want {
		t.Errorf("message %q, want %q", result.Message, want)
	}
}

// TestUndoAfterAFailure checks that a second Turn repeats a compensation that failed, but not a compensation that may
// have taken effect.
func TestUndoAfterAFailure(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		err    error
		closed []string
		text   string
	}{
		"failed": {
			"no ticket was closed", &tool.Error{Class: tool.Failed, Message: "it is locked"},
			[]string{"T-a"},
			"open (call c1): undone by close\n",
		},
		"timeout": {
			"the ticket may have been closed", &tool.Error{Class: tool.Timeout, Message: "no result"}, nil,
			"open (call c1): not undone: the Turn \"undo-uid\" undoes the call, or has tried to with an unknown outcome: " +
				"see capstan logs undo-uid\n",
		},
		"unclassified": {
			"the ticket may have been closed", errors.New("reset"), nil,
			"open (call c1): not undone: the Turn \"undo-uid\" undoes the call, or has tried to with an unknown outcome: " +
				"see capstan logs undo-uid\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, d := &journaltest.Store{}, &desk{}
			runCalls(t, j, d, "a")
			d.fail = func(string) error { return tc.err }
			if first := undo(t, j, undoInput(d, "undo-uid")); first.Stop != turn.StopUndoIncomplete {
				t.Fatalf("the first Turn ended with %s: %s; want it incomplete", first.Stop, first.Message)
			}
			d.fail = nil
			second := undo(t, j, undoInput(d, "second-uid"))
			// A call of an unknown outcome must not be reported as undone.
			if complete := second.Stop != turn.StopUndoIncomplete; complete != (len(tc.closed) > 0) {
				t.Errorf("%s: the second Turn ended with %s: %s", tc.reason, second.Stop, second.Message)
			}
			if diff := cmp.Diff(tc.text, second.Text); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.closed, d.closed); diff != "" {
				t.Errorf("closed tickets: -want +got:\n%s", diff)
			}
		})
	}
}

// forgetful is a journal whose answer to the append of a mark is lost.
type forgetful struct {
	journal.Journal
	lost int
}

// Append appends, and reports an error for the first mark.
func (f *forgetful) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	err := f.Journal.Append(ctx, uid, all...)
	if err == nil && all[0].Kind == journal.UndoBegun && f.lost == 0 {
		f.lost++
		return errors.New("the connection was lost")
	}
	return err
}

// TestUndoAfterTheLostAnswerToAMark checks that a second Turn undoes a call if the first Turn has written its mark, but
// does not know it, and so has not called the tool.
func TestUndoAfterTheLostAnswerToAMark(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a")
	f := &forgetful{Journal: j}
	e := engine(f)
	e.Patience = time.Nanosecond // as if the time of the call was over
	first, err := e.Run(t.Context(), undoInput(d, "undo-uid"))
	if err != nil || first.Stop != turn.StopUndoIncomplete || f.lost != 1 || len(d.closed) > 0 {
		t.Fatalf("the first Turn ended with %+v, %v after %d lost answers, closed %v; want no call", first, err, f.lost, d.closed)
	}
	if second := undo(t, j, undoInput(d, "second-uid")); second.Stop != turn.StopUndone || !slices.Equal(d.closed, []string{"T-a"}) {
		t.Errorf("the second Turn ended with %s: %s, closed %v; want the call undone", second.Stop, second.Text, d.closed)
	}
}

// lateMarks is a journal in which the first mark arrives only after its Turn has stopped to wait for it.
type lateMarks struct {
	journal.Journal
	late []journal.Entry
}

// Append keeps the first mark, and reports an error for it.
func (l *lateMarks) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	if uid == "uid" && l.late == nil && all[len(all)-1].Kind == journal.UndoBegun {
		l.late = all
		return errors.New("the connection was lost")
	}
	return l.Journal.Append(ctx, uid, all...)
}

// TestLateMarkBesideAnAbandonedMark checks that a mark whose write has failed cannot arrive later, also if the newest
// mark is one that another Turn has abandoned.
func TestLateMarkBesideAnAbandonedMark(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a")
	var keys []string
	killedDuringClose(t, j, d, "other-uid", &keys, true)
	l := &lateMarks{Journal: j}
	e := engine(l)
	e.Patience = time.Nanosecond // as if the time of the call was over
	if first, err := e.Run(t.Context(), closingWith(d, "undo-uid", &keys, nil)); err != nil || first.Stop != turn.StopUndoIncomplete ||
		len(keys) != 1 || l.late == nil {
		t.Fatalf("the Turn ended with %+v, %v after calls with the keys %q; want no call", first, err, keys)
	}
	if err := j.Append(t.Context(), "uid", l.late...); err == nil {
		t.Error("the late mark was added, want an error because the outcome has its place")
	}
}

// TestUndoAfterTheTimeOfACall checks whether a second Turn repeats a compensation that failed when its time was over:
// only if the tool was certainly not reached.
func TestUndoAfterTheTimeOfACall(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		closed []string
	}{
		"not reached":  {&tool.Error{Class: tool.Unavailable, Message: "the call was not made"}, []string{"T-a"}},
		"cut off":      {&tool.Error{Class: tool.Timeout, Message: "no result"}, nil},
		"unclassified": {context.DeadlineExceeded, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j, d := &journaltest.Store{}, &desk{}
				runCalls(t, j, d, "a")
				in := undoInput(d, "undo-uid")
				b := in.Toolbox.(*box)
				b.do["close"] = func(ctx context.Context, _ tool.Call) (tool.Result, error) {
					<-ctx.Done()
					return tool.Result{}, tc.err
				}
				for i := range b.offers[0].Tools {
					b.offers[0].Tools[i].Timeout = time.Millisecond
				}
				if first := undo(t, j, in); first.Stop != turn.StopUndoIncomplete {
					t.Fatalf("the first Turn ended with %s: %s; want it incomplete", first.Stop, first.Message)
				}
				second := undo(t, j, undoInput(d, "second-uid"))
				if diff := cmp.Diff(tc.closed, d.closed); diff != "" {
					t.Errorf("the second Turn reports %q; closed tickets: -want +got:\n%s", second.Text, diff)
				}
			})
		})
	}
}

// TestUndoAfterACompensationThatWasCutOff checks whether a second Turn makes a compensation during which the process of
// the first Turn was killed: only if the tool may be called again, and the first Turn does not do so itself.
func TestUndoAfterACompensationThatWasCutOff(t *testing.T) {
	effect := func(of tool.Effect) func(*turn.Input) {
		return func(in *turn.Input) {
			for i := range in.Toolbox.(*box).offers[0].Tools {
				if one := &in.Toolbox.(*box).offers[0].Tools[i]; one.Name == "close" {
					one.Effect = of
				}
			}
		}
	}
	says := func(hasEnded bool) func(*turn.Input) {
		return func(in *turn.Input) {
			in.HasEnded = func(_ context.Context, name, uid string) (bool, error) {
				if name != "undo-uid" || uid != "undo-uid" {
					t.Errorf("HasEnded was called for Turn %s with UID %s", name, uid)
				}
				return hasEnded, nil
			}
		}
	}
	const (
		undone  = "open (call c1): undone by close\n"
		blocked = "open (call c1): not undone: the Turn \"undo-uid\" undoes the call, or has tried to with an unknown outcome: " +
			"see capstan logs undo-uid\n"
		refused = "open (call c1): not undone: the tool was not called: the Turn \"undo-uid\" undoes the call, or has tried to with " +
			"an unknown outcome: see capstan logs undo-uid\n"
	)
	for name, tc := range map[string]struct {
		effect tool.Effect
		// cancel cancels the first Turn before it continues. second changes the input of the second Turn.
		cancel bool
		second []func(*turn.Input)
		text   string
	}{
		"cancelled":                     {tool.Idempotent, true, nil, undone},
		"deleted":                       {tool.Idempotent, false, []func(*turn.Input){says(true)}, undone},
		"it continues":                  {tool.Idempotent, false, nil, blocked},
		"it continues in a cluster":     {tool.Idempotent, false, []func(*turn.Input){says(false)}, blocked},
		"cancelled, not repeatable":     {tool.Destructive, true, nil, blocked},
		"deleted, not repeatable":       {tool.Destructive, false, []func(*turn.Input){says(true)}, blocked},
		"no longer declared repeatable": {tool.Idempotent, true, []func(*turn.Input){effect(tool.Destructive)}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			j, d := &journaltest.Store{}, &desk{}
			runCalls(t, j, d, "a")
			first := undoInput(d, "undo-uid")
			effect(tc.effect)(first)
			ctx, ctl := control(t, first)
			first.Toolbox.(*box).do["close"] = func(context.Context, tool.Call) (tool.Result, error) {
				ctl.abandon(errKilled)
				return tool.Result{}, errKilled
			}
			if _, err := engine(j).Run(ctx, first); !errors.Is(err, errKilled) {
				t.Fatalf("the first run ended with %v, want it killed", err)
			}
			if tc.cancel {
				again := undoInput(d, "undo-uid")
				effect(tc.effect)(again)
				again.Epoch, again.Cancel = 2, cancelled()
				want := "open (call c1): not undone: the turn ended during the call\n"
				if tc.effect == tool.Destructive {
					want = "open (call c1): not undone: the outcome of this call is unknown: the turn ended during the call\n"
				}
				if diff := cmp.Diff(want, undo(t, j, again).Text); diff != "" {
					t.Errorf("the report of the cancelled Turn: -want +got:\n%s", diff)
				}
			}
			second := undoInput(d, "second-uid")
			for _, change := range append([]func(*turn.Input){effect(tc.effect)}, tc.second...) {
				change(second)
			}
			result := undo(t, j, second)
			if diff := cmp.Diff(tc.text, result.Text); diff != "" || (len(d.closed) == 1) != (tc.text == undone) {
				t.Errorf("closed %v, and the report of the second Turn: -want +got:\n%s", d.closed, diff)
			}
			if tc.text == undone {
				key := func(uid string) string {
					return payloadsOf[loop.Intent](t, j, uid, journal.ToolIntended)[0].IdempotencyKey
				}
				if was, is := key("undo-uid"), key("second-uid"); was != is {
					t.Errorf("the second Turn has the key %q, want that of the first Turn, %q", is, was)
				}
			}
		})
	}
}

// closingWith returns the input of a Turn that undoes calls, with an idempotent tool. The tool adds its idempotency key
// to keys, and returns err.
func closingWith(d *desk, uid string, keys *[]string, err error) *turn.Input {
	in := undoInput(d, uid)
	b := in.Toolbox.(*box)
	b.do["close"] = func(_ context.Context, c tool.Call) (tool.Result, error) {
		*keys = append(*keys, c.IdempotencyKey)
		return tool.Result{Content: "closed"}, err
	}
	for i := range b.offers[0].Tools {
		if t := &b.offers[0].Tools[i]; t.Name == "close" {
			t.Effect = tool.Idempotent
		}
	}
	return in
}

// TestUndoKeepsTheKey checks that a Turn which repeats a compensation that may have taken effect uses the same
// idempotency key, so that the server can recognize it. After a certain failure the key differs, because the server may
// remember the failure.
func TestUndoKeepsTheKey(t *testing.T) {
	timeout := &tool.Error{Class: tool.Timeout, Message: "no result"}
	failed := &tool.Error{Class: tool.Failed, Message: "it is locked"}
	unreached := &tool.Error{Class: tool.Unavailable, Message: "the call was not made"}
	for name, tc := range map[string]struct {
		// errs are the errors of the Turns before the last Turn, whose compensation succeeds.
		errs []error
		// same is true for each Turn, after the first one, whose key is that of the Turn before.
		same []bool
	}{
		"timeout":                  {[]error{timeout}, []bool{true}},
		"unclassified":             {[]error{errors.New("reset")}, []bool{true}},
		"failed":                   {[]error{failed}, []bool{false}},
		"timeout and failed":       {[]error{timeout, failed}, []bool{true, true}},
		"timeout and not reached":  {[]error{timeout, unreached, timeout}, []bool{true, true, true}},
		"failed and then timeouts": {[]error{failed, timeout, timeout}, []bool{false, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			j, d := &journaltest.Store{}, &desk{}
			runCalls(t, j, d, "a")
			var keys []string
			for i, err := range append(tc.errs, nil) {
				result := undo(t, j, closingWith(d, fmt.Sprintf("undo-%d", i), &keys, err))
				if done := result.Stop == turn.StopUndone; done != (err == nil) {
					t.Fatalf("Turn %d ended with %s: %s", i, result.Stop, result.Text)
				}
				intent := payloadsOf[loop.Intent](t, j, fmt.Sprintf("undo-%d", i), journal.ToolIntended)[0]
				if intent.IdempotencyKey != keys[i] {
					t.Errorf("the journal has the key %q, and the server received %q", intent.IdempotencyKey, keys[i])
				}
			}
			for i, same := range tc.same {
				if (keys[i] == keys[i+1]) != same {
					t.Errorf("the keys are %q; is key %d that of the Turn before: want %t", keys, i+1, same)
				}
			}
		})
	}
}

// killedDuringClose runs a Turn that undoes calls with an idempotent tool, and kills the process during the first
// compensation. If cancel is true, another run then cancels the Turn.
func killedDuringClose(t *testing.T, j journal.Journal, d *desk, uid string, keys *[]string, cancel bool, ids ...string) {
	t.Helper()
	in := closingWith(d, uid, keys, errKilled)
	in.Undo.Calls = ids
	ctx, ctl := control(t, in)
	closing := in.Toolbox.(*box).do["close"]
	in.Toolbox.(*box).do["close"] = func(ctx context.Context, c tool.Call) (tool.Result, error) {
		ctl.abandon(errKilled)
		return closing(ctx, c)
	}
	if _, err := engine(j).Run(ctx, in); !errors.Is(err, errKilled) {
		t.Fatalf("the run of %s ended with %v, want it killed", uid, err)
	}
	if cancel {
		again := closingWith(d, uid, keys, nil)
		again.Undo.Calls, again.Epoch, again.Cancel = ids, 2, cancelled()
		undo(t, j, again)
	}
}

// TestUndoKeepsTheKeyOfAnAbandonedMark checks that the key of a compensation that was cut off is still used after a
// second Turn did not reach the tool.
func TestUndoKeepsTheKeyOfAnAbandonedMark(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a")
	var keys []string
	killedDuringClose(t, j, d, "undo-uid", &keys, true)
	undo(t, j, closingWith(d, "second-uid", &keys, &tool.Error{Class: tool.Unavailable, Message: "the call was not made"}))
	third := undo(t, j, closingWith(d, "third-uid", &keys, nil))
	if third.Stop != turn.StopUndone || len(keys) != 3 || keys[0] != keys[1] || keys[0] != keys[2] {
		t.Errorf("the third Turn ended with %s: %s, after calls with the keys %q; want one key", third.Stop, third.Text, keys)
	}
}

// failingRead is a journal whose read of the journal of the Turn to undo fails once.
type failingRead struct {
	journal.Journal
	failAt, reads int
}

// Read fails at the read with the number failAt.
func (f *failingRead) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	if uid == "uid" {
		if f.reads++; f.reads == f.failAt {
			return func(yield func(journal.Entry, error) bool) {
				yield(journal.Entry{}, errors.New("the connection was lost"))
			}
		}
	}
	return f.Journal.Read(ctx, uid, after)
}

// TestUndoKeepsTheKeyIfAMarkCannotBeRead checks that a compensation which was cut off may have taken effect, although
// the second attempt could not read the marks and so did not call the tool.
func TestUndoKeepsTheKeyIfAMarkCannotBeRead(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a")
	var keys []string
	killedDuringClose(t, j, d, "undo-uid", &keys, false)
	again := closingWith(d, "undo-uid", &keys, nil)
	again.Epoch = 2
	// The first read looks for outcomes, and the second one precedes the call.
	if first := undo(t, &failingRead{Journal: j, failAt: 2}, again); first.Stop != turn.StopUndoIncomplete || len(keys) != 1 {
		t.Fatalf("the first Turn ended with %s: %s, after calls with the keys %q; want no second call", first.Stop, first.Text, keys)
	}
	second := undo(t, j, closingWith(d, "second-uid", &keys, nil))
	if second.Stop != turn.StopUndone || len(keys) != 2 || keys[0] != keys[1] {
		t.Errorf("the second Turn ended with %s: %s, after calls with the keys %q; want the same key", second.Stop, second.Text, keys)
	}
}

// TestUndoAsksOnlyAboutTheTurnOfTheMark checks that a Turn looks up another Turn only if that Turn has the newest mark
// of the same call. The other Turn is killed during its compensation while this Turn waits for approval.
func TestUndoAsksOnlyAboutTheTurnOfTheMark(t *testing.T) {
	for name, tc := range map[string]struct{ other, text string }{
		"another call": {"c2", "open (call c1): undone by close\n"},
		"the same call": {
			"c1", "open (call c1): not undone: the tool was not called, because it is unknown whether the Turn \"other-uid\", which has " +
				"tried to undo the call, has ended\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, d := &journaltest.Store{}, &desk{}
			runCalls(t, j, d, "a", "b")
			var keys []string
			in := closingWith(d, "undo-uid", &keys, nil)
			in.Undo.Calls = []string{"c1"}
			in.HasEnded = func(context.Context, string, string) (bool, error) {
				return false, errors.New("the API server does not answer")
			}
			decide, killOther := in.Decide, func() { killedDuringClose(t, j, d, "other-uid", &keys, false, tc.other) }
			in.Decide = func(ctx context.Context, a loop.Approval) (*loop.Decision, error) {
				killOther()
				return decide(ctx, a)
			}
			if result := undo(t, j, in); !strings.HasSuffix(result.Text, tc.text) {
				t.Errorf("text %q, want %q at its end", result.Text, tc.text)
			}
		})
	}
}

// keyless is a journal of an older version, which writes no keys into the marks at the beginning of a compensation.
type keyless struct{ journal.Journal }

// Append appends, without the key of a mark.
func (k keyless) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	if uid == "uid" && all[len(all)-1].Kind == journal.UndoBegun {
		var m turn.UndoMark
		last := &all[len(all)-1]
		if err := json.Unmarshal(last.Payload, &m); err != nil {
			return err
		}
		m.Key = ""
		data, err := json.Marshal(m)
		if err != nil {
			return err
		}
		last.Payload = data
	}
	return k.Journal.Append(ctx, uid, all...)
}

// TestUndoKeepsTheKeyOfAMarkOfAnOlderVersion checks that the key of a compensation is known if an older version has
// written its mark, and this version its outcome.
func TestUndoKeepsTheKeyOfAMarkOfAnOlderVersion(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a")
	var keys []string
	killedDuringClose(t, keyless{j}, d, "undo-uid", &keys, false)
	if m := payloadsOf[turn.UndoMark](t, j, "uid", journal.UndoBegun); len(m) != 1 || m[0].Key != "" {
		t.Fatalf("marks %+v, want one without a key", m)
	}
	again := closingWith(d, "undo-uid", &keys, &tool.Error{Class: tool.Timeout, Message: "no result"})
	again.Epoch = 2
	undo(t, j, again)
	second := undo(t, j, closingWith(d, "second-uid", &keys, nil))
	if second.Stop != turn.StopUndone || len(keys) != 3 || keys[1] != keys[2] {
		t.Errorf("the second Turn ended with %s: %s, after calls with the keys %q; want one key", second.Stop, second.Text, keys)
	}
}

// TestUndoAfterAnotherAttempt lets another Turn try a compensation, with an unknown outcome, while a Turn waits for
// approval. The waiting Turn has another key, so it must not make the compensation.
func TestUndoAfterAnotherAttempt(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a")
	var keys []string
	in := closingWith(d, "undo-uid", &keys, nil)
	decide := in.Decide
	tryFirst := func() {
		undo(t, j, closingWith(d, "other-uid", &keys, &tool.Error{Class: tool.Timeout, Message: "no result"}))
	}
	in.Decide = func(ctx context.Context, a loop.Approval) (*loop.Decision, error) {
		tryFirst()
		return decide(ctx, a)
	}
	result := undo(t, j, in)
	const want = "open (call c1): not undone: the tool was not called, because another turn has tried to undo the call since this " +
		"turn began\n"
	if result.Text != want || len(keys) != 1 {
		t.Errorf("text %q after the calls %q; want %q, and only the call of the other Turn", result.Text, keys, want)
	}
	if last := undo(t, j, closingWith(d, "last-uid", &keys, nil)); last.Stop != turn.StopUndone || keys[0] != keys[1] {
		t.Errorf("the last Turn ended with %s after the calls %q, want the same key twice", last.Text, keys)
	}
}

// TestUndoOfACallThatAnotherTurnHasUndone lets another Turn undo the newest call while a Turn waits for approval. The
// waiting Turn does not make this compensation, counts the call as undone, and undoes the older calls.
func TestUndoOfACallThatAnotherTurnHasUndone(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a", "b", "c")
	in := undoInput(d, "undo-uid")
	decide, undoFirst := in.Decide, sync.OnceFunc(func() { undo(t, j, undoInput(d, "other-uid", "c3")) })
	in.Decide = func(ctx context.Context, a loop.Approval) (*loop.Decision, error) {
		undoFirst()
		return decide(ctx, a)
	}
	result := undo(t, j, in)
	const want = "open (call c3): the Turn \"other-uid\" has undone the call\nopen (call c2): undone by close\n" +
		"open (call c1): undone by close\n"
	if result.Text != want || result.Stop != turn.StopUndone {
		t.Errorf("the Turn ended with %s: %q, want %q", result.Stop, result.Text, want)
	}
	const data = `{"callID":"c3","tool":"open","by":"close","undone":true,"reason":"the Turn \"other-uid\" has undone the call"}`
	if !strings.Contains(string(result.Data), data) {
		t.Errorf("the data are %s, want %s in them", result.Data, data)
	}
	if !slices.Equal(d.closed, []string{"T-c", "T-b", "T-a"}) {
		t.Errorf("closed %v, want each ticket once", d.closed)
	}
}

// TestUndoOfACallThatAnotherTurnHasUndoneAfterAKill kills a Turn before it marks a call, and lets another Turn undo
// this call. The Turn that continues counts the call as undone.
func TestUndoOfACallThatAnotherTurnHasUndoneAfterAKill(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a", "b")
	in := undoInput(d, "undo-uid")
	ctx, ctl := control(t, in)
	killed := &unmarked{Journal: j, kill: func() { ctl.abandon(errKilled) }}
	if _, err := engine(killed).Run(ctx, in); !errors.Is(err, errKilled) {
		t.Fatalf("the run ended with %v, want it killed", err)
	}
	undo(t, j, undoInput(d, "other-uid", "c2"))
	again := undoInput(d, "undo-uid")
	again.Epoch = 2
	result := undo(t, j, again)
	const want = "open (call c2): the Turn \"other-uid\" has undone the call\nopen (call c1): undone by close\n"
	if result.Text != want || !slices.Equal(d.closed, []string{"T-b", "T-a"}) {
		t.Errorf("closed %v, and the report is %q; want each ticket once, and %q", d.closed, result.Text, want)
	}
}

// unmarked is a journal whose process is killed at the first mark, which is not written.
type unmarked struct {
	journal.Journal
	kill func()
}

// Append kills the process instead of appending a mark.
func (u *unmarked) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	if uid == "uid" {
		u.kill()
		return errKilled
	}
	return u.Journal.Append(ctx, uid, all...)
}

// TestUndoKeepsTheDeclaration checks that a later change of the ToolServer does not change the compensation of a call.
func TestUndoKeepsTheDeclaration(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	runCalls(t, j, d, "a")
	in := undoInput(d, "undo-uid")
	for i := range in.Toolbox.(*box).offers[0].Tools {
		in.Toolbox.(*box).offers[0].Tools[i].Compensation = &tool.Compensation{Tool: "mail"}
	}
	if undo(t, j, in); !slices.Equal(d.closed, []string{"T-a"}) {
		t.Errorf("closed %v, want the ticket of the call, by the compensation in the journal", d.closed)
	}
}

// killedStore is a journal of a process that is killed at one of its moments: before or after an append or a call.
type killedStore struct {
	journal.Journal
	mu      sync.Mutex
	moments int // the number of moments so far
	killAt  int // the moment at which the process is killed
	kill    func()
	dead    bool
}

func (m *killedStore) alive() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return false
	}
	if m.moments++; m.moments == m.killAt {
		m.dead = true
		m.kill()
	}
	return !m.dead
}

// Append appends if the process is alive.
func (m *killedStore) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	if !m.alive() {
		return errKilled
	}
	err := m.Journal.Append(ctx, uid, all...)
	if !m.alive() {
		return errKilled
	}
	return err
}

// TestUndoSurvivesKills kills the process between any two effects. No ticket may be closed twice.
func TestUndoSurvivesKills(t *testing.T) {
	for killAt := 1; ; killAt++ {
		j, d := &journaltest.Store{}, &desk{}
		runCalls(t, j, d, "a", "b")
		life, kill := context.WithCancelCause(t.Context())
		m := &killedStore{Journal: j, killAt: killAt, kill: func() { kill(errKilled) }}
		in := undoInput(d, "undo-uid")
		b := in.Toolbox.(*box)
		inner := b.do["close"]
		b.do["close"] = func(ctx context.Context, c tool.Call) (tool.Result, error) {
			if !m.alive() {
				return tool.Result{}, errKilled
			}
			result, err := inner(ctx, c)
			if !m.alive() {
				return tool.Result{}, errKilled
			}
			return result, err
		}
		_, err := engine(m).Run(life, in)
		kill(nil)
		if !m.dead {
			if err != nil || killAt < 15 {
				t.Fatalf("the process ended after %d moments with %v, want no error and at least 15 moments", killAt, err)
			}
			return
		}
		if err == nil {
			t.Fatalf("at %d: the process was killed, and Run returned no error", killAt)
		}
		in = undoInput(d, "undo-uid")
		in.Epoch = 2
		result := undo(t, j, in)
		third := undo(t, j, undoInput(d, "third-uid"))
		for _, id := range []string{"T-a", "T-b"} {
			n := 0
			for _, closed := range d.closed {
				if closed == id {
					n++
				}
			}
			if n > 1 {
				t.Errorf("at %d: %s was closed %d times", killAt, id, n)
			}
		}
		if result.Stop == turn.StopUndone && len(d.closed) != 2 {
			t.Errorf("at %d: %d tickets were closed, and the result is %s", killAt, len(d.closed), result.Text)
		}
		if result.Stop != turn.StopUndone && result.Counts.UnknownOutcomes != 1 {
			t.Errorf("at %d: the Turn ended with %s: %s", killAt, result.Stop, result.Text)
		}
		if third.Stop == turn.StopUndone && len(d.closed) != 2 && !strings.Contains(third.Text, "unknown outcome") {
			t.Errorf("at %d: the third Turn reports %s, and %v are closed", killAt, third.Text, d.closed)
		}
	}
}

// TestUndoReportsAgree kills the process between any two effects. The Turn that continues and a later Turn must agree
// about which calls are undone.
func TestUndoReportsAgree(t *testing.T) {
	for effect, fail := range map[tool.Effect]func(string) error{
		tool.Destructive: nil,
		tool.Idempotent:  nil,
		"":               func(string) error { return &tool.Error{Class: tool.Failed, Message: "it is locked"} },
	} {
		for killAt := 1; ; killAt++ {
			j, d := &journaltest.Store{}, &desk{}
			runCalls(t, j, d, "a")
			life, kill := context.WithCancelCause(t.Context())
			m := &killedStore{Journal: j, killAt: killAt, kill: func() { kill(errKilled) }}
			undoingWith := func(uid string) *turn.Input {
				in := undoInput(d, uid)
				for i := range in.Toolbox.(*box).offers[0].Tools {
					if offered := &in.Toolbox.(*box).offers[0].Tools[i]; offered.Name == "close" {
						offered.Effect = effect
					}
				}
				return in
			}
			d.fail = func(id string) error {
				if slices.Contains(d.closed, id) {
					return &tool.Error{Class: tool.Failed, Message: "it is closed"}
				}
				if fail != nil {
					return fail(id)
				}
				return nil
			}
			_, _ = engine(m).Run(life, undoingWith("undo-uid"))
			kill(nil)
			if !m.dead {
				break
			}
			last := journal.Kind("")
			if all := entries(t, j, "uid"); len(all) > 0 {
				last = all[len(all)-1].Kind
			}
			in := undoingWith("undo-uid")
			in.Epoch = 2
			first := undo(t, j, in)
			second := undo(t, j, undoingWith("second-uid"))
			again := strings.Contains(second.Text, "undone by close") // the second Turn had to undo the call itself
			if undone := first.Stop == turn.StopUndone; undone != (second.Stop == turn.StopUndone && !again) {
				t.Errorf("%q at %d, after %s: the Turn says %q, and the next Turn %q", effect, killAt, last, first.Text, second.Text)
			}
			if last == journal.UndoEnded && fail == nil && first.Stop != turn.StopUndone {
				t.Errorf("%q at %d: the call is undone, and the Turn says %q", effect, killAt, first.Text)
			}
			if last == journal.UndoEnded && strings.Contains(first.Text, "unknown") {
				t.Errorf("%q at %d: the outcome is known, and the Turn says %q", effect, killAt, first.Text)
			}
		}
	}
}

// readCounter counts the entries that are read from the journal of the Turn to undo. conflicts is the number of appends
// to this journal that fail because another entry is added at the same time.
type readCounter struct {
	journal.Journal
	read, conflicts int
}

// Read counts the entries.
func (c *readCounter) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for e, err := range c.Journal.Read(ctx, uid, after) {
			if uid == "uid" {
				c.read++
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// Append adds a mark of another Turn first if there are conflicts left.
func (c *readCounter) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	if uid == "uid" && c.conflicts > 0 {
		c.conflicts--
		other := all[0]
		other.Kind, other.Payload = journal.UndoBegun, json.RawMessage(`{"step":9,"callID":"other","turnUID":"other-uid"}`)
		if err := c.Journal.Append(ctx, uid, other); err != nil {
			return err
		}
	}
	return c.Journal.Append(ctx, uid, all...)
}

// TestUndoReadsTheOtherJournalOnce checks that a Turn does not read the whole journal again to write its marks.
func TestUndoReadsTheOtherJournalOnce(t *testing.T) {
	j, d := &journaltest.Store{}, &desk{}
	names := []string{"a", "b", "c", "d", "e"}
	runCalls(t, j, d, names...)
	whole := len(entries(t, j, "uid"))
	c := &readCounter{Journal: j, conflicts: 4}
	if result := undo(t, c, undoInput(d, "undo-uid")); result.Stop != turn.StopUndone || len(d.closed) != len(names) || c.conflicts > 0 {
		t.Fatalf("the Turn ended with %s: %s, closed %v, and %d conflicts are left", result.Stop, result.Text, d.closed, c.conflicts)
	}
	// Each mark and each conflict reads only the last known entry and the few after it.
	if limit := whole + 3*(2*len(names)+4); c.read > limit {
		t.Errorf("%d entries were read of a journal with %d, want at most %d", c.read, whole, limit)
	}
}

// deleting is a journal in which the journal of the Turn to undo is lost if gone is true.
type deleting struct {
	journal.Journal
	gone bool
}

// Read reads nothing of the lost journal.
func (d *deleting) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	if d.gone && uid == "uid" {
		return func(func(journal.Entry, error) bool) {}
	}
	return d.Journal.Read(ctx, uid, after)
}

// TestUndoOfADeletedJournal deletes the journal of the other Turn while the calls wait for approval. No call is made,
// because nothing would keep a second Turn from making the same call again.
func TestUndoOfADeletedJournal(t *testing.T) {
	m, d := &journaltest.Store{}, &desk{}
	runCalls(t, m, d, "a")
	j := &deleting{Journal: m}
	in := undoInput(d, "undo-uid")
	decide := in.Decide
	in.Decide = func(ctx context.Context, a loop.Approval) (*loop.Decision, error) {
		j.gone = true
		return decide(ctx, a)
	}
	result := undo(t, j, in)
	const want = "open (call c1): not undone: the tool was not called, because the journal of the turn to undo was deleted\n"
	if result.Text != want || len(d.closed) > 0 {
		t.Errorf("text %q, closed %v; want %q and no call", result.Text, d.closed, want)
	}
}

// TestConcurrentUndo lets several Turns undo the same calls at the same time. Each call is undone once.
func TestConcurrentUndo(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j, d := open(t), &desk{}
			runCalls(t, j, d, "a", "b", "c")
			var running sync.WaitGroup
			texts := make([]string, 4)
			for i := range texts {
				running.Go(func() {
					result, err := engine(j).Run(t.Context(), undoInput(d, fmt.Sprintf("undo-%d", i)))
					if err != nil {
						t.Errorf("Run: %v", err)
						return
					}
					texts[i] = result.Text
				})
			}
			running.Wait()
			for line := range strings.Lines(strings.Join(texts, "")) {
				if strings.Contains(line, "not undone") && strings.Contains(line, "has undone the call") {
					t.Errorf("a Turn reports %q, want that the call is undone", line)
				}
			}
			final := undo(t, j, undoInput(d, "last"))
			slices.Sort(d.closed)
			if !slices.Equal(d.closed, []string{"T-a", "T-b", "T-c"}) || final.Stop != turn.StopUndone {
				t.Errorf("closed %v, and the last Turn ended with %s: %s; want each ticket once", d.closed, final.Stop, final.Text)
			}
		})
	}
}

// TestUndoOfASubAgent checks the reason for a call of a sub-agent. The Turn of a sub-agent may have changed something
// before it failed.
func TestUndoOfASubAgent(t *testing.T) {
	for _, outcome := range []loop.Outcome{loop.Succeeded, loop.Failed} {
		t.Run(string(outcome), func(t *testing.T) { checkUndoOfASubAgent(t, outcome) })
	}
}

func checkUndoOfASubAgent(t *testing.T, outcome loop.Outcome) {
	t.Helper()
	r := turn.NewUndoReader()
	for _, e := range []struct {
		kind    journal.Kind
		payload any
	}{
		{journal.RunStarted, map[string]string{"namespace": "shop", "name": "first", "agent": "helper"}},
		{journal.ToolIntended, loop.Intent{Step: 1, CallID: "h1", Name: "ask", Effect: tool.Idempotent, Attempt: 1, Descendants: 3}},
		{journal.ToolFinished, loop.CallResult{Step: 1, CallID: "h1", Outcome: outcome, Spent: &tool.Spent{Turn: "child"}}},
	} {
		data, err := json.Marshal(e.payload)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Apply(journal.Entry{Kind: e.kind, Payload: data}); err != nil {
			t.Fatal(err)
		}
	}
	p := r.Plan("uid")
	if len(p.Calls) != 1 || p.Calls[0].State != turn.UndoImpossible || !strings.Contains(p.Calls[0].Reason, `its Turn "child"`) {
		t.Errorf("plan %+v, want the Turn of the sub-agent", p)
	}
}
