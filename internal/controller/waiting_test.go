package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// newWaitingEnv returns a testEnv, the clock of its TurnReconciler, and a function that returns the Events since its
// last call.
func newWaitingEnv(t *testing.T, objects ...client.Object) (b *testEnv, clock *time.Time, recorded func() []string) {
	t.Helper()
	b = newTestEnv(t, interceptor.Funcs{}, objects...)
	at := now
	b.turns.Now = func() time.Time { return at }
	recorder := events.NewFakeRecorder(1000)
	b.turns.Events = recorder
	return b, &at, func() []string { return drain(recorder) }
}

func drain(recorder *events.FakeRecorder) []string {
	var all []string
	for len(recorder.Events) > 0 {
		all = append(all, <-recorder.Events)
	}
	return all
}

// created gives a Turn this name, and the time now as its creation time.
func created(name string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Name, t.UID, t.CreationTimestamp = name, "", metav1.NewTime(now) }
}

func TestLongWaitEmitsOneEventPerCause(t *testing.T) {
	b, clock, recorded := newWaitingEnv(t, turnWith(created("one")))
	result, err := b.reconcile(t, "one")
	if err != nil || result.RequeueAfter != waitWarning {
		t.Fatalf("first reconciliation: %v, %v; want the next one after %s, when the Turn has waited too long", result, err, waitWarning)
	}
	*clock = clock.Add(waitWarning - time.Second)
	if result, err = b.reconcile(t, "one"); err != nil || result.RequeueAfter != time.Second || len(recorded()) > 0 {
		t.Fatalf("earlier reconciliation: %v, %v; want no Event and a requeue after a second", result, err)
	}
	*clock = clock.Add(time.Second)
	for range 3 {
		if _, err = b.reconcile(t, "one"); err != nil {
			t.Fatal(err)
		}
		*clock = clock.Add(waitWarning)
	}
	want := []string{`Warning WaitingLong the turn has waited for 1m0s and is still WaitingForAgent: Agent ` +
		`"support" does not exist in namespace "helpdesk"`}
	if diff := cmp.Diff(want, recorded()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}

	// Each cause has its own minute.
	if err := b.client.Create(t.Context(), agentWith(metav1.ConditionTrue, "")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.reconcile(t, "one"); err != nil || len(recorded()) > 0 {
		t.Fatalf("got an Event, or %v, as soon as the cause changed", err)
	}
	*clock = clock.Add(waitWarning)
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := recorded(); len(got) != 1 || !strings.Contains(got[0], "is still Pending: no executor is running") {
		t.Errorf("Events for the second cause = %q, want one", got)
	}
	if diff := cmp.Diff(map[metrics.Wait]int{{Namespace: "helpdesk", Reason: "Pending"}: 1}, b.turns.waiting.countsByCause()); diff != "" {
		t.Errorf("waiting Turns (-want +got):\n%s", diff)
	}

	// An executor appears, so the Turn no longer waits.
	if err := b.client.Create(t.Context(), leaseOf("self", 1, *clock)); err != nil {
		t.Fatal(err)
	}
	b.executors.Now = b.turns.Now
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
		t.Fatalf("the Turn was not bound: %v", err)
	}
	if n := b.turns.waiting.countsByCause(); len(n) > 0 {
		t.Errorf("waiting Turns = %v, want none", n)
	}
}

// newRejectingEnv returns a testEnv with a Turn whose status writes all fail with *failure, and a function that
// reconciles the Turn once a minute and returns the Events.
func newRejectingEnv(t *testing.T, failure *error) (b *testEnv, reconcileFor func(minutes int) []string) {
	t.Helper()
	b = newTestEnv(t, interceptor.Funcs{SubResourceUpdate: func(context.Context, client.Client, string, client.Object,
		...client.SubResourceUpdateOption,
	) error {
		return *failure
	}}, turnWith(created("one")))
	clock, recorder := now, events.NewFakeRecorder(1000)
	b.turns.Now, b.turns.Events = func() time.Time { return clock }, recorder
	return b, func(minutes int) []string {
		t.Helper()
		for range minutes {
			if _, err := b.reconcile(t, "one"); err == nil && !apierrors.IsConflict(*failure) {
				t.Fatal("the reconciliation succeeded, want the error of the write")
			}
			clock = clock.Add(waitWarning)
		}
		return drain(recorder)
	}
}

