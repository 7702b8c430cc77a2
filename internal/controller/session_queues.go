package controller

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// sessionQueues orders the Turns of each Session, so that a decision about one Turn need not list all Turns of its
// Session.
//
// The watch adds and removes Turns. Status writes of this process only update Turns that are in a queue, and the
// watch does not undo a newer write. So the queues are never older than the cache. The write that binds a Turn
// still decides, because it needs the newest resource version.
//
// A search takes logarithmic time; a change of the order moves pointers in one slice. The zero value is ready to
// use. sessionQueues is safe for concurrent use. The cache shares the Turns, so they must not be changed.
type sessionQueues struct {
	mu     sync.Mutex
	turns  map[types.UID]*v1alpha1.Turn
	queues map[client.ObjectKey]*sessionQueue // by Session
}

// sessionQueue holds the Turns of one Session.
type sessionQueue struct {
	// unfinished counts the Session's unfinished Turns, including those that keep no other Turn waiting.
	unfinished int
	// order holds the Turns that keep later Turns waiting, in the order of compareInSession.
	order []*v1alpha1.Turn
	// entered is the Turn that this process bound last, or tried to bind.
	entered types.UID
}

// sessionKey returns the key of a Turn's Session. The Turn must have one.
func sessionKey(t *v1alpha1.Turn) client.ObjectKey {
	return client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.SessionRef.Name}
}

// observe updates a Turn as the watch delivers it.
func (s *sessionQueues) observe(t *v1alpha1.Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(t)
}

// updateWritten updates a Turn as a write of this process returned it. It ignores a Turn that the watch has not
// shown yet, or no longer shows, because no event would remove that Turn.
func (s *sessionQueues) updateWritten(t *v1alpha1.Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turns[t.UID] != nil {
		s.put(t.DeepCopy())
	}
}

func (s *sessionQueues) put(t *v1alpha1.Turn) {
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
		s.turns, s.queues = map[types.UID]*v1alpha1.Turn{}, map[client.ObjectKey]*sessionQueue{}
	}
	q := s.queues[sessionKey(t)]
	if q == nil {
		q = &sessionQueue{}
		s.queues[sessionKey(t)] = q
	}
	if old != nil {
		q.drop(old)
	} else {
		q.unfinished++
	}
	s.turns[t.UID] = t
	if blocksSession(t) {
		at, _ := q.search(t)
		q.order = slices.Insert(q.order, at, t)
	}
}

// forget removes a Turn that the watch no longer shows.
func (s *sessionQueues) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(uid)
}

func (s *sessionQueues) remove(uid types.UID) {
	t := s.turns[uid]
	if t == nil {
		return
	}
	delete(s.turns, uid)
	q := s.queues[sessionKey(t)]
	q.drop(t)
	if q.unfinished--; q.unfinished == 0 {
		delete(s.queues, sessionKey(t))
	}
}

// ahead returns the Turn directly ahead of t in its Session, or nil if t is first. t need not be in a queue.
func (s *sessionQueues) ahead(t *v1alpha1.Turn) *v1alpha1.Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[sessionKey(t)]
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

// first returns the first Turn of a Session, and the first Turn after t. Each is nil if there is none. If t is nil,
// both are the same.
func (s *sessionQueues) first(session client.ObjectKey, t *v1alpha1.Turn) (first, next *v1alpha1.Turn) {
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

// lastEntered returns the Turn that last entered the Session of t. It returns nil if that is t itself or a Turn
// that has left. known is false if the watch has not shown t yet, or no longer shows it.
func (s *sessionQueues) lastEntered(t *v1alpha1.Turn) (last *v1alpha1.Turn, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turns[t.UID] == nil {
		return nil, false
	}
	if last = s.turns[s.queues[sessionKey(t)].entered]; last != nil && last.UID == t.UID {
		last = nil
	}
	return last, true
}

// enter records that a Turn is about to be bound as the first of its Session.
func (s *sessionQueues) enter(t *v1alpha1.Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[sessionKey(t)]; q != nil {
		q.entered = t.UID
	}
}

// drop removes a Turn from the order if it is there.
func (q *sessionQueue) drop(t *v1alpha1.Turn) {
	if at, found := q.search(t); found {
		q.order = slices.Delete(q.order, at, at+1)
	}
}

// search returns the position of a Turn, or the position that it would have.
func (q *sessionQueue) search(t *v1alpha1.Turn) (at int, found bool) {
	return slices.BinarySearchFunc(q.order, t, compareInSession)
}
