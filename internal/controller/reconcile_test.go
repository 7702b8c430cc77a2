package controller

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/scheduler"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// testEnv holds the two reconcilers that bind Turns, on an API server in memory.
type testEnv struct {
	client    client.WithWatch
	turns     *TurnReconciler
	executors *ExecutorReconciler
	// woken holds the names of the Turns that were enqueued.
	woken []string
}

func newTestEnv(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *testEnv {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	b := &testEnv{}
	b.client = interceptor.NewClient(interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Turn{}, &v1alpha1.Agent{}, &v1alpha1.Session{}).
		WithIndex(&v1alpha1.Turn{}, indexTurnSession, turnSession).
		WithIndex(&v1alpha1.Turn{}, indexTurnAgent, turnAgent).
		WithIndex(&v1alpha1.Turn{}, FieldCompletionTime, func(o client.Object) []string {
			if end := o.(*v1alpha1.Turn).Status.CompletionTime; end != nil {
				return []string{end.String()}
			}
			return []string{""}
		}).
		WithIndex(&v1alpha1.Turn{}, indexTurnExecutor, func(o client.Object) []string {
			return []string{o.(*v1alpha1.Turn).BoundTo()}
		}).
		WithIndex(&v1alpha1.Turn{}, indexTurnParent, parentOfTurn).
		WithIndex(&v1alpha1.ToolApproval{}, indexApprovalTurn, turnOfApproval).Build(), b.showWrites()), funcs)
	clock := func() time.Time { return now }
	b.turns = &TurnReconciler{
		Client: b.client, Reader: b.client, Live: b.client, Events: events.NewFakeRecorder(10),
		Now: clock, Approvals: approvals.AcceptAll,
	}
	b.turns.ServerClock = func() time.Time { return b.turns.Now() }
	b.executors = &ExecutorReconciler{
		Client: b.client, Live: b.client, Now: clock, ServerNow: clock, Namespace: "capstan-system",
		Self: "self", Turns: b.turns,
	}
	b.turns.Executors = b.executors
	b.turns.slots = scheduler.New(scheduler.Limits{}, func(turn scheduler.Key, _ bool) { b.woken = append(b.woken, turn.Name) })
	for _, o := range objects {
		b.show(t.Context(), b.client, o)
	}
	queue := turnQueue(&recordingQueue{testEnv: b})
	b.turns.queue.Store(&queue)
	return b
}

// showWrites passes each write to the queues of the Sessions immediately.
func (b *testEnv) showWrites() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			err := c.Create(ctx, o, opts...)
			b.show(ctx, c, o)
			return err
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			err := c.Update(ctx, o, opts...)
			b.show(ctx, c, o)
			return err
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			err := c.Delete(ctx, o, opts...)
			b.show(ctx, c, o)
			return err
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption,
		) error {
			err := c.SubResource(sub).Update(ctx, o, opts...)
			b.show(ctx, c, o)
			return err
		},
	}
}

// show passes the stored version of a Turn to the queues of the Sessions, or removes the Turn from them if it does not
// exist.
func (b *testEnv) show(ctx context.Context, c client.Reader, o client.Object) {
	t, ok := o.(*v1alpha1.Turn)
	if !ok {
		return
	}
	var stored v1alpha1.Turn
	if err := c.Get(ctx, client.ObjectKeyFromObject(t), &stored); err != nil {
		b.turns.sessions.Forget(t.UID)
		return
	}
	b.turns.sessions.Observe(&stored)
}

// recordingQueue implements the part of a queue that reconcilers use.
type recordingQueue struct {
	turnQueue
	testEnv *testEnv
}

// Add records the name of the enqueued Turn.
func (q *recordingQueue) Add(r reconcile.Request) { q.testEnv.woken = append(q.testEnv.woken, r.Name) }

// holdingSlots returns the number of Turns that hold slots.
func (b *testEnv) holdingSlots() int {
	n, _ := b.turns.slots.Counts()
	return n
}

// queued returns the number of Turns that wait for a slot.
func (b *testEnv) queued() int {
	_, n := b.turns.slots.Counts()
	return n
}

// requestNamed returns the request of a Turn that is younger than the Turns that turnWith returns.
func requestNamed(turn, agent string) scheduler.Request {
	return scheduler.Request{
		Turn:  scheduler.Key{Namespace: "helpdesk", Name: turn},
		Agent: scheduler.Agent{Key: scheduler.Key{Namespace: "helpdesk", Name: agent}}, Since: now,
	}
}