// TestTurnWithoutAnyStatusEmitsAnEvent checks that a Turn whose status the API server rejects gets one Event, although
// its status cannot say why it does not start, and that a status that is accepted ends the count.
func TestTurnWithoutAnyStatusEmitsAnEvent(t *testing.T) {
	denied := webhookerrors.ToStatusErr("check.example", nil)
	large := apierrors.NewInternalError(errors.New("etcdserver: request is too large"))
	for name, tc := range map[string]struct {
		rejected error
		remedy   string
	}{
		"denied":          {denied, "Correct the admission webhook or policy that the cause names: "},
		"too large":       {large, "Remove labels, annotations, ownerReferences, finalizers or managedFields, or delete the turn: "},
		"not permitted":   {apierrors.NewForbidden(turnResource, "one", errors.New("no rule")), "Remove the cause: "},
		"a webhook fails": {apierrors.NewInternalError(errors.New(`failed calling webhook "a.example": refused`)), "Remove the cause: "},
	} {
		t.Run(name, func(t *testing.T) {
			rejected := tc.rejected
			b, reconcileFor := newRejectingEnv(t, &rejected)
			if got := reconcileFor(1); len(got) > 0 {
				t.Errorf("Events %q, want none after the first rejection", got)
			}
			want := "Warning StatusRejected the API server has accepted no status of the turn for 1m0s, so it neither starts nor ends. " +
				tc.remedy + tc.rejected.Error()
			if diff := cmp.Diff([]string{want}, reconcileFor(3)); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			wantCounts := map[metrics.Wait]int{{Namespace: "helpdesk", Reason: v1alpha1.EventStatusRejected}: 1}
			if diff := cmp.Diff(wantCounts, b.turns.waiting.countsByCause()); diff != "" {
				t.Errorf("waiting Turns (-want +got):\n%s", diff)
			}
			b.turns.waiting.accepted(client.ObjectKey{Namespace: "helpdesk", Name: "one"})
			if got := reconcileFor(1); len(got) > 0 {
				t.Errorf("Events %q, want none after the first rejection since an accepted status", got)
			}
			if n := b.turns.waiting.countsByCause(); len(n) > 0 {
				t.Errorf("waiting Turns = %v, want none after a short rejection", n)
			}
			rejected = conflict
			if got := strings.Join(reconcileFor(3), ""); strings.Contains(got, v1alpha1.EventStatusRejected) {
				t.Errorf("Events %q, want no %s: a conflict is no rejection", got, v1alpha1.EventStatusRejected)
			}
		})
	}
}

// TestRejectedTurnCountsOnce checks that a Turn that has a condition counts under its reason, although the API server
// rejects its next status, and that a deleted Turn does not count.
func TestRejectedTurnCountsOnce(t *testing.T) {
	var w waitingTurns
	one := turnWith(created("one"))
	for _, at := range []time.Time{now, now.Add(waitWarning)} {
		w.rejected(one, at)
	}
	rejected := map[metrics.Wait]int{{Namespace: "helpdesk", Reason: v1alpha1.EventStatusRejected}: 1}
	if diff := cmp.Diff(rejected, w.countsByCause()); diff != "" {
		t.Errorf("without a condition (-want +got):\n%s", diff)
	}
	one.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionUnknown, Reason: v1alpha1.TurnReasonQueued,
	}}
	w.observe(one, true, time.Hour, now.Add(waitWarning))
	queued := map[metrics.Wait]int{{Namespace: "helpdesk", Reason: v1alpha1.TurnReasonQueued}: 1}
	if diff := cmp.Diff(queued, w.countsByCause()); diff != "" {
		t.Errorf("with a condition (-want +got):\n%s", diff)
	}
	one.Status.Executor = &v1alpha1.ExecutorBinding{Name: "lost", Epoch: 1}
	w.observe(one, true, time.Hour, now.Add(waitWarning))
	if diff := cmp.Diff(rejected, w.countsByCause()); diff != "" {
		t.Errorf("bound to an executor that is lost (-want +got):\n%s", diff)
	}
	if w.forget(client.ObjectKeyFromObject(one)); len(w.countsByCause()) > 0 {
		t.Errorf("waiting Turns = %v after the deletion, want none", w.countsByCause())
	}
}

