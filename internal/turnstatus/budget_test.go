package turnstatus_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// TestParkForBudget checks the status of a Turn that waits for a Budget, and that a binding ends the wait.
func TestParkForBudget(t *testing.T) {
	reset := now.Add(time.Hour)
	for name, tc := range map[string]struct {
		why                  string
		wait                 loop.BudgetWait
		clockStops, restarts bool
	}{
		"before its first request": {"its starting deadline applies", loop.BudgetWait{}, false, true},
		"after its first request":  {"the wait does not count", loop.BudgetWait{Started: true}, true, false},
		"for other requests":       {"that wait is short", loop.BudgetWait{Started: true, Contended: true}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.wait.UID, tc.wait.Name, tc.wait.Generation, tc.wait.Until, tc.wait.Message = "uid", "day", 4, reset, "all is spent"
			turn := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
			turn.Status.Executor = &v1alpha1.ExecutorBinding{Name: "a", Epoch: 1}
			turn.Status.StartTime = new(metav1.NewMicroTime(now.Add(-time.Minute)))
			turnstatus.Park(turn, turnstatus.Run{}, &loop.Parked{Budget: &tc.wait}, now)
			s := turn.Status
			if turn.StateReason() != v1alpha1.TurnReasonWaitingForBudget || turn.BoundTo() != "" ||
				(s.ParkedTime != nil) != tc.clockStops || (s.StartTime == nil) != tc.restarts {
				t.Errorf("status: %+v; want a wait for the Budget, because %s", s, tc.why)
			}
			if b := s.AwaitedBudget; b == nil || b.Name != "day" || b.UID != "uid" || b.Generation != 4 || !b.RetryTime.Time.Equal(reset) ||
				b.Message != "all is spent" {
				t.Errorf("awaitedBudget: %+v, want the values of the wait", b)
			}
			later := now.Add(time.Hour)
			turnstatus.Bind(turn, turnstatus.Binding{Executor: "b"}, later)
			if left := turnstatus.TimeLeft(turn, 2*time.Hour, later); turn.Status.AwaitedBudget != nil ||
				tc.clockStops && left != 119*time.Minute || tc.restarts && left != 2*time.Hour {
				t.Errorf("%s of 2 hours are left, awaitedBudget %+v; want the time of the wait not counted, and no Budget", left,
					turn.Status.AwaitedBudget)
			}
		})
	}
}
