package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// now is when the decisions are made; the Turns of these tests were created a minute before.
var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func turnWith(change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	t := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "helpdesk", Name: "one", UID: "uid-one", Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(-time.Minute)),
		},
		Spec: v1alpha1.TurnSpec{AgentRef: v1alpha1.ObjectReference{Name: "support"}, Message: "Hello", DesiredState: v1alpha1.DesiredStateActive},
	}
	for _, f := range change {
		f(t)
	}
	return t
}

func desires(s v1alpha1.DesiredState) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.DesiredState = s }
}

func boundTo(name string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Status.Executor = &v1alpha1.ExecutorBinding{Name: name, Epoch: 1}
		condition(t, v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, v1alpha1.TurnReasonRunning, now)
	}
}

func waitsAs(reason string, since time.Duration) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		condition(t, v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, reason, now.Add(-since))
		if reason != v1alpha1.TurnReasonSuspended {
			condition(t, v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, now.Add(-since))
		}
	}
}

func started(ago time.Duration) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		start := metav1.NewMicroTime(now.Add(-ago))
		t.Status.StartTime = &start
	}
}

func finished(ago time.Duration) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		end := metav1.NewMicroTime(now.Add(-ago))
		t.Status.CompletionTime = &end
		t.Status.ObservedGeneration = t.Generation
		condition(t, v1alpha1.ConditionSucceeded, metav1.ConditionTrue, v1alpha1.TurnReasonCompleted, end.Time)
	}
}

func keeps(seconds int32) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.TTLSecondsAfterFinished = &seconds }
}

func limited(l v1alpha1.Limits) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.Limits = &l }
}

func condition(t *v1alpha1.Turn, kind string, status metav1.ConditionStatus, reason string, since time.Time) {
	t.Status.Conditions = append(t.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(since),
	})
}

func agentWith(status metav1.ConditionStatus, message string, change ...func(*v1alpha1.Agent)) *v1alpha1.Agent {
	a := &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "support", Generation: 1}}
	if status != "" {
		a.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: status, Message: message, ObservedGeneration: 1,
		}}
	}
	for _, f := range change {
		f(a)
	}
	return a
}

func modelsResolved(status metav1.ConditionStatus) func(*v1alpha1.Agent) {
	return func(a *v1alpha1.Agent) {
		a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionModelsResolved, Status: status, ObservedGeneration: 1})
	}
}

// givenBack is a Turn that its executor gave back, to wait for this.
func givenBack(reason string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Status.Executor.Name = ""
		t.Status.Conditions[0].Reason = reason
	}
}

// unprepared is a Turn that its executor gave back without a prompt.
func unprepared(t *v1alpha1.Turn) {
	condition(t, v1alpha1.ConditionPrepared, metav1.ConditionUnknown, v1alpha1.TurnReasonNotPrepared, now)
}

