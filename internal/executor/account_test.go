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
	"github.com/capstan-dev/capstan/internal/translate"
)

// household is a Turn of a Session, "one", that calls a sub-agent, then a tool, and then answers. Its sub-agent calls the tool, and
// then answers. The journals are in a file.
type household struct {
	*Executor
	t     *testing.T
	path  string
	store *sqlite.Store
	// within is called within the call of the tool by the Turn of a name, with its run.
	within map[string]func(*run)
	// billed is how many tokens the model has billed to the Turn and to its sub-agent.
	billed map[string]int64
	runs   map[string]*run
}

// The names of the Turns of a household, for billed and within.
const parent, child = "parent", "child"

func newHousehold(t *testing.T) *household {
	t.Helper()
	h := &household{
		t: t, path: filepath.Join(t.TempDir(), "journal.db"), billed: map[string]int64{}, runs: map[string]*run{},
		within: map[string]func(*run){},
	}
	objects := surroundings()
	support := objects[0].(*v1alpha1.Agent) //nolint:forcetypeassert // because a wrong type is a bug of this test
	helper := support.DeepCopy()
	helper.Name = "helper"
	support.Spec.Tools = []v1alpha1.AgentTool{{AgentRef: &v1alpha1.ObjectReference{Name: "helper"}}}
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

func (h *household) open() {
	h.t.Helper()
	var err error
	if h.store, err = sqlite.Open(h.t.Context(), h.path); err != nil {
		h.t.Fatal(err)
	}
	h.Engine, h.Store = &turn.Engine{Journal: h.store, Now: h.Now}, store.NewTracker(h.store, store.TrackerOptions{})
}

// lose puts an empty store in the place of the one that there is.
func (h *household) lose() {
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

// damage appends an entry that makes no sense to the journal of the Turn.
func (h *household) damage() {
	h.t.Helper()
	last, err := h.store.Last(h.t.Context(), "uid-one")
	if err == nil {
		err = h.store.Append(h.t.Context(), "uid-one", journal.Entry{
			Seq: last + 1, Epoch: h.get(parent).Epoch(), Kind: journal.ModelReplied, Version: journal.PayloadVersion, Payload: []byte(`"nonsense"`), Time: now,
		})
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// Generate is the model of both: it calls what it has not called yet.
func (h *household) Generate(_ context.Context, r model.Request) (model.Reply, error) {
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
		return model.Reply{FinishReason: model.FinishToolCalls, ToolCalls: calls[done : done+1], Usage: usage}, nil
	}
	return model.Reply{Text: "Done.", FinishReason: model.FinishStop, Usage: usage}, nil
}

// get reads the Turn or that of its sub-agent; nil if it is not there.
func (h *household) get(who string) *v1alpha1.Turn {
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

// change writes the Turn or that of its sub-agent, whatever is changed.
func (h *household) change(who string, do func(*v1alpha1.Turn)) {
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

// cancel asks for the end of a Turn.
func (h *household) cancel(who string) { h.change(who, desires(v1alpha1.DesiredStateCancelled)) }

// run binds a Turn as the controller does, and runs it until it ends, rests, or what happens within its call stops it.
func (h *household) run(who string) *v1alpha1.Turn {
	h.t.Helper()
	id, err := h.store.State(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	h.change(who, func(t *v1alpha1.Turn) {
		translate.Unpark(t, h.Now())
		translate.Start(t, h.Now())
		t.Status.Executor = translate.Bind(t, nil, me, id.ID, id.Incarnation)
	})
	t := h.get(who)
	ctx, abandon := context.WithCancelCause(h.t.Context())
	defer abandon(nil)
	r := &run{
		executor: h.Executor, turn: t, binding: *t.Status.Executor.DeepCopy(), epoch: t.Epoch(), begun: now, abandon: abandon,
		first:        t.Epoch() == 1 || translate.NothingBegun(t.Status.Executor),
		cancellation: newCancellation(h.t.Context()), interrupt: make(chan struct{}),
	}
	r.follow(t.Spec.DesiredState)
	h.runs[who] = r
	h.Tools = func(context.Context, *v1alpha1.Agent) []tool.Tool {
		return []tool.Tool{{
			Tool: prompt.Tool{Name: "look", Description: "Looks."}, Effect: tool.ReadOnly, Schema: json.RawMessage(`{"type":"object"}`),
			Caller: tool.CallerFunc(func(ctx context.Context, _ tool.Call) (tool.Result, error) {
				if do := h.within[who]; do != nil {
					delete(h.within, who)
					do(r)
				}
				return tool.Result{Content: "found"}, context.Cause(ctx)
			}),
		}}
	}
	r.progress.begin(ctx, r.turn, r.writeProgress)
	result, err := r.execute(ctx)
	r.turn = r.progress.stop()
	if !errors.Is(err, errKilled) {
		r.conclude(ctx, result, err)
	}
	return h.get(who)
}

// remove deletes a Turn, and its children as the garbage collector does.
func (h *household) remove(who string) {
	h.t.Helper()
	for _, w := range []string{who, child} {
		if t := h.get(w); t != nil {
			remove(h.t, h.Executor, t)
		}
	}
}

// deleted is a Turn that is deleted while it runs.
func (h *household) deleted(r *run) {
	h.remove(parent)
	h.mu.Lock()
	r.gone = true
	h.mu.Unlock()
	r.abandon(errSuperseded)
}

// leader charges the Turn as the leader does when it sees that it is gone.
func (h *household) leader() {
	h.t.Helper()
	charger := &Charger{Engine: h.Engine, Reader: h.Reader, Client: h.Client, Now: h.Now, Log: h.Log}
	for range 2 {
		if err := charger.Charge(h.t.Context(), "uid-one"); err != nil {
			h.t.Fatal(err)
		}
	}
}

// The states of the household from which a Turn ends.

// parked: its sub-agent was killed within its work.
func (h *household) parked() {
	h.t.Helper()
	h.run(parent)
	h.within[child] = kill
	h.run(child)
}

// served: its sub-agent has ended, and the Turn has not taken its answer.
func (h *household) served() {
	h.t.Helper()
	h.run(parent)
	h.run(child)
}

// suspended: it has taken the answer of its sub-agent, and was then suspended.
func (h *household) suspended() {
	h.t.Helper()
	h.served()
	h.within[parent] = suspend
	h.run(parent)
}

// killed: it has taken the answer of its sub-agent, has written its progress, and was then killed.
func (h *household) killed() {
	h.t.Helper()
	h.served()
	h.within[parent] = func(r *run) {
		r.progress.due()
		kill(r)
	}
	h.run(parent)
}

// late is a Turn whose time is over.
func late(t *v1alpha1.Turn) {
	t.Status.StartTime = new(metav1.NewMicroTime(now.Add(-24 * time.Hour)))
}

// TestWhateverEndsATurn its status has what it took, and what its sub-agents took, and the totals of its Session have both. So they
// are all that the model has billed.
func TestWhateverEndsATurn(t *testing.T) {
	for name, tc := range map[string]struct {
		state func(*household)
		end   func(*household)
		// want is the reason of the Turn's end; empty for a Turn that is gone.
		want string
	}{
		"it finishes":                             {(*household).served, func(h *household) { h.run(parent) }, v1alpha1.TurnReasonCompleted},
		"cancelled while parked":                  {(*household).parked, func(h *household) { h.cancel(parent); h.cancel(child); h.run(child); h.run(parent) }, v1alpha1.TurnReasonCancelled},
		"cancelled while its sub-agent has ended": {(*household).served, func(h *household) { h.cancel(parent); h.run(parent) }, v1alpha1.TurnReasonCancelled},
		"cancelled while suspended":               {(*household).suspended, func(h *household) { h.cancel(parent); h.run(parent) }, v1alpha1.TurnReasonCancelled},
		"cancelled while it runs": {(*household).served, func(h *household) {
			h.within[parent] = func(r *run) { r.follow(v1alpha1.DesiredStateCancelled) }
			h.run(parent)
		}, v1alpha1.TurnReasonCancelled},
		"cancelled after it was killed": {(*household).killed, func(h *household) { h.cancel(parent); h.run(parent) }, v1alpha1.TurnReasonCancelled},
		"out of time while parked": {(*household).parked, func(h *household) {
			h.change(parent, late)
			h.cancel(child)
			h.run(child)
			h.run(parent)
		}, v1alpha1.TurnReasonDeadlineExceeded},
		"out of time after it was killed":    {(*household).killed, func(h *household) { h.change(parent, late); h.run(parent) }, v1alpha1.TurnReasonDeadlineExceeded},
		"lost while its sub-agent has ended": {(*household).served, func(h *household) { h.lose(); h.run(parent) }, v1alpha1.TurnReasonInterrupted},
		"lost while suspended":               {(*household).suspended, func(h *household) { h.lose(); h.run(parent) }, v1alpha1.TurnReasonInterrupted},
		"lost after it was killed":           {(*household).killed, func(h *household) { h.lose(); h.run(parent) }, v1alpha1.TurnReasonInterrupted},
		"lost and cancelled":                 {(*household).suspended, func(h *household) { h.lose(); h.cancel(parent); h.run(parent) }, v1alpha1.TurnReasonCancelled},
		"lost and out of time":               {(*household).suspended, func(h *household) { h.lose(); h.change(parent, late); h.run(parent) }, v1alpha1.TurnReasonDeadlineExceeded},
		"lost while its sub-agent works": {func(h *household) { // whose journal is in another store
			h.run(parent)
			h.within[child] = func(r *run) { r.progress.due(); kill(r) }
			h.run(child)
		}, func(h *household) {
			h.lose()
			if t := h.run(parent); t.IsFinished() || h.get(child).Spec.DesiredState != v1alpha1.DesiredStateCancelled {
				h.t.Errorf("status %+v; want the Turn to wait for its sub-agent, which is cancelled", t.Status)
			}
			h.run(child)
			h.run(parent)
		}, v1alpha1.TurnReasonInterrupted},
		"damaged while suspended":               {(*household).suspended, func(h *household) { h.damage(); h.run(parent) }, v1alpha1.TurnReasonInterrupted},
		"damaged while its sub-agent has ended": {(*household).served, func(h *household) { h.damage(); h.run(parent) }, v1alpha1.TurnReasonInterrupted},
		"its sub-agent is deleted":              {(*household).parked, func(h *household) { h.remove(child); h.run(parent) }, v1alpha1.TurnReasonCompleted},
		"its sub-agent is deleted, and it is cancelled": {(*household).parked, func(h *household) {
			h.remove(child)
			h.cancel(parent)
			h.run(parent)
		}, v1alpha1.TurnReasonCancelled},

		"deleted while parked":                  {(*household).parked, func(h *household) { h.remove(parent); h.leader() }, ""},
		"deleted while its sub-agent has ended": {(*household).served, func(h *household) { h.remove(parent); h.leader() }, ""},
		"deleted before its sub-agent is": {(*household).served, func(h *household) {
			remove(h.t, h.Executor, h.get(parent))
			h.leader()
		}, ""},
		"deleted while suspended":     {(*household).suspended, func(h *household) { h.remove(parent); h.leader() }, ""},
		"deleted after it was killed": {(*household).killed, func(h *household) { h.remove(parent); h.leader() }, ""},
		"deleted while it runs":       {(*household).served, func(h *household) { h.within[parent] = h.deleted; h.run(parent) }, ""},
		"deleted while it runs, seen by both": {(*household).served, func(h *household) {
			h.within[parent] = h.deleted
			h.run(parent)
			h.leader()
		}, ""},
		"deleted after it has ended": {(*household).served, func(h *household) { h.run(parent); h.remove(parent); h.leader() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHousehold(t)
			tc.state(h)
			if h.billed[parent] == 0 || h.billed[child] == 0 {
				t.Fatalf("billed %v, want that both have asked the model", h.billed)
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
			history, err := session.Latest(t.Context(), h.store, "uid-talk")
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

// TestASessionIsNotChargedWhileASubAgentOfADeletedTurnIsThere: what it takes until its end counts, too.
func TestASessionIsNotChargedWhileASubAgentOfADeletedTurnIsThere(t *testing.T) {
	h := newHousehold(t)
	h.parked()
	remove(t, h.Executor, h.get(parent))
	charger := &Charger{Engine: h.Engine, Reader: h.Reader, Client: h.Client, Now: h.Now, Log: h.Log}
	if err := charger.Charge(t.Context(), "uid-one"); err == nil {
		t.Error("the Turn was charged while its sub-agent works")
	}
	h.cancel(child)
	h.run(child)
	h.leader()
	if got, want := chargedTo(t, h.Executor, h.store).Tokens, h.billed[parent]+h.billed[child]; got != want {
		t.Errorf("charged %d tokens, want %d", got, want)
	}
}