// TestOutageRejectsNoStatus checks that an outage of the API server is not reported as a rejection, also if it is
// longer than waitWarning, and that an outage between two rejections ends nothing.
func TestOutageRejectsNoStatus(t *testing.T) {
	for name, failure := range map[string]error{
		"no connection":     syscall.ECONNREFUSED,
		"no answer in time": context.DeadlineExceeded,
		"no etcd":           broken,
		"a time-out":        apierrors.NewTimeoutError("request did not complete within the requested timeout", 1),
		"unavailable":       apierrors.NewServiceUnavailable("apiserver is shutting down"),
		"too many requests": apierrors.NewTooManyRequestsError("try again"),
	} {
		t.Run(name, func(t *testing.T) {
			err := failure
			_, reconcileFor := newRejectingEnv(t, &err)
			if got := reconcileFor(5); len(got) > 0 {
				t.Errorf("Events %q, want none: the API server has rejected nothing", got)
			}
			err = webhookerrors.ToStatusErr("check.example", nil)
			if got := reconcileFor(1); len(got) > 0 {
				t.Errorf("Events %q, want none after the first rejection", got)
			}
			err = failure
			if got := reconcileFor(1); len(got) > 0 {
				t.Errorf("Events %q, want none in the outage", got)
			}
			err = webhookerrors.ToStatusErr("check.example", nil)
			if got := strings.Join(reconcileFor(1), ""); !strings.Contains(got, "accepted no status of the turn for 2m0s") {
				t.Errorf("Events %q, want one that counts from the first rejection", got)
			}
		})
	}
}

