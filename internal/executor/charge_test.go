package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/store/sqlite/sqlitetest"
	"github.com/capstan-dev/capstan/internal/tracing"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/test/otlp"
)

// caller is a model that calls the tool "look", with a usage of 15 tokens.
type caller struct{}

func (caller) Generate(context.Context, *model.Request) (*model.Reply, error) {
	return &model.Reply{
		FinishReason: model.FinishToolCalls, ToolCalls: []model.ToolCall{{ID: "c1", Name: "look", Arguments: "{}"}},
		Usage: model.Usage{InputTokens: 10, OutputTokens: 5},
	}, nil
}

// talk returns the Session of the Turn.
func talk() *v1alpha1.Session {
	return &v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "talk", UID: "uid-talk"}}
}

// inTalk makes a Turn ask a model, and adds the Turn to the Session.
func inTalk(t *v1alpha1.Turn) {
	t.Spec.SessionRef, t.Spec.Execution = &v1alpha1.ObjectReference{Name: "talk"}, v1alpha1.ExecutionRun
}

// calling returns an executor that runs the Turn. The model has replied once, and the tool call is running. The
// journals are in a file.
func calling(t *testing.T, funcs interceptor.Funcs, change ...func(*v1alpha1.Turn)) (*Executor, *sqlite.Store) {
	t.Helper()
	e, _ := newExecutor(t, funcs, append(surroundings(), talk(), turnWith(append(change, inTalk)...))...)
	store := sqlitetest.Open(t)
	e.Engine = &turn.Engine{Journal: store, Now: e.Now}
	e.Provider = func(*v1alpha1.ModelProvider) model.Provider { return caller{} }
	called := make(chan struct{})
	look := tool.CallerFunc(func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		close(called)
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	e.Tools = func(context.Context, *v1alpha1.Agent) []tool.Tool {
		return []tool.Tool{{
			Tool: prompt.Tool{Name: "look", Description: "Looks it up."}, Effect: tool.ReadOnly, Caller: look,
			Schema: json.RawMessage(`{"type":"object"}`),
		}}
	}
	e.observe(t.Context(), stored(t, e))
	<-called
	return e, store
}

// remove deletes an object from the API server.
func remove(t *testing.T, e *Executor, o client.Object) {
	t.Helper()
	if err := e.Client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// charged counts the Turns and the tokens in the totals of the Session and in its history.
type charged struct {
	Turns, Tokens, HistoryTurns, HistoryTokens int64
}

// once is the charge of a Turn that was charged to the Session once.
var once = charged{Turns: 1, Tokens: 15, HistoryTurns: 1, HistoryTokens: 15}

func chargedTo(t *testing.T, e *Executor, j journal.Journal) charged {
	t.Helper()
	var s v1alpha1.Session
	if err := e.Reader.Get(t.Context(), client.ObjectKeyFromObject(talk()), &s); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	h, err := session.Latest(t.Context(), j, "uid-talk", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := charged{
		Turns: s.Status.Turns, HistoryTurns: h.Totals.Turns,
		HistoryTokens: h.Totals.Usage.InputTokens + h.Totals.Usage.OutputTokens,
	}
	if s.Status.Usage != nil {
		got.Tokens = s.Status.Usage.TotalTokens
	}
	return got
}

// TestDeletedTurnIsChargedToItsSession checks that deleting a Turn does not hide its usage, which was paid for.
func TestDeletedTurnIsChargedToItsSession(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// change changes the objects before the watch reports that the Turn is gone.
		change func(*testing.T, *Executor)
		want   charged
		// ends is true if the journal and the record have the end of the Turn.
		ends bool
	}{
		"deleted": {"its run charges the Session", func(t *testing.T, e *Executor) { remove(t, e, stored(t, e)) }, once, true},
		"recreated": {"the new Turn of this name is another Turn", func(t *testing.T, e *Executor) {
			remove(t, e, stored(t, e))
			again := turnWith(boundTo("other", 1), inTalk)
			again.UID = "uid-two"
			if err := e.Client.Create(t.Context(), again); err != nil {
				t.Fatal(err)
			}
		}, once, true},
		"bound elsewhere": {"it continues there", func(*testing.T, *Executor) {}, charged{}, false},
		"without its Session": {"its usage must not be lost", func(t *testing.T, e *Executor) {
			remove(t, e, stored(t, e))
			remove(t, e, talk())
		}, charged{}, true},
		"with another Session of the name": {"its usage must not be lost", func(t *testing.T, e *Executor) {
			remove(t, e, stored(t, e))
			remove(t, e, talk())
			again := talk()
			again.UID = "uid-talk-again"
			if err := e.Client.Create(t.Context(), again); err != nil {
				t.Fatal(err)
			}
		}, charged{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			writes := 0
			e, store := calling(t, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client,
				sub string, o client.Object, opts ...client.SubResourceUpdateOption,
			) error {
				if _, ok := o.(*v1alpha1.Turn); ok {
					writes++
				}
				return c.SubResource(sub).Update(ctx, o, opts...)
			}})
			before := stored(t, e)
			tc.change(t, e)
			newWatch(t.Context(), e).OnDelete(before)
			e.all.Wait()
			if diff := cmp.Diff(tc.want, chargedTo(t, e, store)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if got := recorded(e); writes > 0 || len(got) > 0 {
				t.Errorf("%d writes of the Turn and the Events %q, want none about an object that is gone", writes, got)
			}
			entries, err := journal.Collect(t.Context(), store, "uid-one")
			if err != nil {
				t.Fatal(err)
			}
			if ended := entries[len(entries)-1].Kind == journal.Finalized; ended != tc.ends {
				t.Errorf("the journal ends with the end of the Turn: %t, want %t", ended, tc.ends)
			}
		})
	}
}

// TestDeletedTurnIsChargedOnce checks that a Turn is charged once, even if the first attempt fails between two writes
// and later attempts repeat the charge.
func TestDeletedTurnIsChargedOnce(t *testing.T) {
	fails := true
	e, store := calling(t, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string,
		o client.Object, opts ...client.SubResourceUpdateOption,
	) error {
		if _, ok := o.(*v1alpha1.Session); ok && fails {
			return broken
		}
		return c.SubResource(sub).Update(ctx, o, opts...)
	}})
	before := stored(t, e)
	remove(t, e, before)
	newWatch(t.Context(), e).OnDelete(before)
	e.all.Wait()
	want := once
	want.Turns, want.Tokens = 0, 0
	if diff := cmp.Diff(want, chargedTo(t, e, store)); diff != "" {
		t.Fatalf("while the totals cannot be written: -want +got:\n%s", diff)
	}
	fails = false
	last, err := store.Last(t.Context(), "uid-one")
	if err != nil {
		t.Fatal(err)
	}
	charger := NewCharger(e.Engine, e.Reader, e.Client, nil, e.Now, e.Log)
	for range 2 {
		if err := charger.Charge(t.Context(), "uid-one"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(once, chargedTo(t, e, store)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	if n, err := store.Last(t.Context(), "uid-one"); err != nil || n != last {
		t.Errorf("the journal has %d entries, %v; want %d, because the Turn has ended", n, err, last)
	}
	if err := charger.Charge(t.Context(), "uid-talk"); err != nil {
		t.Errorf("Charge of a Session: %v, want nothing to happen", err)
	}
}

// TestChargesNeedMemory checks that the run of a deleted Turn reads its journal again only if there is memory for it,
// and that it first releases its own memory. Otherwise the journals of all Turns of a namespace would be in memory at
// the same time if all of them are deleted. A Turn that is not charged for lack of memory is charged later.
func TestChargesNeedMemory(t *testing.T) {
	// turns returns how many Turns were charged; the usage of this model is an estimate.
	turns := func(t *testing.T, e *Executor) charged {
		all := chargedTo(t, e, e.Engine.Journal)
		return charged{Turns: all.Turns, HistoryTurns: all.HistoryTurns}
	}
	once := charged{Turns: 1, HistoryTurns: 1}
	for name, tc := range map[string]struct {
		// left is the memory that others leave for the Turn, and its own memory while it makes its fourth call.
		left int64
		want charged
	}{
		"for a Turn that waits for memory": {0, charged{}},
		"for a Turn that has memory":       {1600 << 10, once},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := longWinded(t, &longReplies{steps: 5, bytes: 100 << 10}, 16<<20)
				one := stored(t, e)
				one.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "talk"}
				if err := errors.Join(e.Client.Create(t.Context(), talk()), e.Client.Update(t.Context(), one)); err != nil {
					t.Fatal(err)
				}
				account := e.Memory.Account("helpdesk", bytebudget.Conversations)
				others, err := account.TryReserve(account.MaxReservation() - tc.left)
				if err != nil {
					t.Fatal(err)
				}
				calls, tools := 0, e.Tools
				e.Tools = func(ctx context.Context, a *v1alpha1.Agent) []tool.Tool {
					all := tools(ctx, a)
					all[0].Caller = tool.CallerFunc(func(ctx context.Context, _ tool.Call) (tool.Result, error) {
						if calls++; calls == 4 {
							<-ctx.Done()
						}
						return tool.Result{Content: "fine"}, context.Cause(ctx)
					})
					return all
				}
				e.observe(t.Context(), stored(t, e))
				synctest.Wait() // the Turn waits for memory, or for its fourth call
				if waits := e.Memory.Use(bytebudget.Conversations).Waiting == 1; waits != (tc.left == 0) || !waits && calls != 4 {
					t.Fatalf("the Turn waits for memory: %t, after %d calls; want %t", waits, calls, tc.left == 0)
				}
				before := stored(t, e)
				remove(t, e, before)
				newWatch(t.Context(), e).OnDelete(before)
				e.all.Wait()
				if diff := cmp.Diff(tc.want, turns(t, e)); diff != "" {
					t.Errorf("after the run: -want +got:\n%s", diff)
				}
				if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != others.Bytes() {
					t.Errorf("after the run %d bytes are held, want only the %d of others", use.Bytes, others.Bytes())
				}
				others.Release()
				charger := NewCharger(e.Engine, e.Reader, e.Client, e.Memory, e.Now, e.Log)
				if err := charger.Charge(t.Context(), "uid-one"); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(once, turns(t, e)); diff != "" {
					t.Errorf("when there is memory: -want +got:\n%s", diff)
				}
			})
		})
	}
}

