package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// slowQueues does the same as Sessions by searching all Turns each time.
type slowQueues map[types.UID]*v1alpha1.Turn

func (q slowQueues) observe(t *v1alpha1.Turn) {
	if old := q[t.UID]; old != nil && versionOf(t) < versionOf(old) {
		return
	}
	q[t.UID] = t
	if t.IsFinished() {
		delete(q, t.UID)
	}
}

func (q slowQueues) observeWrite(t *v1alpha1.Turn) {
	if q[t.UID] != nil {
		q.observe(t)
	}
}

// versionOf returns the resource version of a Turn as a number.
func versionOf(t *v1alpha1.Turn) int {
	n, err := strconv.Atoi(t.ResourceVersion)
	if err != nil {
		panic(err)
	}
	return n
}

// order returns the queue of a Session, but leaves out one Turn. If except is empty, no Turn is left out.
func (q slowQueues) order(session Key, except types.UID) []*v1alpha1.Turn {
	var turns []*v1alpha1.Turn
	for _, t := range q {
		if SessionKey(t) == session && BlocksSession(t) && t.UID != except {
			turns = append(turns, t)
		}
	}
	slices.SortFunc(turns, compareInSession)
	return turns
}

func (q slowQueues) ahead(t *v1alpha1.Turn) (last *v1alpha1.Turn) {
	for _, o := range q.order(SessionKey(t), t.UID) {
		if compareInSession(o, t) < 0 {
			last = o
		}
	}
	return last
}

func (q slowQueues) first(session Key, t *v1alpha1.Turn) (first, next *v1alpha1.Turn) {
	if all := q.order(session, ""); len(all) > 0 {
		first = all[0]
	}
	for _, o := range q.order(session, t.UID) {
		if next == nil && compareInSession(o, t) > 0 {
			next = o
		}
	}
	return first, next
}

// TestSessionsAgreeWithAFullSearch checks that the queues give the same result as a search of all Turns, even if
// events come late, twice or out of order.
func TestSessionsAgreeWithAFullSearch(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		sessions, slow, versions := &Sessions{}, slowQueues{}, []*v1alpha1.Turn{}
		for step := range 600 {
			turn := someTurn(random, step)
			versions = append(versions, turn)
			if random.IntN(4) == 0 {
				turn = versions[random.IntN(len(versions))] // an old version that arrives late or again
			}
			switch random.IntN(8) {
			case 0:
				sessions.Forget(turn.UID)
				delete(slow, turn.UID)
			case 1:
				sessions.ObserveWrite(turn)
				slow.observeWrite(turn)
			default:
				sessions.Observe(turn)
				slow.observe(turn)
			}
			asked := someTurn(random, step)
			if got, want := sessions.Ahead(asked), slow.ahead(asked); nameOf(got) != nameOf(want) {
				t.Fatalf("seed %d, step %d: ahead of %s is %q, want %q", seed, step, asked.Name, nameOf(got), nameOf(want))
			}
			first, next := sessions.First(SessionKey(asked), asked)
			wantFirst, wantNext := slow.first(SessionKey(asked), asked)
			if nameOf(first) != nameOf(wantFirst) || nameOf(next) != nameOf(wantNext) {
				t.Fatalf("seed %d, step %d: first and next after %s are %q and %q, want %q and %q",
					seed, step, asked.Name, nameOf(first), nameOf(next), nameOf(wantFirst), nameOf(wantNext))
			}
		}
		for uid := range slow {
			sessions.Forget(uid)
		}
		if len(sessions.turns)+len(sessions.queues) != 0 {
			t.Fatalf("seed %d: %d Turns and %d queues remain after all Turns were deleted", seed, len(sessions.turns), len(sessions.queues))
		}
	}
}

// turnOf returns Turn number n of the Session "talk".
func turnOf(n int, change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	name := fmt.Sprint("t", n)
	t := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "helpdesk", Name: name, UID: types.UID("uid-" + name), ResourceVersion: strconv.Itoa(1000 + n),
			CreationTimestamp: metav1.NewTime(now),
		},
		Spec: v1alpha1.TurnSpec{DesiredState: v1alpha1.DesiredStateActive, SessionRef: &v1alpha1.ObjectReference{Name: "talk"}},
	}
	for _, f := range change {
		f(t)
	}
	return t
}