func (b *testEnv) reconcile(t *testing.T, name string) (ctrl.Result, error) {
	t.Helper()
	return b.turns.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "helpdesk", Name: name}})
}

func (b *testEnv) turn(t *testing.T, name string) *v1alpha1.Turn {
	t.Helper()
	var turn v1alpha1.Turn
	if err := b.client.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: name}, &turn); err != nil {
		t.Fatal(err)
	}
	return &turn
}

func leaseOf(name string, capacity int, renewed time.Time) *coordinationv1.Lease {
	at, seconds := metav1.NewMicroTime(renewed), int32(15)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "capstan-system", Name: executor.LeasePrefix + name,
			Labels:      map[string]string{executor.LeaseLabel: executor.LeaseLabelValue},
			Annotations: map[string]string{executor.CapacityAnnotation: strconv.Itoa(capacity)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &at, LeaseDurationSeconds: &seconds},
	}
}

// failStatusWrites makes status writes fail: the nth write fails with the nth error, or succeeds if that error is nil.
// All later writes succeed.
func failStatusWrites(failures ...error) interceptor.Funcs {
	n := 0
	return interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
		opts ...client.SubResourceUpdateOption,
	) error {
		n++
		if n <= len(failures) && failures[n-1] != nil {
			return failures[n-1]
		}
		return c.SubResource(sub).Update(ctx, o, opts...)
	}}
}

var (
	turnResource = schema.GroupResource{Group: "capstan.dev", Resource: "turns"}
	conflict     = apierrors.NewConflict(turnResource, "one", errors.New("changed"))
	notFound     = apierrors.NewNotFound(turnResource, "one")
	broken       = apierrors.NewInternalError(errors.New("etcd is unreachable"))
	forbidden    = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "a", errors.New("no rule"))
)

func TestBindingIsOneWrite(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if result, err := b.reconcile(t, "one"); err != nil || !result.IsZero() {
		t.Fatalf("got %v, %v", result, err)
	}
	got := b.turn(t, "one")
	if diff := cmp.Diff(&v1alpha1.ExecutorBinding{Name: "self", Epoch: 1}, got.Status.Executor); diff != "" {
		t.Errorf("binding (-want +got):\n%s", diff)
	}
	if !got.Status.StartTime.Time.Equal(now) || got.StateReason() != v1alpha1.TurnReasonRunning {
		t.Errorf("the binding must start the Turn: %+v", got.Status)
	}
}