func TestDecide(t *testing.T) {
	ready := agentWith(metav1.ConditionTrue, "")
	noProfile := agentWith(metav1.ConditionFalse, "its profile is missing", modelsResolved(metav1.ConditionTrue))
	const byDefault = time.Duration(v1alpha1.DefaultStartingDeadlineSeconds) * time.Second
	const untilStart = byDefault - time.Minute + time.Second
	huge := func(t *v1alpha1.Turn) { t.Spec.Message = strings.Repeat("x", v1alpha1.MaxSpecBytes) }
	suspended := decision{
		action: wait, reason: v1alpha1.TurnReasonSuspended, message: "the turn is suspended; set desiredState to Active to go on",
	}
	for name, tc := range map[string]struct {
		turn    *v1alpha1.Turn
		agent   *v1alpha1.Agent
		lives   bool
		missing string
		recheck time.Duration
		want    decision
	}{
		"a new Turn of a ready agent is admitted": {
			turn: turnWith(), agent: ready, want: decision{action: admit, after: untilStart},
		},
		"a finished Turn without a time to live is left alone": {
			turn: turnWith(finished(time.Hour)), want: decision{action: nothing},
		},
		"a finished Turn is looked at again when its time to live is over": {
			turn: turnWith(finished(time.Second), keeps(60)), want: decision{action: nothing, after: 59 * time.Second},
		},
		"a finished Turn is removed to the second": {
			turn: turnWith(finished(time.Minute), keeps(60)), want: decision{action: remove},
		},
		"a finished Turn with a newer spec is observed, and kept for its time": {
			turn: turnWith(finished(time.Second), keeps(60), func(t *v1alpha1.Turn) { t.Generation = 2 }),
			want: decision{action: observe, after: 59 * time.Second},
		},
		"the end goes before all else": {
			turn: turnWith(finished(time.Hour), desires(v1alpha1.DesiredStateCancelled), huge), want: decision{action: nothing},
		},
		"a bound Turn is its executor's, cancelled or not": {
			turn: turnWith(boundTo("e"), started(time.Hour), desires(v1alpha1.DesiredStateCancelled)), agent: ready, lives: true,
			want: decision{action: follow},
		},
		"a Turn of a lost executor is admitted anew, within its time": {
			turn: turnWith(boundTo("e"), started(30*time.Second)), agent: ready, want: decision{action: admit, after: 30 * time.Second},
		},
		"a Turn of a lost executor can be cancelled": {
			turn: turnWith(boundTo("e"), desires(v1alpha1.DesiredStateCancelled)), agent: ready,
			want: decision{action: settle, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled while it was not running"},
		},
		"a Turn of a lost executor without its agent can be cancelled": {
			turn: turnWith(boundTo("e"), desires(v1alpha1.DesiredStateCancelled)),
			want: decision{action: settle, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled while it was not running"},
		},
		"a Turn of a lost executor can be suspended": {
			turn: turnWith(boundTo("e"), desires(v1alpha1.DesiredStateSuspended)), agent: ready, want: suspended,
		},
		"a Turn of a lost executor ends when its time is over": {
			turn: turnWith(boundTo("e"), started(2*time.Minute)), agent: ready,
			want: decision{
				action: settle, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 1m0s while no executor ran it; it was Running",
			},
		},
		"the lowest limit counts, the agent's too": {
			turn: turnWith(boundTo("e"), started(20*time.Second), limited(v1alpha1.Limits{TimeoutSeconds: new(int32(30))})),
			agent: agentWith(metav1.ConditionTrue, "", func(a *v1alpha1.Agent) {
				a.Spec.Limits = &v1alpha1.Limits{TimeoutSeconds: new(int32(10))}
			}),
			want: decision{
				action: settle, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 10s while no executor ran it; it was Running",
			},
		},
		"cancelling goes before the size of the spec": {
			turn: turnWith(desires(v1alpha1.DesiredStateCancelled), huge), agent: ready,
			want: decision{action: end, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled before it ran"},
		},
		"suspending goes before the deadline": {
			turn:  turnWith(desires(v1alpha1.DesiredStateSuspended), limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(1))})),
			agent: ready, want: suspended,
		},
		"a spec that is too large goes before the deadline": {
			turn: turnWith(huge, limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(1))})), agent: ready,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonInvalidSpec,
				message: "spec is 98411 bytes of JSON and must be at most 98304: shorten message, history, context or shaping, or put texts into a ConfigMap",
			},
		},
		"a Turn that waited too long ends, and says for what": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonWaitingForAgent, 11*time.Second), limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})),
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: `the turn did not start within 10s (limits.startingDeadlineSeconds); it was WaitingForAgent: Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"the time to start counts from the creation where nobody has looked yet": {
			turn: turnWith(limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(59))})), agent: ready,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn did not start within 59s (limits.startingDeadlineSeconds)",
			},
		},
		"the time to start begins anew when a suspension ends": {
			turn:  turnWith(waitsAs(v1alpha1.TurnReasonSuspended, 50*time.Second), limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})),
			agent: ready, want: decision{action: admit, after: 10 * time.Second},
		},
		"a Turn without its agent waits, until its time to start is over": {
			turn: turnWith(),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: untilStart,
				message: `Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"a Turn that ran before and waits for its agent ends in time": {
			turn: turnWith(started(30 * time.Second)),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 30 * time.Second,
				message: `Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"an agent that is not ready says why": {
			turn: turnWith(), agent: agentWith(metav1.ConditionFalse, "its profile is missing"),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: untilStart,
				message: `Agent "support" is not ready: its profile is missing`,
			},
		},
		"what is said of an older spec of the agent does not count": {
			turn: turnWith(), agent: agentWith(metav1.ConditionTrue, "", func(a *v1alpha1.Agent) { a.Generation = 2 }),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: untilStart, message: `Agent "support" is not checked yet`,
			},
		},
		"a queued Turn stays in its queue while its changed agent is looked at": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonQueued, 10*time.Second)), agent: agentWith("", ""),
			want: decision{action: hold, after: byDefault - 9*time.Second},
		},
		"a Turn that may have its prompt goes on, whatever has become of its profile": {
			turn: turnWith(boundTo("e"), started(30*time.Second)), agent: noProfile, want: decision{action: admit, after: 30 * time.Second},
		},
		"a Turn that may have its prompt waits for the moment in which its profile is looked at": {
			turn: turnWith(boundTo("e"), started(30*time.Second)),
			agent: agentWith(metav1.ConditionFalse, "its profile is not rendered yet", modelsResolved(metav1.ConditionTrue), func(a *v1alpha1.Agent) {
				meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{
					Type: v1alpha1.ConditionProfileResolved, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonProfileNotRendered,
				})
			}),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 30 * time.Second,
				message: `Agent "support" is not ready: its profile is not rendered yet`,
			},
		},
		"a Turn that may have its prompt goes on when its models are back, although its profile has gone meanwhile": {
			turn:  turnWith(boundTo("e"), started(30*time.Second), givenBack(v1alpha1.TurnReasonWaitingForAgent)),
			agent: noProfile, want: decision{action: admit, after: 30 * time.Second},
		},
		"a Turn that has no prompt yet goes on when its agent is ready": {
			turn:  turnWith(boundTo("e"), started(30*time.Second), givenBack(v1alpha1.TurnReasonWaitingForAgent), unprepared),
			agent: ready, want: decision{action: admit, after: 30 * time.Second},
		},
		"a Turn that has run is cancelled with what its journal holds, whatever has become of its profile": {
			turn: turnWith(boundTo("e"), desires(v1alpha1.DesiredStateCancelled)), agent: noProfile,
			want: decision{action: settle, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled while it was not running"},
		},
		"a Turn that has run ends in time with what its journal holds, whatever has become of its models": {
			turn:  turnWith(boundTo("e"), started(2*time.Minute), givenBack(v1alpha1.TurnReasonWaitingForAgent)),
			agent: agentWith(metav1.ConditionFalse, "its provider is missing", modelsResolved(metav1.ConditionFalse)),
			want: decision{
				action: settle, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 1m0s while no executor ran it; it was WaitingForAgent: " +
					`Agent "support" is not ready: its provider is missing`,
			},
		},
		"a Turn that never had a prompt ends in time where it is, and says what it waited for": {
			turn:  turnWith(boundTo("e"), started(2*time.Minute), givenBack(v1alpha1.TurnReasonWaitingForAgent), unprepared),
			agent: noProfile,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 1m0s while no executor ran it; it was WaitingForAgent: " +
					`Agent "support" is not ready: its profile is missing`,
			},
		},
		"a Turn looks again for its ConfigMap where no event will tell": {
			turn: turnWith(), agent: ready, missing: `ConfigMap "terms" does not exist`, recheck: time.Second,
			want: decision{action: wait, reason: v1alpha1.TurnReasonPending, after: time.Second, message: `ConfigMap "terms" does not exist`},
		},
		"a Turn does not wait for its ConfigMap beyond its time to start": {
			turn: turnWith(), agent: ready, missing: `ConfigMap "terms" does not exist`, recheck: time.Hour,
			want: decision{action: wait, reason: v1alpha1.TurnReasonPending, after: untilStart, message: `ConfigMap "terms" does not exist`},
		},
		"a Turn that has no prompt yet was given back, and waits": {
			turn:  turnWith(boundTo("e"), started(30*time.Second), givenBack(v1alpha1.TurnReasonWaitingForAgent), unprepared),
			agent: noProfile,
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 30 * time.Second,
				message: `Agent "support" is not ready: its profile is missing`,
			},
		},
		"a Turn that may have its prompt waits for models": {
			turn:  turnWith(boundTo("e"), started(30*time.Second)),
			agent: agentWith(metav1.ConditionFalse, "its provider is missing", modelsResolved(metav1.ConditionFalse)),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 30 * time.Second,
				message: `Agent "support" is not ready: its provider is missing`,
			},
		},
		"a Turn whose ConfigMap is missing waits for it, until its time to start is over": {
			turn: turnWith(), agent: ready, missing: `ConfigMap "terms" does not exist`,
			want: decision{action: wait, reason: v1alpha1.TurnReasonPending, after: untilStart, message: `ConfigMap "terms" does not exist`},
		},
		"an agent that is not ready goes before a ConfigMap that is missing": {
			turn: turnWith(), missing: `ConfigMap "terms" does not exist`,
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: untilStart,
				message: `Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"a Turn that waited too long for a ConfigMap says so": {
			turn:  turnWith(waitsAs(v1alpha1.TurnReasonPending, 11*time.Second), limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})),
			agent: ready, missing: `ConfigMap "terms" does not exist`,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: `the turn did not start within 10s (limits.startingDeadlineSeconds); it was Pending: ConfigMap "terms" does not exist`,
			},
		},
		"a Turn that waits for a ConfigMap can be cancelled": {
			turn: turnWith(desires(v1alpha1.DesiredStateCancelled)), agent: ready, missing: `ConfigMap "terms" does not exist`,
			want: decision{action: end, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled before it ran"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, turn := range wholeAndStripped(tc.turn) {
				got := decide(view{turn: turn, agent: tc.agent, executorLives: tc.lives, missing: tc.missing, recheck: tc.recheck, now: now})
				if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(decision{})); diff != "" {
					t.Errorf("the decision is another (-want +got):\n%s", diff)
				}
			}
		})
	}
}
