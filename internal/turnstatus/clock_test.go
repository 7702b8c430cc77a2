package turnstatus_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// TestTimeLeftWithWrongClocks checks that a Turn never has more time than its limit, and never ends before it starts,
// even if clocks are wrong.
func TestTimeLeftWithWrongClocks(t *testing.T) {
	noon := time.Date(2026, 6, 11, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.MicroTime { return new(metav1.NewMicroTime(noon.Add(d))) }
	for name, tc := range map[string]struct {
		reason   string
		status   v1alpha1.TurnStatus
		left     time.Duration
		duration int64
	}{
		"no start":              {"all is left", v1alpha1.TurnStatus{}, time.Minute, -1},
		"a start just now":      {"all is left", v1alpha1.TurnStatus{StartTime: at(0)}, time.Minute, 0},
		"a start before":        {"the rest is left", v1alpha1.TurnStatus{StartTime: at(-20 * time.Second)}, 40 * time.Second, 20_000},
		"a start long before":   {"its time is over", v1alpha1.TurnStatus{StartTime: at(-10 * time.Minute)}, -9 * time.Minute, 600_000},
		"a start in the future": {"at most the whole limit is left", v1alpha1.TurnStatus{StartTime: at(10 * time.Minute)}, time.Minute, 0},
		"parked": {
			"the wait does not count",
			v1alpha1.TurnStatus{StartTime: at(-50 * time.Second), ParkedMilliseconds: 20_000},
			30 * time.Second, 50_000,
		},
		"still parked": {"the current wait does not count, either", v1alpha1.TurnStatus{
			StartTime:          at(-50 * time.Second),
			ParkedMilliseconds: 20_000, ParkedTime: at(-10 * time.Second),
		}, 40 * time.Second, 50_000},
		"parked in the future": {
			"the current wait has not begun",
			v1alpha1.TurnStatus{StartTime: at(-20 * time.Second), ParkedTime: at(10 * time.Minute)},
			40 * time.Second, 20_000,
		},
		"parked before it started": {
			"only the time since the start counts as a wait",
			v1alpha1.TurnStatus{StartTime: at(-20 * time.Second), ParkedTime: at(-10 * time.Minute)},
			time.Minute, 20_000,
		},
	} {
		t.Run(name, func(t *testing.T) {
			turn := &v1alpha1.Turn{Status: tc.status}
			if got := turnstatus.TimeLeft(turn, time.Minute, noon); got != tc.left {
				t.Errorf("%s are left, want %s: %s", got, tc.left, tc.reason)
			}
			turnstatus.End(turn, v1alpha1.TurnReasonCancelled, "done", noon)
			if tc.duration < 0 {
				if turn.Status.DurationMilliseconds != nil {
					t.Errorf("duration %d ms, want none", *turn.Status.DurationMilliseconds)
				}
				return
			}
			if got := *turn.Status.DurationMilliseconds; got != tc.duration || turn.Status.CompletionTime.Before(turn.Status.StartTime) {
				t.Errorf("duration %d ms, from %s to %s; want %d ms", got, turn.Status.StartTime, turn.Status.CompletionTime, tc.duration)
			}
		})
	}
}

// TestTimeLeftOfSubAgent checks that the time of a sub-agent's Turn counts from when it began to wait for its start,
// because the time of its caller runs meanwhile.
func TestTimeLeftOfSubAgent(t *testing.T) {
	noon := time.Date(2026, 6, 11, 12, 0, 0, 0, time.UTC)
	ago := func(seconds float64) time.Time { return noon.Add(-time.Duration(seconds * float64(time.Second))) }
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.Turn)
		start  time.Time
		left   time.Duration
	}{
		"it waited for a slot":  {"the wait counts, up to the precision of the creation time", nil, ago(5), 41 * time.Second},
		"it did not wait":       {"the precision of the creation time costs no time", nil, ago(19.5), 40500 * time.Millisecond},
		"a start in the future": {"its time has run since its creation", nil, ago(-60), 41 * time.Second},
		"it was parked": {
			"waits for people do not count", func(t *v1alpha1.Turn) { t.Status.ParkedMilliseconds = 4000 }, ago(5), 45 * time.Second,
		},
		"it was suspended before it started": {
			"its wait began again",
			func(t *v1alpha1.Turn) {
				t.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.ConditionReconciling, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(ago(10)),
				}}
			}, ago(5), 51 * time.Second,
		},
		"created by a clock that was set back": {
			"a Turn that waited for an hour would not have started",
			func(t *v1alpha1.Turn) { t.CreationTimestamp = metav1.NewTime(ago(3605)) }, ago(5), 55 * time.Second,
		},
		"created in the future": {
			"its time has run since its start", func(t *v1alpha1.Turn) { t.CreationTimestamp = metav1.NewTime(ago(-60)) },
			ago(5), 55 * time.Second,
		},
		"a Turn without the label": {"no call has created it", func(t *v1alpha1.Turn) { t.Labels = nil }, ago(5), 55 * time.Second},
		"a Turn without an owner": {
			"no call has created it", func(t *v1alpha1.Turn) { t.OwnerReferences = nil }, ago(5), 55 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			turn := &v1alpha1.Turn{
				ObjectMeta: metav1.ObjectMeta{
					CreationTimestamp: metav1.NewTime(ago(20)), Labels: map[string]string{translate.ParentLabel: "caller"},
					OwnerReferences: []metav1.OwnerReference{{
						APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: "caller", UID: "uid", Controller: new(true),
					}},
				},
				Status: v1alpha1.TurnStatus{StartTime: new(metav1.NewMicroTime(tc.start))},
			}
			if tc.change != nil {
				tc.change(turn)
			}
			if got := turnstatus.TimeLeft(turn, time.Minute, noon); got != tc.left {
				t.Errorf("%s are left, want %s: %s", got, tc.left, tc.reason)
			}
		})
	}
}