// TestOnlyNewTurnsAreRefused checks that a Turn ends as QueueFull only if it is new. A Turn that was queued may have
// another reason by now.
func TestOnlyNewTurnsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Turn)
		want   string
	}{
		"new":                 {func(*v1alpha1.Turn) {}, v1alpha1.TurnReasonQueueFull},
		"queued":              {waitsAs(v1alpha1.TurnReasonQueued, 0), v1alpha1.TurnReasonQueued},
		"without an executor": {waitsAs(v1alpha1.TurnReasonPending, 0), v1alpha1.TurnReasonQueued},
		"suspended before":    {waitsAs(v1alpha1.TurnReasonSuspended, 0), v1alpha1.TurnReasonQueueFull},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestEnv(t, interceptor.Funcs{}, turnWith(tc.change), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
			b.fillQueue()
			if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").StateReason() != tc.want {
				t.Errorf("the Turn is %s, %v; want %s", b.turn(t, "one").StateReason(), err, tc.want)
			}
		})
	}
	t.Run("after a wait for its Agent", func(t *testing.T) {
		agent := agentWith(metav1.ConditionFalse, "no model")
		b := newTestEnv(t, interceptor.Funcs{}, turnWith(waitsAs(v1alpha1.TurnReasonQueued, 0)), agent, leaseOf("self", 1, now))
		b.fillQueue()
		for _, want := range []string{v1alpha1.TurnReasonWaitingForAgent, v1alpha1.TurnReasonQueued} {
			if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").StateReason() != want {
				t.Errorf("the Turn is %s, %v; want %s", b.turn(t, "one").StateReason(), err, want)
			}
			agent.Status.Conditions[0].Status = metav1.ConditionTrue
			if err := b.client.Status().Update(t.Context(), agent); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// fillQueue lets one Turn hold the only slot of the executor self, and another one wait for it, which is the most that
// may wait.
func (b *testEnv) fillQueue() {
	b.turns.slots = scheduler.New(scheduler.Limits{Queued: 1}, func(scheduler.Key, bool) {})
	for _, name := range []string{"runs", "waits"} {
		b.turns.slots.Reserve(requestNamed(name, "other"), []scheduler.Executor{{Name: "self", Capacity: 1}})
	}
}

// TestTurnWhoseAgentStaysAwayIsOverdue checks that a Turn that has run, and whose deleted Agent does not come back, is
// bound so that an executor ends it: the executor does not know how long the Agent has been missing.
func TestTurnWhoseAgentStaysAwayIsOverdue(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(boundTo("lost"), handedBack(v1alpha1.TurnReasonWaitingForAgent), started(time.Hour)),
		leaseOf("next", 1, now))
	for _, step := range []struct {
		at    time.Duration
		bound string
	}{{0, ""}, {59 * time.Second, ""}, {time.Minute, "next"}} {
		b.turns.Now = func() time.Time { return now.Add(step.at) }
		if _, err := b.reconcile(t, "one"); err != nil {
			t.Fatal(err)
		}
		if got := b.turn(t, "one"); got.BoundTo() != step.bound || step.bound != "" && !got.Status.Executor.Overdue {
			t.Errorf("after %s the binding is %+v, want %q", step.at, got.Status.Executor, step.bound)
		}
	}
}

// TestExecutorOfAQueuedTurnIsLost checks a Turn that waits for a ModelProvider, and thus is Queued although it is
// bound. If its executor is lost and no other executor runs, it is unbound like any other Turn.
func TestExecutorOfAQueuedTurnIsLost(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(boundTo("lost"), started(time.Second), heldBack), agentWith(metav1.ConditionTrue, ""))
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := b.turn(t, "one"); got.StateReason() != v1alpha1.TurnReasonPending || got.BoundTo() != "" {
		t.Errorf("the Turn is %s and bound to %q, want it Pending and unbound", got.StateReason(), got.BoundTo())
	}
}

// TestNextExecutorEndsOverdueTurn checks that a Turn whose time is over waits for an executor that ends it, because its
// journal may hold an answer that was paid for.
func TestNextExecutorEndsOverdueTurn(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(boundTo("lost"), started(90*time.Second)), agentWith(metav1.ConditionTrue, ""))
	result, err := b.reconcile(t, "one")
	if err != nil || result.RequeueAfter != 30*time.Second {
		t.Fatalf("got %v, %v; want a requeue for the time at which the controller ends the Turn", result, err)
	}
	if got := b.turn(t, "one"); got.StateReason() != v1alpha1.TurnReasonPending || got.BoundTo() != "" {
		t.Fatalf("without an executor the Turn must wait: %+v", got.Status)
	}
	if err := b.client.Create(t.Context(), leaseOf("next", 1, now)); err != nil {
		t.Fatal(err)
	}
	lease := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "capstan-system", Name: executor.LeasePrefix + "next"}}
	if _, err := b.executors.Reconcile(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(b.woken, "one") {
		t.Errorf("woken: %v, want the Turn: the new executor can end it", b.woken)
	}
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := b.turn(t, "one"); got.BoundTo() != "next" || got.Epoch() != 2 {
		t.Errorf("the Turn must be bound so that the executor ends it: %+v", got.Status.Executor)
	}
	b.woken = nil
	b.turns.slots.SetExecutors([]scheduler.Executor{{Name: "next", Capacity: 1}, {Name: "another", Capacity: 1}})
	if len(b.woken) != 0 {
		t.Errorf("woken: %v, want none: the Turn no longer awaits an executor", b.woken)
	}
}

