package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// now is the time of the decisions. The Turns that turnWith returns were created a minute earlier.
var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func turnWith(change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	t := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "helpdesk", Name: "one", UID: "uid-one", Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(-time.Minute)),
		},
		Spec: v1alpha1.TurnSpec{
			AgentRef: v1alpha1.SharedReference{Name: "support"}, Message: "Hello",
			DesiredState: v1alpha1.DesiredStateActive,
		},
	}
	for _, f := range change {
		f(t)
	}
	return t
}

func desired(s v1alpha1.DesiredState) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.DesiredState = s }
}

func boundTo(name string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Status.Executor = &v1alpha1.ExecutorBinding{Name: name, Epoch: 1}
		addCondition(t, v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, v1alpha1.TurnReasonRunning, now)
	}
}

func waitsAs(reason string, since time.Duration) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		addCondition(t, v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, reason, now.Add(-since))
		if reason != v1alpha1.TurnReasonSuspended {
			addCondition(t, v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, now.Add(-since))
		}
	}
}

// waitMessage sets the message that says why a Turn waits.
func waitMessage(message string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded).Message = message
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
		addCondition(t, v1alpha1.ConditionSucceeded, metav1.ConditionTrue, v1alpha1.TurnReasonCompleted, end.Time)
	}
}

func withTTL(seconds int32) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.TTLSecondsAfterFinished = &seconds }
}

func limited(l v1alpha1.Limits) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.Limits = &l }
}

func addCondition(t *v1alpha1.Turn, kind string, status metav1.ConditionStatus, reason string, since time.Time) {
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
		a.Status.Conditions = append(a.Status.Conditions,
			metav1.Condition{Type: v1alpha1.ConditionModelsResolved, Status: status, ObservedGeneration: 1})
	}
}

// handedBack changes a bound Turn as if its executor had handed it back. The Turn now waits for this reason.
func handedBack(reason string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Status.Executor.Name = ""
		t.Status.Conditions[0].Reason = reason
	}
}

// heldBack makes a bound Turn wait for a ModelProvider.
func heldBack(t *v1alpha1.Turn) { t.Status.Conditions[0].Reason = v1alpha1.TurnReasonQueued }

// unprepared changes a Turn as if its executor had handed it back without a prompt.
func unprepared(t *v1alpha1.Turn) {
	addCondition(t, v1alpha1.ConditionPrepared, metav1.ConditionUnknown, v1alpha1.TurnReasonNotPrepared, now)
}

