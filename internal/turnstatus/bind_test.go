package turnstatus_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

func TestBindKeepsTheStoreOfTheJournal(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		before *v1alpha1.ExecutorBinding
		want   v1alpha1.ExecutorBinding
	}{
		"first": {
			"the store is the executor's", nil,
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 1, StoreID: "new", StoreIncarnation: "2", SideEffects: true},
		},
		"begun": {
			"the next run compares its journal", &v1alpha1.ExecutorBinding{
				Epoch: 3, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(4)),
			},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1", JournalEntries: new(int64(4))},
		},
		"maybe begun": {
			"the number of entries is unknown",
			&v1alpha1.ExecutorBinding{Epoch: 3, StoreID: "old", StoreIncarnation: "1", SideEffects: true},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1", SideEffects: true},
		},
		"nothing begun": {
			"it may begin in any store", &v1alpha1.ExecutorBinding{
				Epoch: 3, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(0)), JournalComplete: true,
			},
			v1alpha1.ExecutorBinding{
				Name: "e", Epoch: 4, StoreID: "new", StoreIncarnation: "2",
				JournalEntries: new(int64(0)), JournalComplete: true, SideEffects: true,
			},
		},
		"nothing begun when the status was written": {
			"a run may have begun since then", &v1alpha1.ExecutorBinding{
				Epoch: 3, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(0)),
			},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1", JournalEntries: new(int64(0))},
		},
		"handed back": {
			"the number of entries is exact", &v1alpha1.ExecutorBinding{
				Epoch: 3, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(4)), JournalComplete: true,
			},
			v1alpha1.ExecutorBinding{
				Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(4)), JournalComplete: true,
			},
		},
		"bound to a lost executor": {
			"the number of entries is not exact", &v1alpha1.ExecutorBinding{
				Name: "gone", Epoch: 3, StoreID: "old", StoreIncarnation: "1", JournalEntries: new(int64(0)), JournalComplete: true,
			},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1", JournalEntries: new(int64(0))},
		},
		"bound by an older version": {
			"its store stays unknown until a run has found its journal", &v1alpha1.ExecutorBinding{Epoch: 3},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := &v1alpha1.Turn{Status: v1alpha1.TurnStatus{Executor: tc.before}}
			turnstatus.Bind(got, turnstatus.Binding{
				Executor: "e", Store: store.Identity{ID: "new", Incarnation: "2"}, SideEffects: true,
			}, now)
			if diff := cmp.Diff(&tc.want, got.Status.Executor); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestBindSetsTheTrace checks that the first binding sets the ID of the trace, and that later bindings keep it. Only a
// Turn without a UID, as in a preview, has no trace.
func TestBindSetsTheTrace(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	got := &v1alpha1.Turn{}
	turnstatus.Bind(got, turnstatus.Binding{Executor: "e"}, now)
	if got.Status.TraceID != "" {
		t.Errorf("a Turn without a UID has the trace %q, want none", got.Status.TraceID)
	}
	got.UID = "64d47a3f-0159-8b5e-9ab8-ab5bff9272fe"
	turnstatus.Bind(got, turnstatus.Binding{Executor: "e"}, now)
	first := got.Status.TraceID
	if want := span.TraceOf("", string(got.UID)).String(); first != want {
		t.Errorf("the trace is %q, want %q", first, want)
	}
	got.Annotations = map[string]string{span.Annotation: parent}
	turnstatus.Bind(got, turnstatus.Binding{Executor: "f"}, now)
	if got.Status.TraceID != first {
		t.Errorf("the trace of the second binding is %q, want %q as before", got.Status.TraceID, first)
	}
}

// TestBindStartTime checks that the start time is kept, unless it is in the future.
func TestBindStartTime(t *testing.T) {
	for name, tc := range map[string]struct{ before, recorded, want time.Time }{
		"first binding":         {want: now},
		"started before":        {before: now.Add(-time.Minute), want: now.Add(-time.Minute)},
		"a start in the future": {before: now.Add(time.Hour), want: now},
		"a start in a journal":  {recorded: now.Add(-time.Hour), want: now.Add(-time.Hour)},
	} {
		got := &v1alpha1.Turn{}
		if !tc.before.IsZero() {
			got.Status.StartTime = new(metav1.NewMicroTime(tc.before))
		}
		turnstatus.Bind(got, turnstatus.Binding{Executor: "e", Epoch: 5, Start: tc.recorded}, now)
		if start := got.Status.StartTime; !start.Time.Equal(tc.want) || got.Epoch() != 5 {
			t.Errorf("%s: the Turn started at %s in epoch %d, want %s and 5", name, start, got.Epoch(), tc.want)
		}
	}
}

func TestBindConditions(t *testing.T) {
	got := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Generation: 7}}
	got.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPrepared, Status: metav1.ConditionUnknown}}
	turnstatus.Bind(got, turnstatus.Binding{Executor: "e"}, now)
	if diff := cmp.Diff([]string{"Succeeded=Unknown/Running", "Reconciling=True/Running"}, conditions(got)); diff != "" {
		t.Errorf("conditions: -want +got:\n%s", diff)
	}
	if m := got.Status.Conditions[0].Message; m != `bound to executor "e"` {
		t.Errorf("the message is %q, want the executor", m)
	}
}

// TestAdopt checks that the epoch increases, that the number of entries is not exact anymore, and that the Turn no
// longer waits for what the earlier run waited for.
func TestAdopt(t *testing.T) {
	got := bound()
	got.Status.Executor.JournalComplete = true
	turnstatus.ReportProgress(got, turnstatus.Run{}, &turnstatus.RunWait{Provider: "openai"}, now)
	turnstatus.Adopt(got, now)
	if state := got.StateReason() + ": " + got.Status.Conditions[0].Message; state != `Running: bound to executor "e"` {
		t.Errorf("the Turn is %s, want it running", state)
	}
	if diff := cmp.Diff(&v1alpha1.ExecutorBinding{Name: "e", Epoch: 4}, got.Status.Executor); diff != "" {
		t.Errorf("binding: -want +got:\n%s", diff)
	}
}