// TestBoundTurnThatWaitsLongEmitsAnEvent checks that a Turn whose run waits for a ModelProvider or for memory gets one
// Event for each of these causes, unless it makes steps, and that the metrics of waiting Turns do not count it.
func TestBoundTurnThatWaitsLongEmitsAnEvent(t *testing.T) {
	one := turnWith(created("one"), func(t *v1alpha1.Turn) { t.Spec.Limits = &v1alpha1.Limits{TimeoutSeconds: new(int32(3600))} })
	b, clock, recorded := newWaitingEnv(t, one, agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	b.executors.Now = b.turns.Now
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
		t.Fatalf("the Turn was not bound: %v", err)
	}
	// setWait writes the status of the Turn as its executor does.
	setWait := func(wait turnstatus.RunWait, steps int) {
		t.Helper()
		one := b.turn(t, "one")
		turnstatus.ReportProgress(one, turnstatus.Run{Progress: &turn.Progress{Counts: turn.Counts{Steps: steps}}}, &wait, *clock)
		if err := b.client.Status().Update(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	// after advances the clock, reconciles the Turn, and returns the time until its next reconciliation.
	after := func(d time.Duration) time.Duration {
		t.Helper()
		*clock = clock.Add(d)
		lease := leaseOf("self", 1, *clock)
		if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
			t.Fatal(err)
		}
		lease.Spec.RenewTime = &metav1.MicroTime{Time: *clock}
		if err := b.client.Update(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
		result, err := b.reconcile(t, "one")
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	provider := turnstatus.RunWait{Provider: "openai"}
	setWait(provider, 1)
	if again := after(0); again != waitWarning {
		t.Errorf("the Turn is reconciled again after %s, want %s", again, waitWarning)
	}
	setWait(provider, 2)
	if again := after(waitWarning); again != waitWarning {
		t.Errorf("the Turn has made a step: it is reconciled again after %s, want %s", again, waitWarning)
	}
	after(waitWarning)
	after(waitWarning)
	setWait(turnstatus.RunWait{}, 2)
	after(time.Second)
	setWait(turnstatus.RunWait{Memory: true}, 2)
	after(time.Second)
	after(waitWarning)
	after(waitWarning)
	const begins = `Warning WaitingLong the turn has waited for 1m0s and makes no progress: bound to executor "self", and waiting for `
	want := []string{
		begins + `ModelProvider "openai": its rate limits or its circuit breaker hold the next request back`,
		begins + "RAM of the manager: the conversations of the namespace use their whole share of it",
	}
	if diff := cmp.Diff(want, recorded()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if n := b.turns.waiting.countsByCause(); len(n) > 0 {
		t.Errorf("waiting Turns = %v, want none: the Turn has a slot", n)
	}
	one = b.turn(t, "one")
	one.Spec.Limits.TimeoutSeconds = new(int32(60))
	if err := b.client.Update(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	setWait(provider, 2)
	if again := after(time.Second); again != 30*time.Second {
		t.Errorf("with a time limit of a minute, the Turn is reconciled again after %s, want 30s", again)
	}
	setWait(turnstatus.RunWait{}, 2)
	if after(time.Second); len(b.turns.waiting.turns) > 0 {
		t.Errorf("recorded waits = %v, want none", b.turns.waiting.turns)
	}
}

// TestTurnThatHasRunReportsItsLastWait checks that the Event of a Turn that has run, and has then waited for people,
// reports only the wait that is too long.
func TestTurnThatHasRunReportsItsLastWait(t *testing.T) {
	one := turnWith(created("one"), boundTo("lost"), handedBack(v1alpha1.TurnReasonPending), started(0),
		limited(v1alpha1.Limits{TimeoutSeconds: new(int32(24 * 3600))}), func(t *v1alpha1.Turn) {
			addCondition(t, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.TurnReasonPending, now)
		})
	b, clock, recorded := newWaitingEnv(t, one, agentWith(metav1.ConditionTrue, ""))
	*clock = clock.Add(2 * time.Hour)
	for range 2 {
		if _, err := b.reconcile(t, "one"); err != nil {
			t.Fatal(err)
		}
		*clock = clock.Add(waitWarning)
	}
	want := []string{"Warning WaitingLong the turn has waited for 1m0s and is still Pending: no executor is running"}
	if diff := cmp.Diff(want, recorded()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// waitsOf returns the total time of the ended waits in a namespace, by reason and in seconds.
func waitsOf(t *testing.T, namespace string) map[string]float64 {
	t.Helper()
	families, err := registry.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "capstan_turn_wait_by_reason_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == namespace {
				sums[m.GetLabel()[1].GetValue()] = m.GetHistogram().GetSampleSum()
			}
		}
	}
	return sums
}

// TestWaitsCountByReason checks that each wait of a Turn counts once, under its reason and with its own time.
func TestWaitsCountByReason(t *testing.T) {
	one := turnWith(func(t *v1alpha1.Turn) { t.Namespace, t.UID = "waits-by-reason", "u" })
	var w waitingTurns
	at := now
	for _, step := range []struct {
		reason string
		after  time.Duration
	}{
		{v1alpha1.TurnReasonWaitingForAgent, time.Second},
		{v1alpha1.TurnReasonWaitingForAgent, 5 * time.Second},
		{v1alpha1.TurnReasonQueued, 7 * time.Second},
		{v1alpha1.TurnReasonAwaitingApproval, time.Minute},
		{v1alpha1.TurnReasonQueued, 9 * time.Second},
		{v1alpha1.TurnReasonRunning, time.Minute},
		{v1alpha1.TurnReasonRunning, time.Minute},
	} {
		one.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionUnknown, Reason: step.reason,
		}}
		w.observe(one, true, time.Hour, at)
		at = at.Add(step.after)
	}
	want := map[string]float64{v1alpha1.TurnReasonWaitingForAgent: 6, v1alpha1.TurnReasonQueued: 16}
	if diff := cmp.Diff(want, waitsOf(t, one.Namespace)); diff != "" {
		t.Errorf("seconds of waits (-want +got):\n%s", diff)
	}
}

// TestWaitWithoutAgent checks since when a Turn counts as waiting without its Agent.
func TestWaitWithoutAgent(t *testing.T) {
	one := turnWith(func(t *v1alpha1.Turn) { t.UID = "u" })
	var w waitingTurns
	for i, step := range []struct {
		reason   string
		hasAgent bool
		want     time.Duration // before the step
	}{
		{v1alpha1.TurnReasonQueued, true, 0},
		{v1alpha1.TurnReasonWaitingForAgent, false, 0}, // it is deleted
		{v1alpha1.TurnReasonWaitingForAgent, false, time.Minute},
		{v1alpha1.TurnReasonWaitingForSubAgent, false, 2 * time.Minute},
		{v1alpha1.TurnReasonQueued, true, 3 * time.Minute}, // it is created again
		{v1alpha1.TurnReasonWaitingForAgent, true, 0},      // it is not ready
		{v1alpha1.TurnReasonWaitingForAgent, false, 0},
		{v1alpha1.TurnReasonWaitingForAgent, false, time.Minute},
	} {
		at := now.Add(time.Duration(i) * time.Minute)
		if got := w.withoutAgent(one, at); got != step.want {
			t.Errorf("step %d: %s without an Agent, want %s", i, got, step.want)
		}
		one.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionUnknown, Reason: step.reason,
		}}
		w.observe(one, step.hasAgent, time.Hour, at)
	}
	w.agentCreated(client.ObjectKey{Namespace: one.Namespace, Name: "another"})
	if got := w.withoutAgent(one, now.Add(time.Hour)); got == 0 {
		t.Error("another Agent exists, but the Turn's Agent is still missing")
	}
	w.agentCreated(one.AgentKey())
	if got := w.withoutAgent(one, now.Add(time.Hour)); got != 0 {
		t.Errorf("the Agent exists again: %s, want 0", got)
	}
	if got := w.withoutAgent(turnWith(func(t *v1alpha1.Turn) { t.UID = "v" }), now.Add(time.Hour)); got != 0 {
		t.Errorf("a new Turn of that name: %s, want 0", got)
	}
}

