package turnstatus

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// PauseClock stops the time of a Turn, or starts it again, and reports whether the status changed.
func PauseClock(t *v1alpha1.Turn, paused bool, now time.Time) bool {
	if paused == (t.Status.ParkedTime != nil) {
		return false
	}
	if !paused {
		resumeClock(&t.Status, now)
		return true
	}
	t.Status.ParkedTime = new(metav1.NewMicroTime(now))
	return true
}

// resumeClock starts the time of a Turn again.
func resumeClock(s *v1alpha1.TurnStatus, now time.Time) {
	s.ParkedMilliseconds, s.ParkedTime = parked(s, now).Milliseconds(), nil
}

// Parked returns how long a Turn has waited for decisions, at most the time since its start. The Turn's deadline is
// later by this time.
func Parked(t *v1alpha1.Turn, now time.Time) time.Duration { return parked(&t.Status, now) }

func parked(s *v1alpha1.TurnStatus, now time.Time) time.Duration {
	total := time.Duration(s.ParkedMilliseconds) * time.Millisecond
	if s.ParkedTime != nil {
		total += max(0, now.Sub(s.ParkedTime.Time))
	}
	if s.StartTime != nil {
		total = min(total, max(0, now.Sub(s.StartTime.Time)))
	}
	return total
}

// Left returns how much of its time limit a Turn has left; 0 or less means that its time is over. It never returns
// more than the limit, even if a clock was wrong when the Turn started.
func Left(t *v1alpha1.Turn, limit time.Duration, now time.Time) time.Duration {
	if t.Status.StartTime == nil {
		return limit
	}
	return limit - max(0, now.Sub(t.Status.StartTime.Time)-Parked(t, now))
}
