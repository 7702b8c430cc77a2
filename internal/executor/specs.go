package executor

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// Specs are the specs of the Turns that an executor runs. The spec of a Turn that runs has at most
// v1alpha1.MaxSpecBytes, and each event of the watch creates another copy. With Specs, the cache and the run of a Turn
// share one copy. Specs is safe for concurrent use. The zero Specs is empty, and a nil *Specs stays empty.
type Specs struct {
	mu    sync.Mutex
	byUID map[types.UID]runningSpec
}

// runningSpec is the spec of a running Turn, and its generation.
type runningSpec struct {
	generation int64
	spec       *v1alpha1.TurnSpec
}

// Share replaces the spec of a Turn by the equal spec that its run uses. It does nothing if there is no run of this
// Turn and generation. The caller must be the only user of the Turn.
func (s *Specs) Share(t *v1alpha1.Turn) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if running, ok := s.byUID[t.UID]; ok && running.generation == t.Generation {
		t.Spec = *running.spec
	}
}

// add stores the spec of a Turn whose run begins. The spec must not change any more.
func (s *Specs) add(t *v1alpha1.Turn) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byUID == nil {
		s.byUID = map[types.UID]runningSpec{}
	}
	s.byUID[t.UID] = runningSpec{t.Generation, &t.Spec}
}

// remove forgets the spec of a Turn whose run has ended.
func (s *Specs) remove(uid types.UID) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byUID, uid)
}
