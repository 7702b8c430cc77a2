package turnstatus_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
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