// someTurn returns one of a few Turns of two Sessions, in a random state.
func someTurn(random *rand.Rand, version int) *v1alpha1.Turn {
	n := random.IntN(16)
	states := []func(*v1alpha1.Turn){
		func(*v1alpha1.Turn) {},
		func(*v1alpha1.Turn) {},
		func(t *v1alpha1.Turn) { t.Status.SessionOrder = int64(n) },
		func(t *v1alpha1.Turn) { t.Status.Executor = &v1alpha1.ExecutorBinding{Name: "e", Epoch: 1} },
		func(t *v1alpha1.Turn) { t.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1} },
		func(t *v1alpha1.Turn) { t.DeletionTimestamp = &metav1.Time{Time: now} },
		func(t *v1alpha1.Turn) { t.Status.CompletionTime = new(metav1.NewMicroTime(now)) },
		func(t *v1alpha1.Turn) { t.Spec.DesiredState = v1alpha1.DesiredStateCancelled },
		func(t *v1alpha1.Turn) { t.Spec.DesiredState = v1alpha1.DesiredStateSuspended },
	}
	return turnOf(n, func(t *v1alpha1.Turn) {
		t.ResourceVersion, t.Spec.SessionRef.Name = strconv.Itoa(1000+version), fmt.Sprint("talk", n%2)
		t.CreationTimestamp.Time = now.Add(-time.Duration(n/4) * time.Second)
	}, states[random.IntN(len(states))])
}

func nameOf(t *v1alpha1.Turn) string {
	if t == nil {
		return ""
	}
	return t.Name + "@" + t.ResourceVersion
}

// TestLastEntered checks that LastEntered returns the Turn of the Session for which Enter was last called, or nil if
// that is the given Turn or was deleted.
func TestLastEntered(t *testing.T) {
	var s Sessions
	a, b := turnOf(1), turnOf(2)
	if _, known := s.LastEntered(a); known {
		t.Error("the Turn is known before the watch has shown it")
	}
	s.Enter(a) // has no effect
	s.Observe(a)
	s.Observe(b)
	if last, known := s.LastEntered(b); last != nil || !known {
		t.Errorf("got %q, %t; want none: no Turn has entered", nameOf(last), known)
	}
	s.Enter(a)
	if last, known := s.LastEntered(b); last != a || !known {
		t.Errorf("got %q, %t; want the first Turn", nameOf(last), known)
	}
	if last, known := s.LastEntered(a); last != nil || !known {
		t.Errorf("got %q, %t; want none: it is this Turn", nameOf(last), known)
	}
	s.Forget(a.UID)
	if last, known := s.LastEntered(b); last != nil || !known {
		t.Errorf("got %q, %t; want none: the Turn that entered was deleted", nameOf(last), known)
	}
}

// TestTryLock checks that one Turn of a Session is bound at a time, and that Sessions do not block each other.
func TestTryLock(t *testing.T) {
	var s Sessions
	talk, other := Key{Namespace: "helpdesk", Name: "talk"}, Key{Namespace: "helpdesk", Name: "other"}
	unlock, ok := s.TryLock(talk)
	_, otherOK := s.TryLock(other)
	unlockSecond, secondOK := s.TryLock(talk)
	if !ok || !otherOK || secondOK {
		t.Errorf("locked: %t, %t and %t; want only the second lock of the same Session to fail", ok, otherOK, secondOK)
	}
	unlockSecond()
	if _, ok := s.TryLock(talk); ok {
		t.Error("the unlock of a failed TryLock has unlocked the Session")
	}
	unlock()
	if _, ok := s.TryLock(talk); !ok {
		t.Error("the Session is locked after it was unlocked")
	}
}

// BenchmarkSessions measures two operations in a Session with many Turns: the search for the Turn ahead of the last
// Turn, and the end and creation of the first Turn.
func BenchmarkSessions(b *testing.B) {
	for _, turns := range []int{100, 5000} {
		var s Sessions
		for i := range turns {
			s.Observe(turnOf(i))
		}
		first, last := turnOf(0), turnOf(turns-1)
		b.Run(fmt.Sprintf("ahead of %d", turns), func(b *testing.B) {
			for b.Loop() {
				if s.Ahead(last) == nil {
					b.Fatal("no Turn is ahead")
				}
			}
		})
		b.Run(fmt.Sprintf("end and creation among %d", turns), func(b *testing.B) {
			for b.Loop() {
				s.Forget(first.UID)
				s.Observe(first)
			}
		})
	}
}
