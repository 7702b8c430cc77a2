package controller

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// mate is a Turn of the session that these tests are about, older than the Turn of turnWith by so much.
func mate(name string, older time.Duration, change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
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

// ran is a Turn that was bound and handed back.
func ran(t *v1alpha1.Turn) { t.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1} }

func deleted(t *v1alpha1.Turn) { t.DeletionTimestamp = &metav1.Time{Time: now} }

func listOf(turns ...*v1alpha1.Turn) []v1alpha1.Turn {
	list := make([]v1alpha1.Turn, 0, len(turns))
	for _, t := range turns {
		list = append(list, *t)
	}
	return list
}

func TestTurnsOfASessionWaitForTheOneAhead(t *testing.T) {
	const first = `Turn "a" of Session "talk" goes first`
	cancelled, suspended := desires(v1alpha1.DesiredStateCancelled), desires(v1alpha1.DesiredStateSuspended)
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		others []*v1alpha1.Turn
		want   string
	}{
		"alone":                 {"a Turn does not wait for itself", turnWith(inSession), nil, ""},
		"no session":            {"a Turn without a session waits for nobody", turnWith(), nil, ""},
		"older":                 {"the older goes first", turnWith(inSession), []*v1alpha1.Turn{mate("a", time.Second)}, first},
		"younger":               {"the younger waits", turnWith(inSession), []*v1alpha1.Turn{mate("a", -time.Second)}, ""},
		"just ahead":            {"it names the one just ahead", turnWith(inSession), []*v1alpha1.Turn{mate("b", 2*time.Second), mate("a", time.Second), mate("c", 3*time.Second)}, first},
		"stored earlier":        {"within a second the one that was stored first goes first", turnWith(inSession), []*v1alpha1.Turn{mate("a", 0, storedAs("99"))}, first},
		"stored later":          {"versions are numbers, not texts", turnWith(inSession, storedAs("99")), []*v1alpha1.Turn{mate("a", 0)}, ""},
		"written since":         {"the order of a Turn that was written since is kept", turnWith(inSession), []*v1alpha1.Turn{mate("a", 0, storedAs("101"), ordered(99))}, first},
		"order kept":            {"so is the Turn's own", turnWith(inSession, storedAs("200"), ordered(100)), []*v1alpha1.Turn{mate("a", 0, storedAs("101"))}, ""},
		"no numbers":            {"where versions are no numbers, UIDs break ties", turnWith(inSession, storedAs("x")), []*v1alpha1.Turn{mate("a", 0, storedAs("y"))}, first},
		"younger and bound":     {"one that was ever bound goes first", turnWith(inSession), []*v1alpha1.Turn{mate("a", -time.Second, boundTo("e"))}, first},
		"younger and ran":       {"also when it was handed back", turnWith(inSession), []*v1alpha1.Turn{mate("a", -time.Second, ran)}, first},
		"ran itself":            {"and when it is this one", turnWith(inSession, ran), []*v1alpha1.Turn{mate("a", time.Second)}, ""},
		"suspended":             {"a suspended one keeps its place, and says how to go on", turnWith(inSession), []*v1alpha1.Turn{mate("a", time.Second, suspended)}, first + ", and is suspended: set its desiredState to Active or Cancelled"},
		"parked":                {"one that waits for people says who can help", turnWith(inSession), []*v1alpha1.Turn{mate("a", time.Second, parked(waiting("x")))}, first + ", and waits for a decision: capstan approve a, or capstan deny a"},
		"waits for a sub-agent": {"nobody can help", turnWith(inSession), []*v1alpha1.Turn{mate("a", time.Second, parked(nil, "child"))}, first},
		"cancelled":             {"a cancelled one that never ran does not keep its place", turnWith(inSession), []*v1alpha1.Turn{mate("a", time.Second, cancelled)}, ""},
		"cancelled and running": {"one that runs still does", turnWith(inSession), []*v1alpha1.Turn{mate("a", time.Second, cancelled, boundTo("e"))}, first},
		"finished":              {"a finished one does not", turnWith(inSession), []*v1alpha1.Turn{mate("a", time.Second, finished(0))}, ""},
		"deleted":               {"one that is being deleted does not", turnWith(inSession), []*v1alpha1.Turn{mate("a", time.Second, deleted)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := view{turn: tc.turn, agent: agentWith(metav1.ConditionTrue, ""), now: now}
			if tc.turn.Spec.SessionRef != nil {
				v.mates = listOf(append(tc.others, tc.turn)...)
			}
			want := decision{action: admit}
			if tc.want != "" {
				want = decision{action: wait, reason: v1alpha1.TurnReasonWaitingForSession, message: tc.want}
			}
			got := decide(v)
			if got.after <= 0 {
				t.Errorf("%s: the Turn must be looked at when its time is over, got %s", tc.reason, got.after)
			}
			got.after = 0
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(decision{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestOneTurnOfASessionIsFirst: whatever the Turns of a session are like, exactly one does not wait.
func TestOneTurnOfASessionIsFirst(t *testing.T) {
	all := listOf(
		mate("a", 0), mate("b", 0), mate("c", 0, storedAs("99")), mate("d", 0, ordered(98)), mate("e", time.Second, desires(v1alpha1.DesiredStateSuspended)),
		mate("f", -time.Second, ran), mate("g", 0, storedAs("x")), mate("h", -time.Second),
	)
	var free []string
	for i := range all {
		if aheadOf(&all[i], all) == nil {
			free = append(free, all[i].Name)
		}
	}
	if !slices.Equal(free, []string{"f"}) {
		t.Errorf("these may go: %v, want the one that was bound, alone", free)
	}
}

func TestPoliciesOfSessions(t *testing.T) {
	ready := agentWith(metav1.ConditionTrue, "")
	busy := []*v1alpha1.Turn{mate("a", time.Second)}
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		agent  *v1alpha1.Agent
		want   decision
	}{
		"time to start": {
			"a Turn that waited too long says for whom",
			turnWith(inSession, waitsAs(v1alpha1.TurnReasonWaitingForSession, 11*time.Second), limited(v1alpha1.Limits{StartingDeadlineSeconds: new(int32(10))})), ready,
			decision{
				action: end, reason: v1alpha1.TurnReasonDeadlineExceeded,
				message: `the turn did not start within 10s (limits.startingDeadlineSeconds); it was WaitingForSession: Turn "a" of Session "talk" goes first`,
			},
		},
		"cancelled": {
			"a Turn that waits can be cancelled", turnWith(inSession, desires(v1alpha1.DesiredStateCancelled)), ready,
			decision{action: end, reason: v1alpha1.TurnReasonCancelled, message: "the turn was cancelled before it ran"},
		},
		"suspended": {
			"a Turn that waits can be suspended", turnWith(inSession, desires(v1alpha1.DesiredStateSuspended)), ready,
			decision{action: wait, reason: v1alpha1.TurnReasonSuspended, message: "the turn is suspended; set desiredState to Active to go on"},
		},
		"no agent": {
			"the session goes before the agent: the Turn ahead may wait for that", turnWith(inSession), nil,
			decision{
				action: wait, reason: v1alpha1.TurnReasonWaitingForSession, message: `Turn "a" of Session "talk" goes first`,
				after: 9*time.Minute + time.Second,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(view{turn: tc.turn, agent: tc.agent, mates: listOf(append(busy, tc.turn)...), now: now})
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

// took gives a Session a budget of 3 turns and so many that ended.
func took(turns int64) func(*v1alpha1.Session) {
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
		"open": {reason: "a Turn enters while there is budget", turn: turnWith(inSession), session: sessionWith(took(2))},
		"closed": {
			reason: "a Turn that comes when the budget is used up ends, with the figures", turn: turnWith(inSession), session: sessionWith(took(3)),
			closed: `the budget of Session "talk" is used up: 3 of 3 turns (spec.budget.maxTurns); raise it, and create a new Turn`,
		},
		"bound before": {reason: "a Turn that was bound is part of what the budget was for", turn: turnWith(inSession, ran), session: sessionWith(took(3))},
		"being deleted": {
			reason: "a Turn waits for a session that goes, whatever its budget", turn: turnWith(inSession),
			session: sessionWith(took(3), func(s *v1alpha1.Session) { s.DeletionTimestamp = &metav1.Time{Time: now} }),
			closed:  `the budget of Session "talk" is used up: 3 of 3 turns (spec.budget.maxTurns); raise it, and create a new Turn`,
			deleted: `Session "talk" is being deleted; a new one is made when it is gone`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := view{turn: tc.turn, session: tc.session, now: now}
			if d, ok := whenSessionClosed(v); ok != (tc.closed != "") || d.message != tc.closed || (ok && (d.action != end || d.reason != v1alpha1.TurnReasonSessionClosed)) {
				t.Errorf("%s: closed: got %t, %+v, want %q", tc.reason, ok, d, tc.closed)
			}
			if d, ok := whenSessionDeleted(v); ok != (tc.deleted != "") || d.message != tc.deleted || (ok && (d.action != wait || d.after <= 0)) {
				t.Errorf("%s: being deleted: got %t, %+v, want %q", tc.reason, ok, d, tc.deleted)
			}
		})
	}
}
