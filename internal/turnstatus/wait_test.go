package turnstatus_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

func TestWaitReportsChanges(t *testing.T) {
	got := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
	for _, step := range []struct {
		name, reason, message string
		generation            int64
		changed               bool
		want                  []string
	}{
		{"first", "Pending", "a", 1, true, []string{"Succeeded=Unknown/Pending", "Reconciling=True/Pending"}},
		{"again", "Pending", "a", 1, false, []string{"Succeeded=Unknown/Pending", "Reconciling=True/Pending"}},
		{"message", "Pending", "b", 1, true, []string{"Succeeded=Unknown/Pending", "Reconciling=True/Pending"}},
		{"reason", "Queued", "b", 1, true, []string{"Succeeded=Unknown/Queued", "Reconciling=True/Queued"}},
		{"sizes", "Queued", "3.2 GiB of 4.0 GiB", 1, true, []string{"Succeeded=Unknown/Queued", "Reconciling=True/Queued"}},
		{"other sizes", "Queued", "30 KiB of 4.0 GiB", 1, false, []string{"Succeeded=Unknown/Queued", "Reconciling=True/Queued"}},
		{
			"more than sizes", "Queued", "30 KiB of 4.0 GiB, and more", 1, true,
			[]string{"Succeeded=Unknown/Queued", "Reconciling=True/Queued"},
		},
		{"generation", "Queued", "b", 2, true, []string{"Succeeded=Unknown/Queued", "Reconciling=True/Queued"}},
		{"suspended", "Suspended", "c", 2, true, []string{"Succeeded=Unknown/Suspended"}},
		{"still suspended", "Suspended", "c", 2, false, []string{"Succeeded=Unknown/Suspended"}},
	} {
		got.Generation = step.generation
		at := now.Add(time.Duration(len(step.name)) * time.Second)
		if changed := turnstatus.Wait(got, step.reason, step.message, 0, at); changed != step.changed {
			t.Errorf("%s: Wait = %t, want %t", step.name, changed, step.changed)
		}
		if diff := cmp.Diff(step.want, conditions(got)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", step.name, diff)
		}
	}
	if got.IsFinished() || got.Status.ObservedGeneration != 2 {
		t.Errorf("finished %t, observed generation %d; want false and 2", got.IsFinished(), got.Status.ObservedGeneration)
	}
}

// TestWaitWithoutAnOrder checks that a Turn of a Session without a known position is not written again and again.
func TestWaitWithoutAnOrder(t *testing.T) {
	got := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{SessionRef: &v1alpha1.ObjectReference{Name: "talk"}}}
	first := turnstatus.Wait(got, v1alpha1.TurnReasonQueued, "so it waits", 0, now)
	if again := turnstatus.Wait(got, v1alpha1.TurnReasonQueued, "so it waits", 0, now); !first || again {
		t.Errorf("Wait = %t, and again %t; want a change only the first time", first, again)
	}
}

func TestWaitCountsFromCreation(t *testing.T) {
	created := now.Add(-time.Hour)
	got := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
	turnstatus.Wait(got, v1alpha1.TurnReasonPending, "seen late", 0, now)
	if since := got.WaitingSince(); !since.Equal(created) {
		t.Errorf("the Turn has waited since %s, want %s: an outage of the manager does not extend its deadline", since, created)
	}
	turnstatus.Wait(got, v1alpha1.TurnReasonSuspended, "suspended", 0, now)
	turnstatus.Wait(got, v1alpha1.TurnReasonPending, "continues", 0, now)
	if since := got.WaitingSince(); !since.Equal(now) {
		t.Errorf("the Turn has waited since %s, want %s: the wait begins again after a suspension", since, now)
	}
}

// TestWaitOfStartedTurn checks how Wait changes the times and the binding of a Turn that has run.
func TestWaitOfStartedTurn(t *testing.T) {
	start := new(metav1.NewMicroTime(now.Add(-time.Minute)))
	parked := new(metav1.NewMicroTime(now.Add(-10 * time.Second)))
	for name, tc := range map[string]struct {
		why    string
		reason string
		before v1alpha1.TurnStatus
		want   v1alpha1.TurnStatus
	}{
		"a lost executor": {
			"its run may have written more entries", v1alpha1.TurnReasonQueued,
			v1alpha1.TurnStatus{StartTime: start, Executor: &v1alpha1.ExecutorBinding{Name: "lost", Epoch: 2, JournalComplete: true}},
			v1alpha1.TurnStatus{StartTime: start, Executor: &v1alpha1.ExecutorBinding{Epoch: 2}, SessionOrder: 8},
		},
		"a decision": {
			"its time continues, and the next run gets the decision", v1alpha1.TurnReasonQueued,
			v1alpha1.TurnStatus{StartTime: start, ParkedTime: parked, PendingApprovals: []v1alpha1.PendingApproval{{CallID: "a"}}},
			v1alpha1.TurnStatus{
				StartTime: start, ParkedMilliseconds: 10_000,
				PendingApprovals: []v1alpha1.PendingApproval{{CallID: "a"}}, SessionOrder: 8,
			},
		},
		"a suspension": {
			"its time starts again, the Turns of its sub-agents stay listed, and its next run asks the Budget",
			v1alpha1.TurnReasonSuspended,
			v1alpha1.TurnStatus{
				AwaitedBudget: &v1alpha1.AwaitedBudget{Name: "day"},
				StartTime:     start, ParkedTime: parked, PendingApprovals: []v1alpha1.PendingApproval{{CallID: "a"}},
				AwaitedTurns: []string{"child"}, Executor: &v1alpha1.ExecutorBinding{Epoch: 2, Overdue: true},
			},
			v1alpha1.TurnStatus{AwaitedTurns: []string{"child"}, Executor: &v1alpha1.ExecutorBinding{Epoch: 2}, SessionOrder: 8},
		},
		"a known order": {
			"the first write sets the order", v1alpha1.TurnReasonQueued,
			v1alpha1.TurnStatus{SessionOrder: 3},
			v1alpha1.TurnStatus{SessionOrder: 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{SessionRef: &v1alpha1.ObjectReference{Name: "talk"}}, Status: tc.before}
			if !turnstatus.Wait(got, tc.reason, "so it waits", 8, now) || turnstatus.Wait(got, tc.reason, "so it waits", 9, now) {
				t.Error("Wait must report a change, and no change when it is repeated")
			}
			got.Status.Conditions = nil
			if diff := cmp.Diff(tc.want, got.Status); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.why, diff)
			}
		})
	}
}
