package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// createdAt sets the creation time of a Turn.
func createdAt(at time.Time) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.CreationTimestamp = metav1.NewTime(at) }
}

// TestStartingDeadlineAfterSetBack checks the starting deadlines of Turns after the API server's clock was set back by
// an hour, while the time of Capstan is still ahead.
func TestStartingDeadlineAfterSetBack(t *testing.T) {
	const limit = time.Duration(v1alpha1.DefaultStartingDeadlineSeconds)*time.Second + time.Second // with the rest of a second
	server := now.Add(-time.Hour)
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		want   time.Duration
	}{
		"a new Turn": {
			"its creation is a time after the step", turnWith(createdAt(server.Add(-10 * time.Second))), limit - 10*time.Second,
		},
		"a new Turn that waits": {
			"its status says that it has waited since its creation",
			turnWith(createdAt(server.Add(-10*time.Second)), waitsAs(v1alpha1.TurnReasonWaitingForAgent, time.Hour+10*time.Second)),
			limit - 10*time.Second,
		},
		"a Turn that has waited too long": {
			"also by the server's clock", turnWith(createdAt(server.Add(-limit))), 0,
		},
		"a Turn from before the step": {
			"its creation would be in the future", turnWith(createdAt(now.Add(-time.Minute))), limit - time.Minute,
		},
		"a Turn from before the step that has waited too long": {
			"the step gives it no more time", turnWith(createdAt(now.Add(-limit))), 0,
		},
		"a resumed Turn": {
			"Capstan has written the end of its suspension",
			turnWith(createdAt(server.Add(-time.Minute)), waitsAs(v1alpha1.TurnReasonQueued, 20*time.Second)), limit - 20*time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := snapshot{turn: tc.turn, agent: agentWith(metav1.ConditionTrue, ""), now: now, server: server}
			if got := untilDeadline(v); got != tc.want {
				t.Errorf("%s are left, want %s: %s", got, tc.want, tc.reason)
			}
			if _, ends := whenStartingDeadlineExceeded(v); ends != (tc.want <= 0) {
				t.Errorf("the Turn ends: %t, want %t: %s", ends, tc.want <= 0, tc.reason)
			}
		})
	}
}

// TestNewTurnWaitsAfterSetBack checks that a Turn that is created after the API server's clock was set back waits for
// its Agent, also when it is reconciled again.
func TestNewTurnWaitsAfterSetBack(t *testing.T) {
	server := now.Add(-time.Hour)
	created := server.Add(-10 * time.Second)
	const limit = 600
	b := newTestEnv(t, interceptor.Funcs{},
		turnWith(createdAt(created), limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(limit))})))
	b.turns.ServerClock = func() time.Time { return server }
	for range 3 {
		result, err := b.reconcile(t, "one")
		got := b.turn(t, "one")
		if err != nil || result.RequeueAfter == 0 || got.StateReason() != v1alpha1.TurnReasonWaitingForAgent {
			t.Fatalf("the Turn is %s, reconciled again after %s, error %v; want it to wait for its Agent",
				got.StateReason(), result.RequeueAfter, err)
		}
		if since := got.WaitingSince(); !since.Equal(created) {
			t.Errorf("the Turn has waited since %s, want its creation %s", since, created)
		}
	}
	server = server.Add(limit * time.Second)
	if _, err := b.reconcile(t, "one"); err != nil {
		t.Fatal(err)
	}
	if got := b.turn(t, "one"); got.StateReason() != v1alpha1.TurnReasonDeadlineExceeded {
		t.Errorf("the Turn is %s, want %s", got.StateReason(), v1alpha1.TurnReasonDeadlineExceeded)
	}
}

// TestSessionAfterSetBack checks how long a Session is kept after the API server's clock was set back.
func TestSessionAfterSetBack(t *testing.T) {
	server := now.Add(-time.Hour)
	for name, tc := range map[string]struct {
		created  time.Time
		lastTurn *metav1.MicroTime
		want     time.Duration
	}{
		"a new Session":                  {server.Add(-10 * time.Second), nil, 50 * time.Second},
		"a Session from before the step": {now.Add(-20 * time.Second), nil, 40 * time.Second},
		"a Session whose last Turn ended by the time of Capstan": {
			server.Add(-time.Minute), new(metav1.NewMicroTime(now.Add(-30 * time.Second))), 30 * time.Second,
		},
	} {
		s := sessionWith(keptFor(60))
		s.CreationTimestamp, s.Status.LastTurnTime = metav1.NewTime(tc.created), tc.lastTurn
		if left, ends := untilSessionEnds(s, now, server); left != tc.want || !ends {
			t.Errorf("%s is kept for %s (%t), want %s", name, left, ends, tc.want)
		}
	}
}

// TestNewEndpointAfterSetBack checks that an endpoint that is created after the API server's clock was set back counts
// as new, and that an older one does not.
func TestNewEndpointAfterSetBack(t *testing.T) {
	server := now.Add(-time.Hour)
	for name, tc := range map[string]struct {
		created time.Time
		want    time.Duration
	}{
		"new": {server.Add(-10 * time.Second), maxNewAge - 10*time.Second},
		"from before the step, and no longer new": {now.Add(-maxNewAge), 0},
	} {
		p := &v1alpha1.ModelProvider{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(tc.created)}}
		if got := newFor(p, now, server, time.Minute); got != tc.want {
			t.Errorf("%s: new for %s, want %s", name, got, tc.want)
		}
	}
}