// TestOverdueAfterSuspension checks a Turn that has run and waits too long for an executor after a suspension. An
// executor must end it with the usage in its journal; if that executor is lost, the next executor must. The Turns of
// its sub-agents end first.
func TestOverdueAfterSuspension(t *testing.T) {
	waited := func(t *v1alpha1.Turn) {
		t.CreationTimestamp = metav1.NewTime(now.Add(-2 * time.Hour))
		addCondition(t, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.TurnReasonQueued, now.Add(-11*time.Minute))
	}
	turn := turnWith(boundTo("lost"), handedBack(v1alpha1.TurnReasonQueued), waited)
	if d := decide(snapshot{
		turn: turn, now: now, withoutAgent: 11 * time.Minute,
		awaited: waitProgress{unfinished: []*v1alpha1.Turn{turnWith()}},
	}); d.action != cancelSubAgents {
		t.Errorf("with a running sub-agent: %+v, want the sub-agent to end first", d)
	}
	b := newTestEnv(t, interceptor.Funcs{}, turn, agentWith(metav1.ConditionTrue, ""), leaseOf("next", 1, now))
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	got := b.turn(t, "one")
	if got.BoundTo() != "next" || got.Epoch() != 2 || !got.Status.Executor.Overdue {
		t.Fatalf("the binding is %+v, want overdue", got.Status.Executor)
	}
	if turnstatus.Bind(got, turnstatus.Binding{Executor: "third"}, now); !got.Status.Executor.Overdue {
		t.Error("the binding to the next executor is not overdue, but this executor must only end the Turn, too")
	}
	if turnstatus.Suspend(got, turnstatus.Run{}, nil, now); got.Status.Executor.Overdue {
		t.Error("a second suspension must restart the starting deadline")
	}
}

// TestTurnEndsWithoutExecutor checks that a Turn waits for an executor that can read the usage in its journal. If no
// executor appears, the Turn ends with the facts in its status, and a call without a result gets an unknown outcome.
func TestTurnEndsWithoutExecutor(t *testing.T) {
	for name, tc := range map[string]struct {
		executor string
		complete bool
		want     int32
	}{
		"a run was lost": {"lost", false, 1},
		"a run was lost after another handed it back":  {"lost", true, 1},
		"an earlier version handed it back":            {"", false, 1},
		"the last run handed it back with all entries": {"", true, 0},
	} {
		turn := turnWith(boundTo(tc.executor), func(t *v1alpha1.Turn) {
			t.Status.Executor.SideEffects, t.Status.Executor.JournalComplete = true, tc.complete
		})
		turnstatus.End(turn, v1alpha1.TurnReasonCancelled, "cancelled", now)
		if got := turn.Status.Steps.UnknownOutcomes; got != tc.want {
			t.Errorf("%s: %d unknown outcomes, want %d", name, got, tc.want)
		}
	}
	called := func(t *v1alpha1.Turn) {
		t.Status.Executor.SideEffects = true
		t.Status.Steps = &v1alpha1.StepCounts{Count: 1, ToolCalls: 2}
		t.Status.ToolCalls = []v1alpha1.ToolCallRecord{
			{CallID: "a", Outcome: v1alpha1.ToolCallSucceeded},
			{CallID: "b", Outcome: v1alpha1.ToolCallPending},
		}
	}
	for name, tc := range map[string]struct {
		state v1alpha1.DesiredState
		age   time.Duration
		want  string
	}{
		"cancelled": {
			v1alpha1.DesiredStateCancelled, 90 * time.Second,
			v1alpha1.TurnReasonPending,
		},
		"cancelled, and no executor appears": {
			v1alpha1.DesiredStateCancelled, 130 * time.Second,
			v1alpha1.TurnReasonCancelled,
		},
		"past its deadline, and no executor appears": {
			v1alpha1.DesiredStateActive, 130 * time.Second,
			v1alpha1.TurnReasonDeadlineExceeded,
		},
		"past its deadline, and an executor may still appear": {v1alpha1.DesiredStateActive, 90 * time.Second, v1alpha1.TurnReasonPending},
	} {
		t.Run(name, func(t *testing.T) {
			turn := turnWith(boundTo("lost"), started(tc.age), called, desired(tc.state))
			b := newTestEnv(t, interceptor.Funcs{}, turn, agentWith(metav1.ConditionTrue, ""))
			b.executors.leases.Lead(now.Add(-startupTime))
			if _, err := b.reconcile(t, "one"); err != nil {
				t.Fatal(err)
			}
			got := b.turn(t, "one")
			if got.StateReason() != tc.want {
				t.Fatalf("got %q, want %q", got.StateReason(), tc.want)
			}
			outcome, unknown := v1alpha1.ToolCallPending, int32(0)
			if got.IsFinished() {
				outcome, unknown = v1alpha1.ToolCallUnknown, 1
			}
			if c := got.Status.ToolCalls; c[0].Outcome != v1alpha1.ToolCallSucceeded || c[1].Outcome != outcome ||
				got.Status.Steps.UnknownOutcomes != unknown {
				t.Errorf("got %+v with %d unknown outcomes, want %s for the second call", c, got.Status.Steps.UnknownOutcomes, outcome)
			}
		})
	}
}

