package controller

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

// sessionTurn returns a Turn of the Session of these tests. It is older than the Turn of turnWith by this duration.
func sessionTurn(name string, older time.Duration, change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	return turnWith(append([]func(*v1alpha1.Turn){inSession, func(t *v1alpha1.Turn) {
		t.Name, t.UID = name, types.UID("uid-"+name)
		t.CreationTimestamp.Time = t.CreationTimestamp.Add(-older)
	}}, change...)...)
}

func inSession(t *v1alpha1.Turn) {
	t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "talk"}
	t.ResourceVersion = "100"
}

func storedAs(version string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.ResourceVersion = version }
}

func ordered(order int64) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Status.SessionOrder = order }
}

// wasBound changes a Turn as if it had been bound and handed back.
func wasBound(t *v1alpha1.Turn) { t.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1} }

func deleted(t *v1alpha1.Turn) { t.DeletionTimestamp = &metav1.Time{Time: now} }

// aheadOf returns the Turn directly ahead of a Turn in its Session, which has these other Turns.
func aheadOf(t *v1alpha1.Turn, others ...*v1alpha1.Turn) *v1alpha1.Turn {
	var sessions scheduler.Sessions
	for _, o := range append(others, t) {
		sessions.Observe(o)
	}
	return sessions.Ahead(t)
}