// TestDeletedTurnWithFinalizerIsCancelled checks that a deleted Turn ends as cancelled, and stays readable until its
// finalizer is removed.
func TestDeletedTurnWithFinalizerIsCancelled(t *testing.T) {
	e, store := calling(t, interceptor.Funcs{}, func(t *v1alpha1.Turn) { t.Finalizers = []string{"example.com/hold"} })
	remove(t, e, stored(t, e))
	e.observe(t.Context(), stored(t, e))
	e.all.Wait()
	if got := stored(t, e).StateReason(); got != v1alpha1.TurnReasonCancelled {
		t.Errorf("the Turn is %s, want %s", got, v1alpha1.TurnReasonCancelled)
	}
	if diff := cmp.Diff(once, chargedTo(t, e, store)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// exportTo returns a provider that exports its spans to a collector.
func exportTo(t *testing.T, to *otlp.Receiver) *tracing.Provider {
	t.Helper()
	web := httptest.NewServer(to)
	t.Cleanup(web.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", web.URL)
	clean := func(...string) func(string) string { return strings.Clone }
	p, err := tracing.FromEnvironment(t.Context(), os.LookupEnv, clean, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestTurnThatEndedWithoutAnExecutor checks that the journal of a Turn whose object has ended is ended once there is
// memory to read the journal, and that its Session is charged once. The run of the Turn does not know of the end.
func TestTurnThatEndedWithoutAnExecutor(t *testing.T) {
	e, store := calling(t, interceptor.Funcs{}, func(t *v1alpha1.Turn) { t.Spec.Message = strings.Repeat("please ", 10<<10) })
	one := stored(t, e)
	turnstatus.End(one, v1alpha1.TurnReasonDeadlineExceeded, "no executor was there", e.Now())
	if err := e.Client.Status().Update(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	memory := bytebudget.New(512<<10, 0)
	var collector otlp.Receiver
	traces := exportTo(t, &collector)
	traces.End(one, time.Time{}) // as the controller does
	later := func() time.Time { return e.Now().Add(time.Hour) }
	charger := NewCharger(&turn.Engine{Journal: store, Now: later}, e.Reader, e.Client, memory, later, e.Log)
	charger.Traces = traces
	account := memory.Account("helpdesk", bytebudget.Conversations)
	held, err := account.TryReserve(account.MaxReservation())
	if err != nil {
		t.Fatal(err)
	}
	before, err := store.Last(t.Context(), "uid-one")
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func() error{
		"EndFromObject": func() error { _, err := charger.EndFromObject(t.Context(), one); return err },
		"Charge":        func() error { return charger.Charge(t.Context(), "uid-one") },
	} {
		if err := end(); !errors.Is(err, bytebudget.ErrShort) {
			t.Errorf("%s while there is no memory: %v, want ErrShort", name, err)
		}
	}
	if n, err := store.Last(t.Context(), "uid-one"); n != before || err != nil {
		t.Errorf("the journal has %d entries (error %v), want %d as before", n, err, before)
	}
	held.Release()
	for _, want := range []bool{true, false} {
		if recorded, err := charger.EndFromObject(t.Context(), one); recorded != want || err != nil {
			t.Fatalf("EndFromObject: %t, %v; want %t", recorded, err, want)
		}
		if diff := cmp.Diff(once, chargedTo(t, e, store)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	if use := memory.Use(bytebudget.Conversations); use.Bytes != 0 {
		t.Errorf("%d bytes are still reserved", use.Bytes)
	}
	if err := traces.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans, problems := otlp.Tree(collector.Spans(), "")
	var names []string
	for _, s := range spans {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	want := []string{"add_to_session", "execute_tool look", "finalize", "invoke_agent support", "step 1"}
	if !slices.Equal(names, want) || problems != nil {
		t.Errorf("the trace has the spans %q, want %q; problems: %q", names, want, problems)
	}
	e.observe(t.Context(), stored(t, e))
	e.all.Wait()
	if diff := cmp.Diff(once, chargedTo(t, e, store)); diff != "" {
		t.Errorf("after the run has learned of the end: -want +got:\n%s", diff)
	}
}

// endedUnbound ends the Turn in the API server, as if it had ended without an executor a minute ago. The status of the
// Turn has some usage.
func endedUnbound(t *testing.T, e *Executor) *v1alpha1.Turn {
	t.Helper()
	one := stored(t, e)
	one.Status.Usage = &v1alpha1.Usage{InputTokens: 10, OutputTokens: 2, TotalTokens: 12}
	turnstatus.End(one, v1alpha1.TurnReasonDeadlineExceeded, "no executor was there", e.Now().Add(-time.Minute))
	if err := e.Client.Status().Update(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	return one
}

// TestSessionIsChargedFromStatus checks that a Turn whose journal cannot be ended is charged to its Session once,
// unless an executor has ended it and so has charged it.
func TestSessionIsChargedFromStatus(t *testing.T) {
	known := charged{Turns: 1, Tokens: 12, HistoryTurns: 1, HistoryTokens: 12}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Turn)
		want   charged
	}{
		"without an executor": {func(*v1alpha1.Turn) {}, known},
		"by an executor":      {func(t *v1alpha1.Turn) { t.Status.Executor.Name = me }, charged{}},
		"nothing is used":     {func(t *v1alpha1.Turn) { t.Status.Usage = nil }, charged{}},
		"without steps": {
			func(t *v1alpha1.Turn) { t.Status.Steps, t.Status.Usage, t.Status.SubAgentUsage = nil, nil, nil }, charged{},
		},
		"before its Session": {func(t *v1alpha1.Turn) { t.Status.StartTime.Time = time.Unix(0, 0) }, charged{}},
		"without a Session":  {func(t *v1alpha1.Turn) { t.Spec.SessionRef = nil }, charged{}},
		"of another Session": {func(t *v1alpha1.Turn) { t.Spec.SessionRef.Name = "gone" }, charged{}},
	} {
		t.Run(name, func(t *testing.T) {
			e, store := calling(t, interceptor.Funcs{})
			one := endedUnbound(t, e)
			tc.change(one)
			s := talk()
			s.CreationTimestamp = metav1.NewTime(time.Unix(60, 0))
			remove(t, e, talk())
			if err := e.Client.Create(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			charger := NewCharger(e.Engine, e.Reader, e.Client, nil, e.Now, e.Log)
			for range 2 {
				if err := charger.ChargeFromStatus(t.Context(), one); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, chargedTo(t, e, store)); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
			e.observe(t.Context(), stored(t, e))
			e.all.Wait()
		})
	}
}

// TestAnEndedJournalIsCharged checks that a Turn is charged to its Session if its journal has its end, but the process
// that wrote the end was killed before it charged the Turn.
func TestAnEndedJournalIsCharged(t *testing.T) {
	e, store := calling(t, interceptor.Funcs{})
	one := endedUnbound(t, e)
	in, end, ended := translate.ObjectEnd(one, nil)
	if recorded, err := e.Engine.EndFromObject(t.Context(), in, end, nil); !recorded || !ended || err != nil {
		t.Fatalf("EndFromObject: %t, %v; want the end in the journal", recorded, err)
	}
	charger := NewCharger(e.Engine, e.Reader, e.Client, nil, e.Now, e.Log)
	var collector otlp.Receiver
	charger.Traces = exportTo(t, &collector)
	for range 2 {
		if recorded, err := charger.EndFromObject(t.Context(), one); recorded || err != nil {
			t.Fatalf("EndFromObject: %t, %v; want false", recorded, err)
		}
		if diff := cmp.Diff(once, chargedTo(t, e, store)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	if err := charger.Traces.Close(t.Context()); err != nil || len(collector.Spans()) > 0 {
		t.Errorf("%d spans were exported again (error %v), want none", len(collector.Spans()), err)
	}
	e.observe(t.Context(), stored(t, e))
	e.all.Wait()
}

// TestTotalsThatCannotBeWritten checks that a conflict does not delay the end of a Turn, that the API server cannot
// prevent the end by a refusal of the totals, that a later attempt writes totals that admission has denied, and that
// the totals have the time of the end.
func TestTotalsThatCannotBeWritten(t *testing.T) {
	refused := once
	refused.Turns, refused.Tokens = 0, 0
	conflict := apierrors.NewConflict(schema.GroupResource{Group: "capstan.dev", Resource: "sessions"}, "talk", errors.New("changed"))
	for name, tc := range map[string]struct {
		failures []error
		// again is true if the first attempt must fail with the failure.
		again bool
		want  charged
	}{
		"conflicts": {[]error{conflict, conflict}, false, once},
		"a refusal": {[]error{refusal}, false, refused},
		"a denial":  {[]error{denial}, true, once},
	} {
		for how, end := range map[string]func(context.Context, *Charger, *Executor, *v1alpha1.Turn) error{
			"of a Turn that has ended": func(ctx context.Context, c *Charger, _ *Executor, one *v1alpha1.Turn) error {
				recorded, err := c.EndFromObject(ctx, one)
				if err == nil && !recorded {
					err = errors.New("the journal has no end")
				}
				return err
			},
			"of a Turn without a journal": func(ctx context.Context, c *Charger, _ *Executor, one *v1alpha1.Turn) error {
				one.Status.Usage.InputTokens, one.Status.Usage.TotalTokens = 13, 15
				return c.ChargeFromStatus(ctx, one)
			},
			"of a deleted Turn": func(ctx context.Context, c *Charger, e *Executor, one *v1alpha1.Turn) error {
				return errors.Join(client.IgnoreNotFound(e.Client.Delete(ctx, one)), c.Charge(ctx, "uid-one"))
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				left := tc.failures
				e, store := calling(t, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string,
					o client.Object, opts ...client.SubResourceUpdateOption,
				) error {
					if _, ok := o.(*v1alpha1.Session); ok && len(left) > 0 {
						err := left[0]
						left = left[1:]
						return err
					}
					return c.SubResource(sub).Update(ctx, o, opts...)
				}})
				one := endedUnbound(t, e)
				later := func() time.Time { return e.Now().Add(time.Hour) }
				charger := NewCharger(e.Engine, e.Reader, e.Client, nil, later, e.Log)
				if tc.again {
					if err := end(t.Context(), charger, e, one); !errors.Is(err, tc.failures[0]) {
						t.Fatalf("%v, want %v, so that the caller tries again", err, tc.failures[0])
					}
				}
				if err := end(t.Context(), charger, e, one); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, chargedTo(t, e, store)); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				var s v1alpha1.Session
				if err := e.Reader.Get(t.Context(), client.ObjectKeyFromObject(talk()), &s); err != nil {
					t.Fatal(err)
				}
				at, isWritten := s.Status.LastTurnTime, tc.want == once
				if isWritten && how != "of a deleted Turn" && !at.Equal(one.Status.CompletionTime) || !isWritten && at != nil {
					t.Errorf("the last turn ended at %s, want %s, written: %t", at, one.Status.CompletionTime, isWritten)
				}
				newWatch(t.Context(), e).OnDelete(one)
				e.all.Wait()
			})
		}
	}
}

// TestNotEndedNamesTheSubAgents checks that the error of a Turn that waits for Turns of its sub-agents names these
// Turns.
func TestNotEndedNamesTheSubAgents(t *testing.T) {
	err := fmt.Errorf("failed to end: %w", notEnded(&loop.Parked{Turns: []string{"child"}}))
	if _, waits := errors.AsType[*loop.Parked](err); !waits || !strings.Contains(err.Error(), "not ended yet: child") {
		t.Errorf("%v, want the name of the child, and its cause", err)
	}
}

// TestJournalOfANewerVersionIsLeft checks that a Turn whose journal only a newer version can end is not given up.
func TestJournalOfANewerVersionIsLeft(t *testing.T) {
	e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), talk(), turnWith(inTalk))...)
	newer := journal.Entry{Seq: 1, Epoch: 1, Kind: journal.RunStarted, Version: journal.PayloadVersion + 1, Payload: []byte("{}")}
	if err := store.Append(t.Context(), "uid-one", newer); err != nil {
		t.Fatal(err)
	}
	one := endedUnbound(t, e)
	charger := NewCharger(e.Engine, e.Reader, e.Client, nil, e.Now, e.Log)
	_, ended := charger.EndFromObject(t.Context(), one)
	_, child := charger.family().usageOfDeleted(t.Context(), "helpdesk", "uid-one")
	for name, err := range map[string]error{
		"Charge": charger.Charge(t.Context(), "uid-one"), "EndFromObject": ended, "usageOfDeleted": child,
	} {
		if !errors.Is(err, journal.ErrNewer) {
			t.Errorf("%s: %v, want ErrNewer, so that a newer version ends the Turn", name, err)
		}
	}
}

// TestAPanicDuringACharge checks that a bug of the engine does not stop the process that charges a Turn, and that the
// Turn is not tried again and again.
func TestAPanicDuringACharge(t *testing.T) {
	for name, charge := range map[string]func(context.Context, *Charger, *v1alpha1.Turn) error{
		"deleted": func(ctx context.Context, c *Charger, _ *v1alpha1.Turn) error { return c.Charge(ctx, "uid-one") },
		"ended": func(ctx context.Context, c *Charger, one *v1alpha1.Turn) error {
			_, err := c.EndFromObject(ctx, one)
			return err
		},
		"of a sub-agent": func(ctx context.Context, c *Charger, _ *v1alpha1.Turn) error {
			spent, err := c.family().usageOfDeleted(ctx, "helpdesk", "uid-one")
			if spent != nil {
				return errors.New("the usage is known")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, store := calling(t, interceptor.Funcs{})
			one := endedUnbound(t, e)
			broken := &turn.Engine{Journal: store, Now: func() time.Time { panic("a bug") }}
			charger := NewCharger(broken, e.Reader, e.Client, nil, e.Now, e.Log)
			if err := charge(t.Context(), charger, one); err != nil {
				t.Errorf("the charge failed with %v, want the bug only in the log", err)
			}
			e.observe(t.Context(), stored(t, e))
			e.all.Wait()
		})
	}
}