// TestNewLeaderWaitsForExecutor checks that a process that has just begun to lead ends no Turn without an executor,
// however long the Turn has waited: its own executor has no Lease yet, and the time may have passed while no process
// ran. If no executor appears within startupTime, the Turn ends.
func TestNewLeaderWaitsForExecutor(t *testing.T) {
	long := func(t *v1alpha1.Turn) { t.CreationTimestamp = metav1.NewTime(now.Add(-24 * time.Hour)) }
	waited := func(t *v1alpha1.Turn) {
		addCondition(t, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.TurnReasonQueued, now.Add(-12*time.Hour))
	}
	for name, tc := range map[string]struct {
		turn   *v1alpha1.Turn
		reason string
	}{
		"past its deadline": {turnWith(long, boundTo("lost"), started(time.Hour)), v1alpha1.TurnReasonDeadlineExceeded},
		"cancelled": {
			turnWith(long, boundTo("lost"), started(time.Hour), desired(v1alpha1.DesiredStateCancelled)), v1alpha1.TurnReasonCancelled,
		},
		"past its starting deadline": {
			turnWith(long, boundTo("lost"), handedBack(v1alpha1.TurnReasonQueued), waited), v1alpha1.TurnReasonDeadlineExceeded,
		},
	} {
		for appears, end := range map[string]string{"an executor appears": "", "no executor appears": tc.reason} {
			t.Run(name+", "+appears, func(t *testing.T) {
				b := newTestEnv(t, interceptor.Funcs{}, tc.turn.DeepCopy(), agentWith(metav1.ConditionTrue, ""))
				at := now
				b.executors.Exclusive = true
				b.executors.Now, b.turns.Now = func() time.Time { return at }, func() time.Time { return at }
				result, err := b.reconcile(t, "one")
				if err != nil || result.RequeueAfter != startupTime {
					t.Fatalf("got %v, %v; want a requeue after %s", result, err, startupTime)
				}
				if got := b.turn(t, "one"); got.StateReason() != v1alpha1.TurnReasonPending || got.BoundTo() != "" {
					t.Fatalf("the Turn is %s and bound to %q, want it Pending and unbound", got.StateReason(), got.BoundTo())
				}
				at = at.Add(startupTime)
				if end == "" {
					if err := b.client.Create(t.Context(), leaseOf("self", 1, at)); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := b.reconcile(t, "one"); err != nil {
					t.Fatal(err)
				}
				got := b.turn(t, "one")
				if end == "" && got.BoundTo() != "self" {
					t.Errorf("the Turn is %s and bound to %q, want it bound to self", got.StateReason(), got.BoundTo())
				}
				if end != "" && (got.StateReason() != end || !got.EndedWithoutExecutor()) {
					t.Errorf("the Turn is %s and bound to %q, want it to end as %s without an executor",
						got.StateReason(), got.BoundTo(), end)
				}
			})
		}
	}
}

// TestNewLeaderCancelsSubAgents checks that the Turns of sub-agents are cancelled before their parent ends, even if the
// time for that passed while no process ran.
func TestNewLeaderCancelsSubAgents(t *testing.T) {
	parent := turnWith(boundTo("lost"), handedBack(v1alpha1.TurnReasonWaitingForSubAgent), started(time.Hour),
		func(t *v1alpha1.Turn) { t.Status.AwaitedTurns = []string{"child"} })
	b := newTestEnv(t, interceptor.Funcs{}, parent, childOf("uid-one", "child"), agentWith(metav1.ConditionTrue, ""))
	result, err := b.reconcile(t, "one")
	if err != nil || result.RequeueAfter != startupTime {
		t.Fatalf("got %v, %v; want a requeue after %s", result, err, startupTime)
	}
	if parent, child := b.turn(t, "one"), b.turn(t, "child"); parent.IsFinished() || !child.IsCancelled() {
		t.Errorf("the parent is %s and the child is cancelled: %t; want the child cancelled before the parent ends",
			parent.StateReason(), child.IsCancelled())
	}
}

// TestTurnDoesNotWaitForeverForSubAgent checks that a Turn ends without an executor if a Turn of a sub-agent does not
// end within the grace. An executor would only wait for that Turn, and hand this one back.
func TestTurnDoesNotWaitForeverForSubAgent(t *testing.T) {
	parent := turnWith(boundTo("e"), handedBack(v1alpha1.TurnReasonWaitingForSubAgent), started(130*time.Second),
		func(t *v1alpha1.Turn) { t.Status.AwaitedTurns = []string{"child"} })
	child := childOf("uid-one", "child", desired(v1alpha1.DesiredStateCancelled))
	b := newTestEnv(t, interceptor.Funcs{}, parent, child, agentWith(metav1.ConditionTrue, ""),
		leaseOf("e", 4, now))
	b.executors.leases.Lead(now.Add(-startupTime))
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	got := b.turn(t, "one")
	if got.StateReason() != v1alpha1.TurnReasonDeadlineExceeded || !got.EndedWithoutExecutor() {
		t.Errorf("got %s, bound to %q; want an end without an executor", got.StateReason(), got.BoundTo())
	}
	if running, _ := b.turns.slots.Counts(); running != 0 {
		t.Errorf("%d slots are used, want none", running)
	}
}

// TestJournalOfLostExecutorIsIncomplete checks that status.executor.journalComplete does not survive a
// lost executor: the journal may have entries by now.
func TestJournalOfLostExecutorIsIncomplete(t *testing.T) {
	emptyJournal := func(t *v1alpha1.Turn) {
		t.Status.Executor.StoreID, t.Status.Executor.JournalEntries, t.Status.Executor.JournalComplete = "old", new(int64(0)), true
	}
	b := newTestEnv(t, interceptor.Funcs{},
		turnWith(boundTo("lost"), started(time.Second), emptyJournal), agentWith(metav1.ConditionTrue, ""))
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := b.turn(t, "one"); got.BoundTo() != "" || got.Status.Executor.JournalComplete {
		t.Fatalf("the binding is %+v, want no executor, and journalComplete false", got.Status.Executor)
	}
	if err := b.client.Create(t.Context(), leaseOf("next", 1, now)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := b.turn(t, "one").Status.Executor; got.Name != "next" || got.StoreID != "old" || got.JournalComplete {
		t.Errorf("the binding is %+v, want the store of the previous run, and journalComplete false", got)
	}
}

// TestPreparedConditionIsOfLastRun checks that the condition Prepared of an earlier run is removed when a Turn is bound
// or ends: the last run may have prepared the prompt before it was killed.
func TestPreparedConditionIsOfLastRun(t *testing.T) {
	waiting := turnWith(boundTo("e"), handedBack(v1alpha1.TurnReasonWaitingForAgent), unprepared)
	cancelled := turnWith(boundTo("e"), handedBack(v1alpha1.TurnReasonWaitingForAgent), unprepared, desired(v1alpha1.DesiredStateCancelled))
	for name, turn := range map[string]*v1alpha1.Turn{"bound again": waiting, "ended": cancelled} {
		t.Run(name, func(t *testing.T) {
			b := newTestEnv(t, interceptor.Funcs{}, turn, agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
			if _, err := b.reconcile(t, "one"); err != nil {
				t.Fatal(err)
			}
			got := b.turn(t, "one")
			if c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionPrepared); c != nil {
				t.Errorf("the Turn is %s and still has the condition %+v", got.StateReason(), c)
			}
		})
	}
}

func TestBindingConflictIsRetried(t *testing.T) {
	b := newTestEnv(t, failStatusWrites(conflict), turnWith(), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	result, err := b.reconcile(t, "one")
	if err != nil || result.RequeueAfter != staleInterval {
		t.Fatalf("got %v, %v; want a quick retry of a binding that lost a conflict", result, err)
	}
	if b.holdingSlots() != 0 {
		t.Error("a binding that lost a conflict must release its slot")
	}
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the second attempt must bind the Turn: %v", err)
	}
}

func TestBindingOfDeletedTurn(t *testing.T) {
	b := newTestEnv(t, failStatusWrites(notFound), turnWith(), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if result, err := b.reconcile(t, "one"); err != nil || !result.IsZero() {
		t.Errorf("got %v, %v; want no error for a deleted Turn", result, err)
	}
	if b.holdingSlots() != 0 {
		t.Error("a deleted Turn must release its slot")
	}
}

// TestRefusedBindingReleasesSlot checks that a Turn that cannot be bound as it is, for example because it is larger
// than etcd allows, takes no slot from others.
func TestRefusedBindingReleasesSlot(t *testing.T) {
	for name, refused := range map[string]error{
		"invalid":   apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("Turn").GroupKind(), "one", nil),
		"denied":    forbidden,
		"too large": apierrors.NewInternalError(errors.New("etcdserver: request is too large")),
	} {
		b := newTestEnv(t, failStatusWrites(refused), turnWith(), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
		if _, err := b.reconcile(t, "one"); !errors.Is(err, refused) {
			t.Fatalf("%s: got %v, want the error, which requeues the Turn", name, err)
		}
		if n := b.holdingSlots(); n != 0 {
			t.Errorf("%s: %d slots are held, want none", name, n)
		}
		if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
			t.Errorf("%s: the second attempt must bind the Turn: %v", name, err)
		}
	}
}

// TestBindingWithUnknownOutcomeKeepsSlot checks that a Turn keeps its slot if the response to its binding was
// lost, because the write may have succeeded.
func TestBindingWithUnknownOutcomeKeepsSlot(t *testing.T) {
	b := newTestEnv(t, failStatusWrites(broken), turnWith(), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if _, err := b.reconcile(t, "one"); !apierrors.IsInternalError(err) {
		t.Fatalf("got %v, want the error, which requeues the Turn", err)
	}
	if b.holdingSlots() != 1 {
		t.Error("the slot must be kept")
	}
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").Epoch() != 1 {
		t.Errorf("the second attempt must bind the Turn: %v", err)
	}
}

// TestStaleTurnKeepsSlot checks a Turn that was bound and is reconciled before the cache shows the binding. It must not
// count as waiting.
func TestStaleTurnKeepsSlot(t *testing.T) {
	b := newTestEnv(t, failStatusWrites(nil, conflict), turnWith(), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	stale := b.turn(t, "one")
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	b.turns.Client = interceptor.NewClient(b.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if turn, ok := o.(*v1alpha1.Turn); ok {
				stale.DeepCopyInto(turn)
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	if result, err := b.reconcile(t, "one"); err != nil || result.RequeueAfter != staleInterval {
		t.Errorf("got %v, %v; want a requeue for when the cache is up to date", result, err)
	}
	if b.holdingSlots() != 1 {
		t.Error("the slot of a running Turn was given away")
	}
	b.turns.Client = b.client
	if result, err := b.reconcile(t, "one"); err != nil || !result.IsZero() {
		t.Errorf("got %v, %v; want the bound Turn left to its executor", result, err)
	}
}

func TestWriteConflictsAreRetried(t *testing.T) {
	for name, turn := range map[string]*v1alpha1.Turn{
		"waiting":   turnWith(),
		"ending":    turnWith(desired(v1alpha1.DesiredStateCancelled)),
		"observing": turnWith(finished(0), func(t *v1alpha1.Turn) { t.Generation = 2 }),
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestEnv(t, failStatusWrites(conflict), turn)
			if result, err := b.reconcile(t, "one"); err != nil || result.RequeueAfter != staleInterval {
				t.Errorf("got %v, %v", result, err)
			}
			if events := b.turns.Events.(*events.FakeRecorder).Events; len(events) != 0 {
				t.Errorf("an end that was not written emitted an Event: %s", <-events)
			}
		})
	}
}

// TestEndWithLostResponse checks that the end of a Turn emits its Event once, also if the API server has stored the end
// and the response was lost, and if the API server restarts meanwhile. An end that was not stored, or that another
// process has written, emits none.
func TestEndWithLostResponse(t *testing.T) {
	earlier := metav1.NewMicroTime(now.Add(-time.Millisecond))
	for name, tc := range map[string]struct {
		change  func(*v1alpha1.Turn) // what is stored differs from what is sent; nil if nothing is stored
		failure error
		unread  int // the number of reads that fail after the write
		events  int
	}{
		"the connection breaks":              {func(*v1alpha1.Turn) {}, errors.New("connection reset by peer"), 0, 1},
		"the API server fails":               {func(*v1alpha1.Turn) {}, broken, 0, 1},
		"the client repeats the request":     {func(*v1alpha1.Turn) {}, conflict, 0, 1},
		"it was not stored":                  {nil, broken, 0, 0},
		"another process has ended the Turn": {func(t *v1alpha1.Turn) { t.Status.CompletionTime = &earlier }, conflict, 0, 0},
		"the API server restarts":            {func(*v1alpha1.Turn) {}, broken, 4, 1},
		"the API server stays away":          {func(*v1alpha1.Turn) {}, broken, 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				writes := 0
				b := newTestEnv(t, interceptor.Funcs{SubResourceUpdate: func(
					ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption,
				) error {
					if writes++; writes > 1 {
						return c.SubResource(sub).Update(ctx, o, opts...)
					}
					if tc.change != nil {
						stored := o.(*v1alpha1.Turn).DeepCopy() // the sender does not learn the new version
						tc.change(stored)
						if err := c.SubResource(sub).Update(ctx, stored, opts...); err != nil {
							t.Error(err)
						}
					}
					return tc.failure
				}}, turnWith(desired(v1alpha1.DesiredStateCancelled)))
				b.turns.Live = interceptor.NewClient(b.client, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch,
					key client.ObjectKey, o client.Object, opts ...client.GetOption,
				) error {
					if writes == 1 && tc.unread > 0 {
						tc.unread--
						return errors.New("connection refused")
					}
					return c.Get(ctx, key, o, opts...)
				}})
				_, err := b.reconcile(t, "one")
				if retried := err != nil; retried != (tc.events == 0 && !apierrors.IsConflict(tc.failure)) {
					t.Errorf("the error is %v", err)
				}
				all := b.turns.Events.(*events.FakeRecorder).Events
				if len(all) != tc.events {
					t.Errorf("%d Events after the write, want %d", len(all), tc.events)
				}
				want := tc.events
				if tc.change == nil {
					want = 1 // the next reconciliation ends the Turn
				}
				if _, err := b.reconcile(t, "one"); err != nil {
					t.Error(err)
				}
				if got := b.turn(t, "one"); got.StateReason() != v1alpha1.TurnReasonCancelled || len(all) != want {
					t.Errorf("the Turn is %s, with %d Events; want Cancelled, with %d", got.StateReason(), len(all), want)
				}
			})
		})
	}
}