func TestDecide(t *testing.T) {
	ready := agentWith(metav1.ConditionTrue, "")
	noProfile := agentWith(metav1.ConditionFalse, "its profile is missing", modelsResolved(metav1.ConditionTrue))
	const byDefault = time.Duration(v1alpha1.DefaultStartingDeadlineSeconds) * time.Second
	const untilStart = byDefault - time.Minute + time.Second // one second more, because creation times are truncated
	huge := func(t *v1alpha1.Turn) { t.Spec.Message = strings.Repeat("x", v1alpha1.MaxSpecBytes) }
	suspended := decision{
		action: wait, reason: v1alpha1.TurnReasonSuspended, message: "the turn is suspended; set desiredState to Active to continue",
	}
	lastEpoch := func(t *v1alpha1.Turn) { t.Status.Executor.Epoch = v1alpha1.MaxEpoch }
	usedUp := decision{
		action: end, reason: v1alpha1.TurnReasonInterrupted,
		message: "no executor can take the turn again, because status.executor.epoch has its highest value (9007199254740991), " +
			"which only an edit of the status can set: create a new Turn",
	}
	for name, tc := range map[string]struct {
		turn    *v1alpha1.Turn
		agent   *v1alpha1.Agent
		alive   bool
		missing string
		recheck time.Duration
		// withoutAgent is how long the Turn has waited without an Agent.
		withoutAgent time.Duration
		want         decision
	}{
		"a new Turn of a ready agent is scheduled": {
			turn: turnWith(), agent: ready, want: decision{action: schedule, after: untilStart},
		},
		"a finished Turn that only a finalizer keeps is left alone": {
			turn: turnWith(deleted, finished(time.Hour), withTTL(60)), want: decision{action: nothing},
		},
		"an unfinished Turn that only a finalizer keeps ends": {
			turn: turnWith(deleted, desired(v1alpha1.DesiredStateSuspended)), agent: ready,
			want: decision{action: end, reason: v1alpha1.TurnReasonCancelled, message: "the turn was deleted before it ran"},
		},
		"a Turn that has run and that only a finalizer keeps ends with its journal": {
			turn: turnWith(deleted, boundTo("lost")), agent: ready,
			want: decision{
				action: endFromJournal, reason: v1alpha1.TurnReasonCancelled,
				message: "the turn was deleted while it was not running",
			},
		},
		"a running Turn that only a finalizer keeps is left to its executor": {
			turn: turnWith(deleted, boundTo("e")), agent: ready, alive: true, want: decision{action: follow},
		},
		"a finished Turn without a time to live is left alone": {
			turn: turnWith(finished(time.Hour)), want: decision{action: nothing},
		},
		"a finished Turn is reconciled again when its time to live is over": {
			turn: turnWith(finished(time.Second), withTTL(60)), want: decision{action: nothing, after: 59 * time.Second},
		},
		"a finished Turn is removed when its time to live is over": {
			turn: turnWith(finished(time.Minute), withTTL(60)), want: decision{action: remove},
		},
		"a finished Turn with a newer spec is observed, and kept until its time to live is over": {
			turn: turnWith(finished(time.Second), withTTL(60), func(t *v1alpha1.Turn) { t.Generation = 2 }),
			want: decision{action: observe, after: 59 * time.Second},
		},
		"the rule for finished Turns goes before all others": {
			turn: turnWith(finished(time.Hour), desired(v1alpha1.DesiredStateCancelled), huge), want: decision{action: nothing},
		},
		"a bound Turn is left to its executor, even if it is cancelled": {
			turn: turnWith(boundTo("e"), started(time.Hour), desired(v1alpha1.DesiredStateCancelled)), agent: ready, alive: true,
			want: decision{action: follow},
		},
		"a Turn of a lost executor is bound again before its deadline": {
			turn: turnWith(boundTo("e"), started(30*time.Second)), agent: ready, want: decision{action: schedule, after: 30 * time.Second},
		},
		"a Turn of a lost executor can be cancelled": {
			turn: turnWith(boundTo("e"), desired(v1alpha1.DesiredStateCancelled)), agent: ready,
			want: decision{
				action: endFromJournal, reason: v1alpha1.TurnReasonCancelled,
				message: "the turn was cancelled while it was not running",
			},
		},
		"a Turn of a lost executor without its agent can be cancelled": {
			turn: turnWith(boundTo("e"), desired(v1alpha1.DesiredStateCancelled)),
			want: decision{
				action: endFromJournal, reason: v1alpha1.TurnReasonCancelled,
				message: "the turn was cancelled while it was not running",
			},
		},
		"a Turn of a lost executor that cannot be bound again ends": {
			turn: turnWith(boundTo("e"), lastEpoch, started(30*time.Second)), agent: ready, want: usedUp,
		},
		"a Turn that was handed back and cannot be bound again ends, even if its agent is not ready": {
			turn: turnWith(boundTo("e"), lastEpoch, handedBack(v1alpha1.TurnReasonPending)), want: usedUp,
		},
		"a bound Turn that cannot be bound again is left to its executor": {
			turn: turnWith(boundTo("e"), lastEpoch), agent: ready, alive: true, want: decision{action: follow},
		},
		"a cancelled Turn that cannot be bound again ends without an executor": {
			turn: turnWith(boundTo("e"), lastEpoch, desired(v1alpha1.DesiredStateCancelled)), agent: ready,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled while it was not running",
			},
		},
		"a Turn of a lost executor can be suspended": {
			turn: turnWith(boundTo("e"), desired(v1alpha1.DesiredStateSuspended)), agent: ready, want: suspended,
		},
		"a Turn of a lost executor ends when its time is over": {
			turn: turnWith(boundTo("e"), started(2*time.Minute)), agent: ready,
			want: decision{
				action: endFromJournal, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 1m0s while no executor ran it; it was Running",
			},
		},
		"the lowest limit applies, including the agent's": {
			turn: turnWith(boundTo("e"), started(20*time.Second), limited(v1alpha1.Limits{TimeoutSeconds: new(int32(30))})),
			agent: agentWith(metav1.ConditionTrue, "", func(a *v1alpha1.Agent) {
				a.Spec.Limits = &v1alpha1.Limits{TimeoutSeconds: new(int32(10))}
			}),
			want: decision{
				action: endFromJournal, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 10s while no executor ran it; it was Running",
			},
		},
		"cancellation goes before the size of the spec": {
			turn: turnWith(desired(v1alpha1.DesiredStateCancelled), huge), agent: ready,
			want: decision{action: end, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled before it ran"},
		},
		"suspension goes before the deadline": {
			turn:  turnWith(desired(v1alpha1.DesiredStateSuspended), limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(1))})),
			agent: ready, want: suspended,
		},
		"metadata that is too large ends a Turn": {
			turn: turnWith(func(t *v1alpha1.Turn) {
				t.Finalizers = []string{strings.Repeat("x", v1alpha1.MaxMetadataBytes)}
			}), agent: ready,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonInvalidSpec,
				message: "metadata is 524417 bytes and must be at most 524288: remove labels, annotations, ownerReferences, " +
					"finalizers or managedFields",
			},
		},
		"a spec that is too large goes before the deadline": {
			turn: turnWith(huge, limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(1))})), agent: ready,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonInvalidSpec,
				message: "spec is 98411 bytes of JSON and must be at most 98304: shorten message, history, " +
					"context or shaping, or put texts into a ConfigMap",
			},
		},
		"a Turn that waited too long ends, and its message says why it waited": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonWaitingForAgent, 11*time.Second),
				limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})),
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: `the turn did not start within 10s (limits.startingDeadlineSeconds); it was ` +
					`WaitingForAgent: Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"a Turn that waited too long for a Budget names the Budget": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonWaitingForBudget, 11*time.Second), waitMessage(`Budget "support" is spent`),
				limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})),
			agent: ready,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn did not start within 10s (limits.startingDeadlineSeconds); it was " +
					`WaitingForBudget: Budget "support" is spent`,
			},
		},
		"a Turn that waited too long has the message that belongs to its reason": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonQueued, 11*time.Second), waitMessage("no slot is free"),
				limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})),
			agent: ready, missing: `ConfigMap "terms" does not exist`,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn did not start within 10s (limits.startingDeadlineSeconds); it was Queued: no slot is free",
			},
		},
		"the starting deadline counts from the creation before the first reconciliation": {
			turn: turnWith(limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(59))})), agent: ready,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn did not start within 59s (limits.startingDeadlineSeconds)",
			},
		},
		"the starting deadline restarts after a suspension": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonSuspended, 50*time.Second),
				limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})),
			agent: ready, want: decision{action: schedule, after: 10 * time.Second},
		},
		"a Turn without its agent waits until its starting deadline": {
			turn: turnWith(), withoutAgent: 59 * time.Second,
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: untilStart,
				message: `Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"a Turn that has run waits for its agent until its deadline": {
			turn: turnWith(started(30 * time.Second)), withoutAgent: 30 * time.Second,
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 30 * time.Second,
				message: `Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"a Turn that has waited longer than the default waits for its deleted agent": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonQueued, 20*time.Minute)),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 10 * time.Minute,
				message: `Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"a Turn that has run longer than the default waits for its deleted agent": {
			turn: turnWith(started(3 * time.Minute)), withoutAgent: 20 * time.Second,
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 40 * time.Second,
				message: `Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"a Turn whose own limit is over does not wait for its deleted agent": {
			turn: turnWith(started(3*time.Minute), limited(v1alpha1.Limits{TimeoutSeconds: new(int32(100))})),
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 1m40s while no executor ran it: " +
					`Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"a Turn whose deleted agent does not come back ends": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonWaitingForAgent, 20*time.Minute)), withoutAgent: 10 * time.Minute,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn did not start within 10m0s (limits.startingDeadlineSeconds); it was WaitingForAgent: " +
					`Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"an agent that is not ready says why": {
			turn: turnWith(), agent: agentWith(metav1.ConditionFalse, "its profile is missing"),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: untilStart,
				message: `Agent "support" is not ready: its profile is missing`,
			},
		},
		"a condition for an older spec of the agent does not count": {
			turn: turnWith(), agent: agentWith(metav1.ConditionTrue, "", func(a *v1alpha1.Agent) { a.Generation = 2 }),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: untilStart, message: `Agent "support" is not checked yet`,
			},
		},
		"a queued Turn keeps its position while its changed agent is checked": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonQueued, 10*time.Second)), agent: agentWith("", ""),
			want: decision{action: hold, after: holdRecheck},
		},
		"a Turn whose executor was lost while a ModelProvider held it back waits for its agent": {
			turn:  turnWith(boundTo("e"), started(30*time.Second), heldBack),
			agent: agentWith("", ""), want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 30 * time.Second,
				message: `Agent "support" is not checked yet`,
			},
		},
		"a Turn that may have its prompt continues, even if its profile is faulty": {
			turn: turnWith(boundTo("e"), started(30*time.Second)), agent: noProfile,
			want: decision{action: schedule, after: 30 * time.Second},
		},
		"a Turn that may have its prompt waits while its profile is rendered": {
			turn: turnWith(boundTo("e"), started(30*time.Second)),
			agent: agentWith(metav1.ConditionFalse, "its profile is not rendered yet",
				modelsResolved(metav1.ConditionTrue), func(a *v1alpha1.Agent) {
					meta.SetStatusCondition(&a.Status.Conditions, metav1.Condition{
						Type: v1alpha1.ConditionProfileResolved, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonProfileNotRendered,
					})
				}),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 30 * time.Second,
				message: `Agent "support" is not ready: its profile is not rendered yet`,
			},
		},
		"a Turn that may have its prompt continues when its models are back, although its profile was deleted": {
			turn:  turnWith(boundTo("e"), started(30*time.Second), handedBack(v1alpha1.TurnReasonWaitingForAgent)),
			agent: noProfile, want: decision{action: schedule, after: 30 * time.Second},
		},
		"a Turn without a prompt continues when its agent is ready": {
			turn:  turnWith(boundTo("e"), started(30*time.Second), handedBack(v1alpha1.TurnReasonWaitingForAgent), unprepared),
			agent: ready, want: decision{action: schedule, after: 30 * time.Second},
		},
		"a cancelled Turn that has run is ended by an executor from its journal, even without its profile": {
			turn: turnWith(boundTo("e"), desired(v1alpha1.DesiredStateCancelled)), agent: noProfile,
			want: decision{
				action: endFromJournal, reason: v1alpha1.TurnReasonCancelled,
				message: "the turn was cancelled while it was not running",
			},
		},
		"a Turn that has run is ended at its deadline by an executor from its journal, even without its models": {
			turn:  turnWith(boundTo("e"), started(2*time.Minute), handedBack(v1alpha1.TurnReasonWaitingForAgent)),
			agent: agentWith(metav1.ConditionFalse, "its provider is missing", modelsResolved(metav1.ConditionFalse)),
			want: decision{
				action: endFromJournal, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 1m0s while no executor ran it; it was WaitingForAgent: " +
					`Agent "support" is not ready: its provider is missing`,
			},
		},
		"a Turn without a prompt ends at its deadline without an executor, and says why it waited": {
			turn:  turnWith(boundTo("e"), started(2*time.Minute), handedBack(v1alpha1.TurnReasonWaitingForAgent), unprepared),
			agent: noProfile,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: "the turn reached its time limit of 1m0s while no executor ran it; it was WaitingForAgent: " +
					`Agent "support" is not ready: its profile is missing`,
			},
		},
		"a Turn is rechecked for its ConfigMap where no event reports it": {
			turn: turnWith(), agent: ready, missing: `ConfigMap "terms" does not exist`, recheck: time.Second,
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonPending, after: time.Second,
				message: `ConfigMap "terms" does not exist`,
			},
		},
		"a Turn does not wait for its ConfigMap beyond its starting deadline": {
			turn: turnWith(), agent: ready, missing: `ConfigMap "terms" does not exist`, recheck: time.Hour,
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonPending, after: untilStart,
				message: `ConfigMap "terms" does not exist`,
			},
		},
		"a Turn that was handed back without a prompt waits": {
			turn:  turnWith(boundTo("e"), started(30*time.Second), handedBack(v1alpha1.TurnReasonWaitingForAgent), unprepared),
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
		"a Turn that may have its prompt waits while a redaction rule of its agent cannot be used": {
			turn: turnWith(boundTo("e"), started(30*time.Second), handedBack(v1alpha1.TurnReasonWaitingForAgent)),
			agent: agentWith(metav1.ConditionFalse, "a rule cannot be used", modelsResolved(metav1.ConditionTrue),
				func(a *v1alpha1.Agent) { a.Status.Conditions[0].Reason = v1alpha1.ReasonInvalidRedaction }),
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: 30 * time.Second,
				message: `Agent "support" is not ready: a rule cannot be used`,
			},
		},
		"a Turn waits for a missing ConfigMap until its starting deadline": {
			turn: turnWith(), agent: ready, missing: `ConfigMap "terms" does not exist`,
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonPending, after: untilStart,
				message: `ConfigMap "terms" does not exist`,
			},
		},
		"an agent that is not ready goes before a missing ConfigMap": {
			turn: turnWith(), withoutAgent: 59 * time.Second, missing: `ConfigMap "terms" does not exist`,
			want: decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForAgent, after: untilStart,
				message: `Agent "support" does not exist in namespace "helpdesk"`,
			},
		},
		"a Turn that waited too long for a ConfigMap names it": {
			turn: turnWith(waitsAs(v1alpha1.TurnReasonPending, 11*time.Second),
				limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})),
			agent: ready, missing: `ConfigMap "terms" does not exist`,
			want: decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: `the turn did not start within 10s (limits.startingDeadlineSeconds); it was Pending: ` +
					`ConfigMap "terms" does not exist`,
			},
		},
		"a Turn that waits for a ConfigMap can be cancelled": {
			turn: turnWith(desired(v1alpha1.DesiredStateCancelled)), agent: ready, missing: `ConfigMap "terms" does not exist`,
			want: decision{action: end, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled before it ran"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, turn := range wholeAndStripped(tc.turn) {
				got := decide(snapshot{
					turn: turn, agent: tc.agent, executorAlive: tc.alive, missing: tc.missing,
					recheck: tc.recheck, withoutAgent: tc.withoutAgent, now: now,
				})
				if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(decision{})); diff != "" {
					t.Errorf("decision (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestSlotOfEachAction checks the effect of each action on the slot of a Turn.
func TestSlotOfEachAction(t *testing.T) {
	for use, actions := range map[slotUse][]action{
		releaseSlot: {nothing, remove, observe, end, wait, park, cancelSubAgents},
		confirmSlot: {follow},
		deferSlot:   {hold},
		keepSlot:    {queue, stay, cancel},
		reserveSlot: {schedule, endFromJournal},
	} {
		for _, a := range actions {
			if got := a.slot(); got != use {
				t.Errorf("%s: slot use %d, want %d", a, got, use)
			}
		}
	}
}

// TestAttachmentsRefused checks that a Turn whose attachments no model accepts ends before it starts.
func TestAttachmentsRefused(t *testing.T) {
	const why = "Turn spec.attachments: must be accepted by a model"
	got, ok := whenAttachmentsRefused(snapshot{turn: turnWith(), refused: why})
	want := decision{action: end, reason: v1alpha1.TurnReasonInvalidSpec, message: why}
	if !ok || got != want {
		t.Errorf("decision is %+v, want %+v", got, want)
	}
	if got, ok := whenAttachmentsRefused(snapshot{turn: turnWith()}); ok {
		t.Errorf("decision is %+v, want none: the attachments are not refused", got)
	}
}

// TestForeignAgentUncalled checks that only the Turn of a sub-agent may have an Agent of another namespace.
func TestForeignAgentUncalled(t *testing.T) {
	foreign := func(t *v1alpha1.Turn) { t.Spec.AgentRef.Namespace = "owner" }
	called := func(t *v1alpha1.Turn) {
		t.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: "parent", UID: "p", Controller: new(true),
		}}
	}
	own := func(t *v1alpha1.Turn) { t.Spec.AgentRef.Namespace = t.Namespace }
	for name, tc := range map[string]struct {
		turn *v1alpha1.Turn
		ends bool
	}{
		"its own namespace":         {turnWith(), false},
		"its own namespace by name": {turnWith(own), false},
		"called by another Turn":    {turnWith(foreign, called), false},
		"not called by a Turn":      {turnWith(foreign), true},
		"owner removed after a run": {turnWith(foreign, boundTo("e"), handedBack(v1alpha1.TurnReasonAwaitingApproval)), true},
	} {
		d, ends := whenForeignAgentUncalled(snapshot{turn: tc.turn})
		if ends != tc.ends || ends && (d.action != end || d.reason != v1alpha1.TurnReasonInvalidSpec) {
			t.Errorf("%s: the Turn ends: %t, %+v; want %t", name, ends, d, tc.ends)
		}
	}
}

// TestReadinessOfForeignAgents checks that the message of an Agent's Ready condition is shown only in its namespace.
func TestReadinessOfForeignAgents(t *testing.T) {
	a := &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Namespace: "owner", Name: "helper", Generation: 1}}
	key := client.ObjectKeyFromObject(a)
	a.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "ProviderNotReady",
		Message: `Secret "hidden" does not exist`, ObservedGeneration: 1,
	}}
	for from, want := range map[string]string{
		"owner": `Agent "helper" is not ready: Secret "hidden" does not exist`,
		"team":  `Agent "owner/helper" is not ready (ProviderNotReady)`,
	} {
		if checked, why := agentReadinessOf(a, key, from); !checked || why != want {
			t.Errorf("in namespace %q: checked %t, %q; want %q", from, checked, why, want)
		}
	}
	v := snapshot{turn: turnWith(), refusedAgent: "it may not be used", now: now}
	d, ok := whenAgentNotReady(v)
	if !ok || d.action != wait || d.reason != v1alpha1.TurnReasonWaitingForAgent || d.message != v.refusedAgent ||
		d.after > consentRecheck {
		t.Errorf("the decision about a refused Agent is %+v, want a wait of at most %s", d, consentRecheck)
	}
}

// TestURLsRefused checks that the attachments of a Turn are refused if one is from a URL and RefuseURLs is true.
func TestURLsRefused(t *testing.T) {
	asks := turnWith()
	asks.Spec.Attachments = []v1alpha1.Attachment{{Name: "a", MediaType: "text/plain", URL: "https://files.example/a"}}
	const want = "Turn spec.attachments[0].url: the operator of the cluster does not allow attachments from URLs: use a ConfigMap"
	for _, turn := range wholeAndStripped(asks) {
		got, err := (&TurnReconciler{RefuseURLs: true}).refusedAttachments(t.Context(), turn, &v1alpha1.Agent{})
		if err != nil || got != want {
			t.Errorf("refusedAttachments = %q, %v; want %q", got, err, want)
		}
	}
}

// TestAttachmentsAndProvidersLeftOut checks that attachments are not refused if a model of a ModelProvider that the
// cache holds without its content may accept them.
func TestAttachmentsAndProvidersLeftOut(t *testing.T) {
	turn := turnWith()
	turn.Spec.Attachments = []v1alpha1.Attachment{{Name: "a", MediaType: "image/png", URL: "https://files.example/a"}}
	a := subAgent("desk")
	a.Spec.Models = []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: "a"}, Model: "m"}}
	p, _ := providerOf("a", v1alpha1.ReasonReady, time.Hour).(*v1alpha1.ModelProvider)
	p.Spec.Type = v1alpha1.ProviderTypeAnthropic
	p.Spec.Models = []v1alpha1.Model{{Name: "m", Capabilities: []v1alpha1.ModelCapability{v1alpha1.CapabilityImages}}}
	r := &TurnReconciler{Client: inMemory(t, leftOut(t, p))}
	if got, err := r.refusedAttachments(t.Context(), turn, a); err != nil || got != "" {
		t.Errorf("refusedAttachments = %q, %v; want no refusal", got, err)
	}
}