func TestShortStartingDeadlineWarnsEarlier(t *testing.T) {
	b, clock, recorded := newWaitingEnv(t, turnWith(created("one"), func(t *v1alpha1.Turn) {
		t.Spec.Limits = &v1alpha1.Limits{StartingDeadlineSeconds: new(int32(20))}
	}))
	if result, err := b.reconcile(t, "one"); err != nil || result.RequeueAfter != 10*time.Second {
		t.Fatalf("first reconciliation: %v, %v; want the next one after 10s", result, err)
	}
	*clock = clock.Add(10 * time.Second)
	if _, err := b.reconcile(t, "one"); err != nil || len(recorded()) != 1 {
		t.Errorf("got no Event before the Turn ends (%v)", err)
	}
}

// TestWaitEventsAreBounded checks that the number of Events of a namespace and a cause is limited, and that another
// namespace still gets its Events.
func TestWaitEventsAreBounded(t *testing.T) {
	const many = 200
	objects := []client.Object{turnWith(created("other"), func(t *v1alpha1.Turn) { t.Namespace = "sales" })}
	for i := range many {
		objects = append(objects, turnWith(created(fmt.Sprint("turn-", i))))
	}
	b, clock, recorded := newWaitingEnv(t, objects...)
	reconcileAll := func() {
		t.Helper()
		for _, o := range objects {
			if _, err := b.turns.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	reconcileAll()
	*clock = clock.Add(waitWarning)
	reconcileAll()
	reconcileAll()
	got := recorded()
	if len(got) != warningsOfNamespace+1 {
		t.Errorf("%d waiting Turns caused %d Events, want %d for one namespace and one for the other", many+1, len(got),
			warningsOfNamespace)
	}
	last := got[len(got)-1]
	if want := "Warning WaitingLong 10 turns of this namespace have waited too long in state WaitingForAgent; " +
		"no more of these Events are emitted for 10m0s"; !strings.HasPrefix(last, want) {
		t.Errorf("the last Event = %q, want it to begin with %q", last, want)
	}
	for _, o := range objects {
		if err := b.client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	reconcileAll()
	if n := len(b.turns.waiting.turns); n != 0 {
		t.Errorf("%d deleted Turns are still recorded, want none", n)
	}
}

func TestFailingServerEmitsOneEvent(t *testing.T) {
	d := newToolServerEnv(t, netpolicy.NewLocalPolicy())
	d.reconcileAfter(t, 0)
	if got := drain(d.events); len(got) > 0 {
		t.Errorf("Events of a server that always answers = %q, want none", got)
	}
	d.respondWith(503, "down")
	for range 4 {
		d.reconcileAfter(t, time.Minute)
	}
	if got := drain(d.events); len(got) != 1 || !strings.HasPrefix(got[0], "Warning EndpointUnreachable ") {
		t.Errorf("Events of four failed checks = %q, want one", got)
	}
	d.respondWith(401, "no")
	d.reconcileAfter(t, time.Minute)
	d.answer.Store(nil)
	d.reconcileAfter(t, time.Minute)
	d.reconcileAfter(t, time.Minute)
	got := drain(d.events)
	if len(got) != 2 || !strings.HasPrefix(got[0], "Warning CredentialsRejected ") || got[1] != "Normal Ready the server answers" {
		t.Errorf("Events of another failure, and of the recovery = %q, want one of each", got)
	}
}