// TestFailingTurnIsSkipped checks that a Turn whose reconciliation fails, or whose Agent is not checked yet, keeps its
// position in the queue, and that the slot that was reserved for it goes to the next Turn.
func TestFailingTurnIsSkipped(t *testing.T) {
	queued := turnWith(waitsAs(v1alpha1.TurnReasonQueued, 0))
	for name, b := range map[string]*testEnv{
		"its reconciliation fails": newTestEnv(t, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if _, ok := o.(*v1alpha1.Agent); ok {
					return broken
				}
				return c.Get(ctx, key, o, opts...)
			},
		}, queued.DeepCopy()),
		"its agent is not checked yet": newTestEnv(t, interceptor.Funcs{}, queued.DeepCopy(), agentWith("", "")),
	} {
		t.Run(name, func(t *testing.T) {
			one := []scheduler.Executor{{Name: "self", Capacity: 1}}
			b.turns.slots.Reserve(requestNamed("runs", "third"), one)
			b.turns.slots.Reserve(requestOf(queued), one)
			b.turns.slots.Reserve(requestNamed("next", "other"), one)
			b.turns.slots.Release(requestNamed("runs", "third").Turn)
			if !slices.Equal(b.woken, []string{"one"}) {
				t.Fatalf("woken: %v, want the Turn", b.woken)
			}
			b.woken = nil
			if _, err := b.reconcile(t, "one"); client.IgnoreNotFound(err) != nil && !apierrors.IsInternalError(err) {
				t.Fatal(err)
			}
			if !slices.Equal(b.woken, []string{"next"}) {
				t.Errorf("woken: %v, want the next Turn", b.woken)
			}
			if !b.turns.slots.IsWaiting(requestOf(queued).Turn) {
				t.Error("the Turn has lost its position in the queue")
			}
		})
	}
}

// TestSeedIsRetried checks that the slots of Turns that were bound before the start are confirmed at the next attempt
// if the first attempt to list these Turns fails.
func TestSeedIsRetried(t *testing.T) {
	failures := 1
	b := newTestEnv(t, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if failures--; failures >= 0 {
				return broken
			}
			return c.List(ctx, list, opts...)
		},
	}, turnWith(boundTo("self")))
	if _, err := b.reconcile(t, "one"); !apierrors.IsInternalError(err) {
		t.Errorf("got %v, want the error of the failed list", err)
	}
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Error(err)
	}
	if b.holdingSlots() != 1 {
		t.Error("a Turn that was bound before the start must have its slot")
	}
}
