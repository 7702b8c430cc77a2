package scheduler

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// Sessions orders the unfinished Turns of each Session, so that a decision about one Turn need not list all Turns of
// its Session.
//
// The watch adds and removes Turns. Status writes of this process only update Turns that are in a queue, and an older
// event of the watch does not undo such an update. So the queues are never older than the cache. They may still be
// older than the API server. But the write that binds a Turn then fails, because it needs the newest resource version.
//
// A search takes logarithmic time; a change of the order moves pointers in one slice. The zero value is ready to use.
// Sessions is safe for concurrent use. Its Turns belong to the cache and must not be changed.
type Sessions struct {
	mu     sync.Mutex
	turns  map[types.UID]*v1alpha1.Turn
	queues map[Key]*sessionQueue // by Session
	// locked holds the Sessions for which a Turn is being bound, and those that are being deleted.
	locked map[Key]struct{}
}

// sessionQueue holds the Turns of one Session.
type sessionQueue struct {
	// unfinished is the number of the Session's unfinished Turns, whether later Turns wait for them or not.
	unfinished int
	// order holds the Turns that later Turns wait for (see BlocksSession), in the order of compareInSession.
	order []*v1alpha1.Turn
	// entered is the Turn of the Session that this process last bound or tried to bind.
	entered types.UID
}

// compareInSession orders the Turns of a Session: Turns that were bound at least once go first, then the others by
// their age. Turns created in the same second are ordered as the API server stored them.
//
// Two Turns of one Session are never bound at the same time, even if the cache shows an old state of one of them:
//
//  1. A Turn that was never bound can only move back in the order.
//  2. Only the first Turn is bound, and the write that binds the Turn fails if the Turn has changed since it was read.
func compareInSession(a, b *v1alpha1.Turn) int {
	return cmp.Or(
		cmp.Compare(min(1, b.Epoch()), min(1, a.Epoch())),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(SessionOrder(a), SessionOrder(b)),
		strings.Compare(string(a.UID), string(b.UID)),
	)
}

// SessionOrder returns the position of a Turn among the Turns created in the same second. It is the resource
// version at the creation of the Turn. The first status write stores it, before the resource version changes.
// SessionOrder returns 0 if resource versions are not numbers.
func SessionOrder(t *v1alpha1.Turn) int64 {
	if t.Status.SessionOrder > 0 {
		return t.Status.SessionOrder
	}
	version, err := strconv.ParseInt(t.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return version
}

// BlocksSession reports whether later Turns of the Session must wait for this Turn. They wait for a cancelled Turn only
// if it was bound at least once: its usage counts in the Session, so an executor must first write its end.
func BlocksSession(t *v1alpha1.Turn) bool {
	return !t.IsFinished() && (!t.IsCancelled() || t.Epoch() > 0)
}

// SessionKey returns the key of a Turn's Session. The Turn must have a Session.
func SessionKey(t *v1alpha1.Turn) Key {
	return Key{Namespace: t.Namespace, Name: t.Spec.SessionRef.Name}
}

// Observe records a Turn that the watch has delivered.
func (s *Sessions) Observe(t *v1alpha1.Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(t)
}

// ObserveWrite records a Turn that a write of this process has returned. It ignores a Turn that the watch has not shown
// yet, or no longer shows, because no event would remove that Turn.
func (s *Sessions) ObserveWrite(t *v1alpha1.Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turns[t.UID] != nil {
		s.put(t.DeepCopy())
	}
}

func (s *Sessions) put(t *v1alpha1.Turn) {
	old := s.turns[t.UID]
	if old != nil {
		order, err := resourceversion.CompareResourceVersion(t.ResourceVersion, old.ResourceVersion)
		if err == nil && order < 0 {
			return
		}
	}
	if t.Spec.SessionRef == nil || t.IsFinished() {
		s.remove(t.UID)
		return
	}
	if s.turns == nil {
		s.turns, s.queues = map[types.UID]*v1alpha1.Turn{}, map[Key]*sessionQueue{}
	}
	q := s.queues[SessionKey(t)]
	if q == nil {
		q = &sessionQueue{}
		s.queues[SessionKey(t)] = q
	}
	if old != nil {
		q.drop(old)
	} else {
		q.unfinished++
	}
	s.turns[t.UID] = t
	if BlocksSession(t) {
		at, _ := q.search(t)
		q.order = slices.Insert(q.order, at, t)
	}
}

// Forget removes a Turn that the watch no longer shows.
func (s *Sessions) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(uid)
}

func (s *Sessions) remove(uid types.UID) {
	t := s.turns[uid]
	if t == nil {
		return
	}
	delete(s.turns, uid)
	q := s.queues[SessionKey(t)]
	q.drop(t)
	if q.unfinished--; q.unfinished == 0 {
		delete(s.queues, SessionKey(t))
	}
}

// Ahead returns the Turn directly ahead of t in its Session, or nil if t is first. t need not be in a queue.
func (s *Sessions) Ahead(t *v1alpha1.Turn) *v1alpha1.Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[SessionKey(t)]
	if q == nil {
		return nil
	}
	at, _ := q.search(t)
	for at--; at >= 0; at-- {
		if m := q.order[at]; m.UID != t.UID { // the queue may hold an older or newer version of t
			return m
		}
	}
	return nil
}

// First returns the first Turn of a Session, and the next Turn after t. Each is nil if there is no such Turn. If t is
// nil, next is the first Turn, too.
func (s *Sessions) First(session Key, t *v1alpha1.Turn) (first, next *v1alpha1.Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[session]
	if q == nil || len(q.order) == 0 {
		return nil, nil
	}
	at := 0
	if t != nil {
		at, _ = q.search(t)
		if at < len(q.order) && q.order[at].UID == t.UID {
			at++
		}
	}
	if at < len(q.order) {
		next = q.order[at]
	}
	return q.order[0], next
}

// LastEntered returns the Turn for which Enter was last called in the Session of t. It returns nil if this Turn is t
// itself, has ended, or was deleted. known is false if the watch has not shown t yet, or no longer shows t.
func (s *Sessions) LastEntered(t *v1alpha1.Turn) (last *v1alpha1.Turn, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turns[t.UID] == nil {
		return nil, false
	}
	if last = s.turns[s.queues[SessionKey(t)].entered]; last != nil && last.UID == t.UID {
		last = nil
	}
	return last, true
}

// Enter records that a Turn is about to be bound as the first of its Session.
func (s *Sessions) Enter(t *v1alpha1.Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[SessionKey(t)]; q != nil {
		q.entered = t.UID
	}
}

// TryLock reports whether the caller may bind a Turn of a Session, or delete the Session, now: until unlock is called,
// no other caller may. If ok is false, unlock does nothing.
func (s *Sessions) TryLock(session Key) (unlock func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, isLocked := s.locked[session]; isLocked {
		return func() {}, false
	}
	if s.locked == nil {
		s.locked = map[Key]struct{}{}
	}
	s.locked[session] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.locked, session)
	}, true
}

// drop removes a Turn from the order if it is there.
func (q *sessionQueue) drop(t *v1alpha1.Turn) {
	if at, found := q.search(t); found {
		q.order = slices.Delete(q.order, at, at+1)
	}
}

// search returns the position of a Turn in the order, or the position at which to insert it.
func (q *sessionQueue) search(t *v1alpha1.Turn) (at int, found bool) {
	return slices.BinarySearchFunc(q.order, t, compareInSession)
}
