package executor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// sessionHarness is a Turn of the Session "one" that calls a sub-agent, then a tool, and then answers. Its sub-agent
// calls the tool, and then answers. The journals are in a file.
type sessionHarness struct {
	*Executor
	t     *testing.T
	path  string
	store *sqlite.Store
	// within maps the name of a Turn to a function that is called, with its run, while that Turn calls the tool.
	within map[string]func(*run)
	// billed is the number of tokens that the model has billed to each of the two Turns.
	billed map[string]int64
	runs   map[string]*run
}

// The names of the two Turns of a sessionHarness, as keys of billed and within.
const parent, child = "parent", "child"

func newSessionHarness(t *testing.T) *sessionHarness {
	t.Helper()
	h := &sessionHarness{
		t: t, path: filepath.Join(t.TempDir(), "journal.db"), billed: map[string]int64{}, runs: map[string]*run{},
		within: map[string]func(*run){},
	}
	objects := surroundings()
	support := objects[0].(*v1alpha1.Agent) //nolint:forcetypeassert // because a wrong type is a bug of this test
	helper := support.DeepCopy()
	helper.Name = "helper"
	support.Spec.Tools = []v1alpha1.AgentTool{{AgentRef: &v1alpha1.SharedReference{Name: "helper"}}}
	one := turnWith(inTalk, func(o *v1alpha1.Turn) { o.Status.Executor = nil })
	uids := 0
	h.Executor, _ = newExecutor(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			uids++
			o.SetUID(types.UID("uid-child-" + string(rune('a'+uids))))
			return c.Create(ctx, o, opts...)
		},
	}, append(objects, helper, talk(), one)...)
	h.Provider = func(*v1alpha1.ModelProvider) model.Provider { return h }
	h.open()
	t.Cleanup(func() {
		if err := h.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *sessionHarness) open() {
	h.t.Helper()
	var err error
	if h.store, err = sqlite.Open(h.t.Context(), h.path); err != nil {
		h.t.Fatal(err)
	}
	h.Engine, h.Store = &turn.Engine{Journal: h.store, Now: h.Now}, store.NewTracker(h.store, store.TrackerOptions{})
}

// lose replaces the store with an empty one.
func (h *sessionHarness) lose() {
	h.t.Helper()
	if err := h.store.Close(); err != nil {
		h.t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(h.path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.t.Fatal(err)
		}
	}
	h.open()
}

// damage appends an invalid entry to the journal of the Turn.
func (h *sessionHarness) damage() {
	h.t.Helper()
	last, err := h.store.Last(h.t.Context(), "uid-one")
	if err == nil {
		err = h.store.Append(h.t.Context(), "uid-one", journal.Entry{
			Seq: last + 1, Epoch: h.get(parent).Epoch(), Kind: journal.ModelReplied, Version: journal.PayloadVersion,
			Payload: []byte(`"nonsense"`), Time: now,
		})
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// Generate answers for both Agents: it calls the first tool that has not been called yet.
func (h *sessionHarness) Generate(_ context.Context, r *model.Request) (*model.Reply, error) {
	who, usage := child, model.Usage{InputTokens: 7, OutputTokens: 2}
	calls := []model.ToolCall{{ID: "c1", Name: "look", Arguments: `{}`}}
	for _, m := range r.Messages {
		if m.Role == model.RoleUser && m.Content == "Hello" {
			who, usage = parent, model.Usage{InputTokens: 10, OutputTokens: 5}
			calls = []model.ToolCall{{ID: "h1", Name: "helper", Arguments: `{"task":"Look."}`}, {ID: "c1", Name: "look", Arguments: `{}`}}
		}
	}
	done := 0
	for _, m := range r.Messages {
		if m.Role == model.RoleTool {
			done++
		}
	}
	h.billed[who] += usage.InputTokens + usage.OutputTokens
	if done < len(calls) {
		return &model.Reply{FinishReason: model.FinishToolCalls, ToolCalls: calls[done : done+1], Usage: usage}, nil
	}
	return &model.Reply{Text: "Done.", FinishReason: model.FinishStop, Usage: usage}, nil
}

// get reads the Turn or its sub-agent's Turn; it returns nil if that Turn does not exist.
func (h *sessionHarness) get(who string) *v1alpha1.Turn {
	h.t.Helper()
	var turns v1alpha1.TurnList
	if err := h.Reader.List(h.t.Context(), &turns); err != nil {
		h.t.Fatal(err)
	}
	for i := range turns.Items {
		if (turns.Items[i].Name == "one") == (who == parent) {
			return &turns.Items[i]
		}
	}
	return nil
}

// change updates the spec and the status of the Turn or of its sub-agent's Turn.
func (h *sessionHarness) change(who string, do func(*v1alpha1.Turn)) {
	h.t.Helper()
	t := h.get(who)
	do(t)
	spec := t.DeepCopy()
	err := h.Client.Update(h.t.Context(), spec)
	t.ResourceVersion = spec.ResourceVersion
	if err := errors.Join(err, h.Client.Status().Update(h.t.Context(), t)); err != nil {
		h.t.Fatal(err)
	}
}

// cancel cancels a Turn.
func (h *sessionHarness) cancel(who string) { h.change(who, desires(v1alpha1.DesiredStateCancelled)) }

// run binds a Turn as the controller does. It runs the Turn until it ends, waits, or is stopped by the function of
// its tool call.
func (h *sessionHarness) run(who string) *v1alpha1.Turn {
	h.t.Helper()
	id, err := h.store.State(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	h.change(who, func(t *v1alpha1.Turn) {
		turnstatus.Bind(t, turnstatus.Binding{Executor: me, Store: id.Identity, SideEffects: true}, h.Now())
	})
	t := h.get(who)
	ctx, abandon := context.WithCancelCause(h.t.Context())
	defer abandon(nil)
	r := &run{
		executor: h.Executor, turn: t, binding: *t.Status.Executor.DeepCopy(), epoch: t.Epoch(), begun: now, abandon: abandon,
		first:        t.Epoch() == 1 || turnstatus.NothingBegun(t.Status.Executor),
		cancellation: newCancellation(h.t.Context()), interrupt: make(chan struct{}),
	}
	r.handleDesiredState(t.Spec.DesiredState)
	h.runs[who] = r
	h.Tools = func(context.Context, *v1alpha1.Agent) []tool.Tool {
		return []tool.Tool{{
			Tool: prompt.Tool{Name: "look", Description: "Looks."}, Effect: tool.ReadOnly, Schema: json.RawMessage(`{"type":"object"}`),
			Caller: tool.CallerFunc(func(ctx context.Context, _ tool.Call) (tool.Result, error) {
				if do := h.within[who]; do != nil {
					delete(h.within, who)
					do(r)
				}
				if r.cancelled.Err() != nil {
					<-ctx.Done() // the call's own context ends a moment later
				}
				return tool.Result{Content: "found"}, context.Cause(ctx)
			}),
		}}
	}
	r.progress.begin(ctx, r.turn, r.writeProgress)
	result, err := r.execute(ctx)
	r.turn = r.progress.stop()
	if !errors.Is(err, errKilled) {
		r.writeOutcome(ctx, result, err)
	}
	return h.get(who)
}

// remove deletes a Turn, and its children as the garbage collector does.
func (h *sessionHarness) remove(who string) {
	h.t.Helper()
	for _, w := range []string{who, child} {
		if t := h.get(w); t != nil {
			remove(h.t, h.Executor, t)
		}
	}
}

// deleteDuringRun deletes a Turn while it runs.
func (h *sessionHarness) deleteDuringRun(r *run) {
	h.remove(parent)
	h.mu.Lock()
	r.gone = true
	h.mu.Unlock()
	r.abandon(errSuperseded)
}

// charge charges the Turn as the leader does when it sees that the Turn is gone. The second of the two charges must
// change nothing.
func (h *sessionHarness) charge() {
	h.t.Helper()
	charger := NewCharger(h.Engine, h.Reader, h.Client, nil, h.Now, h.Log)
	for range 2 {
		if err := charger.Charge(h.t.Context(), "uid-one"); err != nil {
			h.t.Fatal(err)
		}
	}
}

// The following functions bring the sessionHarness into the states from which a Turn ends.

// parked leaves the Turn parked. Its sub-agent was killed during its work.
func (h *sessionHarness) parked() {
	h.t.Helper()
	h.run(parent)
	h.within[child] = kill
	h.run(child)
}

// served leaves the Turn parked. Its sub-agent has ended, and the Turn has not read the answer.
func (h *sessionHarness) served() {
	h.t.Helper()
	h.run(parent)
	h.run(child)
}

// suspended leaves the Turn suspended, after it has read the answer of its sub-agent.
func (h *sessionHarness) suspended() {
	h.t.Helper()
	h.served()
	h.within[parent] = suspend
	h.run(parent)
}

// killed leaves the Turn killed, after it has read the answer of its sub-agent and written its progress.
func (h *sessionHarness) killed() {
	h.t.Helper()
	h.served()
	h.within[parent] = func(r *run) {
		r.progress.onTimer()
		kill(r)
	}
	h.run(parent)
}

// late sets the start of a Turn to a day ago, so that its time limit is over.
func late(t *v1alpha1.Turn) {
	t.Status.StartTime = new(metav1.NewMicroTime(now.Add(-24 * time.Hour)))
}

// TestEveryEndRecordsAllUsage checks that, however a Turn ends, its status has its own usage and that of its
// sub-agents, and the totals of its Session have both. Together they equal the tokens that the model has billed.
func TestEveryEndRecordsAllUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		state func(*sessionHarness)
		end   func(*sessionHarness)
		// want is the reason of the Turn's end; empty for a Turn that is gone.
		want string
	}{
		"it ends normally": {
			(*sessionHarness).served, func(h *sessionHarness) { h.run(parent) },
			v1alpha1.TurnReasonCompleted,
		},
		"cancelled while parked": {
			(*sessionHarness).parked,
			func(h *sessionHarness) { h.cancel(parent); h.cancel(child); h.run(child); h.run(parent) }, v1alpha1.TurnReasonCancelled,
		},
		"cancelled while its sub-agent has ended": {
			(*sessionHarness).served,
			func(h *sessionHarness) { h.cancel(parent); h.run(parent) }, v1alpha1.TurnReasonCancelled,
		},
		"cancelled while suspended": {
			(*sessionHarness).suspended,
			func(h *sessionHarness) { h.cancel(parent); h.run(parent) }, v1alpha1.TurnReasonCancelled,
		},
		"cancelled while it runs": {(*sessionHarness).served, func(h *sessionHarness) {
			h.within[parent] = func(r *run) { r.handleDesiredState(v1alpha1.DesiredStateCancelled) }
			h.run(parent)
		}, v1alpha1.TurnReasonCancelled},
		"cancelled after it was killed": {
			(*sessionHarness).killed,
			func(h *sessionHarness) { h.cancel(parent); h.run(parent) }, v1alpha1.TurnReasonCancelled,
		},
		"out of time while parked": {(*sessionHarness).parked, func(h *sessionHarness) {
			h.change(parent, late)
			h.cancel(child)
			h.run(child)
			h.run(parent)
		}, v1alpha1.TurnReasonDeadlineExceeded},
		"out of time after it was killed": {
			(*sessionHarness).killed,
			func(h *sessionHarness) { h.change(parent, late); h.run(parent) }, v1alpha1.TurnReasonDeadlineExceeded,
		},
		"lost while its sub-agent has ended": {
			(*sessionHarness).served,
			func(h *sessionHarness) { h.lose(); h.run(parent) }, v1alpha1.TurnReasonInterrupted,
		},
		"lost while suspended": {
			(*sessionHarness).suspended,
			func(h *sessionHarness) { h.lose(); h.run(parent) }, v1alpha1.TurnReasonInterrupted,
		},
		"lost after it was killed": {
			(*sessionHarness).killed,
			func(h *sessionHarness) { h.lose(); h.run(parent) }, v1alpha1.TurnReasonInterrupted,
		},
		"lost and cancelled": {
			(*sessionHarness).suspended,
			func(h *sessionHarness) { h.lose(); h.cancel(parent); h.run(parent) }, v1alpha1.TurnReasonCancelled,
		},
		"lost and out of time": {
			(*sessionHarness).suspended,
			func(h *sessionHarness) { h.lose(); h.change(parent, late); h.run(parent) }, v1alpha1.TurnReasonDeadlineExceeded,
		},
		"lost while its sub-agent works": {func(h *sessionHarness) { // the sub-agent's journal is lost, too
			h.run(parent)
			h.within[child] = func(r *run) { r.progress.onTimer(); kill(r) }
			h.run(child)
		}, func(h *sessionHarness) {
			h.lose()
			if t := h.run(parent); t.IsFinished() || h.get(child).Spec.DesiredState != v1alpha1.DesiredStateCancelled {
				h.t.Errorf("status %+v; want the Turn to wait for its sub-agent, which is cancelled", t.Status)
			}
			h.run(child)
			h.run(parent)
		}, v1alpha1.TurnReasonInterrupted},
		"damaged while suspended": {
			(*sessionHarness).suspended,
			func(h *sessionHarness) { h.damage(); h.run(parent) }, v1alpha1.TurnReasonInterrupted,
		},
		"damaged while its sub-agent has ended": {
			(*sessionHarness).served,
			func(h *sessionHarness) { h.damage(); h.run(parent) }, v1alpha1.TurnReasonInterrupted,
		},
		"its sub-agent is deleted": {
			(*sessionHarness).parked,
			func(h *sessionHarness) { h.remove(child); h.run(parent) }, v1alpha1.TurnReasonCompleted,
		},
		"its sub-agent is deleted, and the Turn is cancelled": {(*sessionHarness).parked, func(h *sessionHarness) {
			h.remove(child)
			h.cancel(parent)
			h.run(parent)
		}, v1alpha1.TurnReasonCancelled},

		"deleted while parked":                  {(*sessionHarness).parked, func(h *sessionHarness) { h.remove(parent); h.charge() }, ""},
		"deleted while its sub-agent has ended": {(*sessionHarness).served, func(h *sessionHarness) { h.remove(parent); h.charge() }, ""},
		"deleted before its sub-agent is": {(*sessionHarness).served, func(h *sessionHarness) {
			remove(h.t, h.Executor, h.get(parent))
			h.charge()
		}, ""},
		"deleted while suspended":     {(*sessionHarness).suspended, func(h *sessionHarness) { h.remove(parent); h.charge() }, ""},
		"deleted after it was killed": {(*sessionHarness).killed, func(h *sessionHarness) { h.remove(parent); h.charge() }, ""},
		"deleted while it runs": {
			(*sessionHarness).served,
			func(h *sessionHarness) { h.within[parent] = h.deleteDuringRun; h.run(parent) }, "",
		},
		"deleted while it runs, charged by its run and by the leader": {(*sessionHarness).served, func(h *sessionHarness) {
			h.within[parent] = h.deleteDuringRun
			h.run(parent)
			h.charge()
		}, ""},
		"deleted after it has ended": {
			(*sessionHarness).served,
			func(h *sessionHarness) { h.run(parent); h.remove(parent); h.charge() }, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newSessionHarness(t)
			tc.state(h)
			if h.billed[parent] == 0 || h.billed[child] == 0 {
				t.Fatalf("billed %v, want usage of both Turns", h.billed)
			}
			tc.end(h)
			if tc.want != "" {
				ended := h.get(parent)
				if got := ended.StateReason(); !ended.IsFinished() || got != tc.want {
					t.Fatalf("the Turn is %s (finished: %t), want %s", got, ended.IsFinished(), tc.want)
				}
				got := map[string]int64{parent: tokensOf(ended.Status.Usage), child: tokensOf(ended.Status.SubAgentUsage)}
				if diff := cmp.Diff(h.billed, got); diff != "" {
					t.Errorf("usage and subAgentUsage, -billed +got:\n%s", diff)
				}
			}
			var s v1alpha1.Session
			if err := h.Reader.Get(t.Context(), client.ObjectKeyFromObject(talk()), &s); err != nil {
				t.Fatal(err)
			}
			history, err := session.Latest(t.Context(), h.store, "uid-talk", nil)
			if err != nil {
				t.Fatal(err)
			}
			all := h.billed[parent] + h.billed[child]
			want := charged{Turns: 1, Tokens: all, HistoryTurns: 1, HistoryTokens: all}
			got := charged{
				Turns: s.Status.Turns, Tokens: tokensOf(s.Status.Usage), HistoryTurns: history.Totals.Turns,
				HistoryTokens: history.Totals.Usage.InputTokens + history.Totals.Usage.OutputTokens,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the Session, -want +got:\n%s", diff)
			}
		})
	}
}

func tokensOf(u *v1alpha1.Usage) int64 {
	if u == nil {
		return 0
	}
	return u.TotalTokens
}

// TestSessionIsChargedAfterSubAgentsOfADeletedTurnEnd checks that the Session is charged only when the
// sub-agent has ended, because all usage of the sub-agent counts.
func TestSessionIsChargedAfterSubAgentsOfADeletedTurnEnd(t *testing.T) {
	h := newSessionHarness(t)
	h.parked()
	remove(t, h.Executor, h.get(parent))
	charger := NewCharger(h.Engine, h.Reader, h.Client, nil, h.Now, h.Log)
	if err := charger.Charge(t.Context(), "uid-one"); err == nil {
		t.Error("the Turn was charged while its sub-agent works")
	}
	h.cancel(child)
	h.run(child)
	h.charge()
	if got, want := chargedTo(t, h.Executor, h.store).Tokens, h.billed[parent]+h.billed[child]; got != want {
		t.Errorf("charged %d tokens, want %d", got, want)
	}
}