func TestTurnsWaitForTurnAhead(t *testing.T) {
	const first = `Turn "a" of Session "talk" goes first`
	cancelled, suspended := desired(v1alpha1.DesiredStateCancelled), desired(v1alpha1.DesiredStateSuspended)
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		others []*v1alpha1.Turn
		want   string
	}{
		"alone":      {"a Turn does not wait for itself", turnWith(inSession), nil, ""},
		"no session": {"a Turn without a session does not wait", turnWith(), nil, ""},
		"older":      {"the older Turn goes first", turnWith(inSession), []*v1alpha1.Turn{sessionTurn("a", time.Second)}, first},
		"younger":    {"the younger Turn waits", turnWith(inSession), []*v1alpha1.Turn{sessionTurn("a", -time.Second)}, ""},
		"just ahead": {
			"the message names the Turn directly ahead", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("b", 2*time.Second), sessionTurn("a", time.Second), sessionTurn("c", 3*time.Second)},
			first,
		},
		"stored earlier": {
			"within a second, the Turn that was stored first goes first", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", 0, storedAs("99"))},
			first,
		},
		"stored later": {
			"resource versions are compared as numbers", turnWith(inSession, storedAs("99")),
			[]*v1alpha1.Turn{sessionTurn("a", 0)},
			"",
		},
		"written since": {
			"a write does not change the order", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", 0, storedAs("101"), ordered(99))},
			first,
		},
		"order kept": {
			"a write does not change the Turn's own order",
			turnWith(inSession, storedAs("200"), ordered(100)),
			[]*v1alpha1.Turn{sessionTurn("a", 0, storedAs("101"))},
			"",
		},
		"no numbers": {
			"if resource versions are not numbers, UIDs break ties",
			turnWith(inSession, storedAs("x")),
			[]*v1alpha1.Turn{sessionTurn("a", 0, storedAs("y"))},
			first,
		},
		"younger and bound": {
			"a Turn that was bound before goes first", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", -time.Second, boundTo("e"))},
			first,
		},
		"younger and ran": {
			"a Turn that was bound before goes first, even if it was handed back", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", -time.Second, wasBound)},
			first,
		},
		"ran itself": {
			"a Turn that was bound before does not wait for an older one", turnWith(inSession, wasBound),
			[]*v1alpha1.Turn{sessionTurn("a", time.Second)},
			"",
		},
		"suspended": {
			"a suspended Turn keeps its position, and the message says how to continue it",
			turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", time.Second, suspended)},
			first + ", and is suspended: set its desiredState to Active or Cancelled",
		},
		"parked": {
			"the message says how to make the decision", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", time.Second, parked(waiting("x")))},
			first + ", and requires a decision: run capstan approve helpdesk/a or capstan deny helpdesk/a",
		},
		"waits for a sub-agent": {
			"no decision is needed", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", time.Second, parked(nil, "child"))},
			first,
		},
		"cancelled": {
			"a cancelled Turn that never ran does not block", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", time.Second, cancelled)},
			"",
		},
		"cancelled and running": {
			"a cancelled Turn that runs still blocks", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", time.Second, cancelled, boundTo("e"))},
			first,
		},
		"finished": {
			"a finished Turn does not block", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", time.Second, finished(0))},
			"",
		},
		"deleted": {
			"a Turn that was deleted before it ran does not block", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", time.Second, deleted)},
			"",
		},
		"deleted and running": {
			"a Turn that runs still blocks, even if only a finalizer keeps it", turnWith(inSession),
			[]*v1alpha1.Turn{sessionTurn("a", time.Second, deleted, boundTo("e"))},
			first,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := snapshot{turn: tc.turn, agent: agentWith(metav1.ConditionTrue, ""), now: now}
			if tc.turn.Spec.SessionRef != nil {
				v.ahead = aheadOf(tc.turn, tc.others...)
			}
			want := decision{action: schedule}
			if tc.want != "" {
				want = decision{action: wait, reason: v1alpha1.TurnReasonWaitingForSession, message: tc.want}
			}
			got := decide(v)
			if got.after <= 0 {
				t.Errorf("%s: requeued after %s, want a requeue for the deadline", tc.reason, got.after)
			}
			got.after = 0
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(decision{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestExactlyOneTurnOfSessionIsFirst checks that exactly one Turn of a Session does not wait, whatever their states
// are.
func TestExactlyOneTurnOfSessionIsFirst(t *testing.T) {
	all := []*v1alpha1.Turn{
		sessionTurn("a", 0), sessionTurn("b", 0), sessionTurn("c", 0, storedAs("99")), sessionTurn("d", 0, ordered(98)),
		sessionTurn("e", time.Second, desired(v1alpha1.DesiredStateSuspended)),
		sessionTurn("f", -time.Second, wasBound), sessionTurn("g", 0, storedAs("x")), sessionTurn("h", -time.Second),
	}
	var first []string
	for _, turn := range all {
		if aheadOf(turn, all...) == nil {
			first = append(first, turn.Name)
		}
	}
	if !slices.Equal(first, []string{"f"}) {
		t.Errorf("the Turns %v may be bound, want only f, which was bound before", first)
	}
}

func TestPoliciesOfSessions(t *testing.T) {
	ready := agentWith(metav1.ConditionTrue, "")
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		agent  *v1alpha1.Agent
		want   decision
	}{
		"time to start": {
			"a Turn that waited too long names the Turn ahead",
			turnWith(inSession, waitsAs(v1alpha1.TurnReasonWaitingForSession, 11*time.Second),
				limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})), ready,
			decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: `the turn did not start within 10s (limits.startingDeadlineSeconds); it was ` +
					`WaitingForSession: Turn "a" of Session "talk" goes first`,
			},
		},
		"cancelled": {
			"a waiting Turn can be cancelled", turnWith(inSession, desired(v1alpha1.DesiredStateCancelled)), ready,
			decision{action: end, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled before it ran"},
		},
		"suspended": {
			"a waiting Turn can be suspended", turnWith(inSession, desired(v1alpha1.DesiredStateSuspended)), ready,
			decision{
				action: wait, reason: v1alpha1.TurnReasonSuspended,
				message: "the turn is suspended; set desiredState to Active to continue",
			},
		},
		"no agent": {
			"the session goes before the agent, because the Turn ahead may wait for the agent", turnWith(inSession), nil,
			decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForSession, message: `Turn "a" of Session "talk" goes first`,
				after: 10 * time.Minute,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(snapshot{turn: tc.turn, agent: tc.agent, ahead: sessionTurn("a", time.Second), now: now})
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(decision{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func sessionWith(change ...func(*v1alpha1.Session)) *v1alpha1.Session {
	s := &v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{
		Namespace: "helpdesk", Name: "talk", UID: "uid-talk", Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
	}}
	for _, f := range change {
		f(s)
	}
	return s
}

// usedTurns gives a Session a budget of 3 Turns, of which this number is used.
func usedTurns(turns int64) func(*v1alpha1.Session) {
	return func(s *v1alpha1.Session) {
		s.Spec.Budget = &v1alpha1.SessionBudget{MaxTurns: new(int32(3))}
		s.Status.Turns = turns
	}
}

func TestPoliciesOfEntry(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		turn    *v1alpha1.Turn
		session *v1alpha1.Session
		closed  string
		deleted string
	}{
		"open": {reason: "a Turn enters while budget is left", turn: turnWith(inSession), session: sessionWith(usedTurns(2))},
		"closed": {
			reason: "a new Turn ends if the budget is used up, and the message has the figures",
			turn:   turnWith(inSession), session: sessionWith(usedTurns(3)),
			closed: `the budget of Session "talk" is used up: 3 of 3 turns (spec.budget.maxTurns); raise it, and create a new Turn`,
		},
		"bound before": {
			reason: "a Turn that was bound before continues", turn: turnWith(inSession, wasBound),
			session: sessionWith(usedTurns(3)),
		},
		"being deleted": {
			reason: "a Turn waits for a session that is being deleted, whatever its budget", turn: turnWith(inSession),
			session: sessionWith(usedTurns(3), func(s *v1alpha1.Session) { s.DeletionTimestamp = &metav1.Time{Time: now} }),
			closed:  `the budget of Session "talk" is used up: 3 of 3 turns (spec.budget.maxTurns); raise it, and create a new Turn`,
			deleted: `Session "talk" is being deleted; a new one is created after that`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := snapshot{turn: tc.turn, session: tc.session, now: now}
			if d, ok := whenSessionClosed(v); ok != (tc.closed != "") || d.message != tc.closed ||
				(ok && (d.action != end || d.reason != v1alpha1.TurnReasonSessionClosed)) {
				t.Errorf("%s: closed: got %t, %+v, want %q", tc.reason, ok, d, tc.closed)
			}
			if d, ok := whenSessionDeleted(v); ok != (tc.deleted != "") || d.message != tc.deleted ||
				(ok && (d.action != wait || d.after <= 0)) {
				t.Errorf("%s: being deleted: got %t, %+v, want %q", tc.reason, ok, d, tc.deleted)
			}
		})
	}
}
