package executor

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// hangingTasks is a store with tasks of a kind that this version does not know, which are therefore given back. The
// call for that hangs for the tasks of one namespace, until open is closed.
type hangingTasks struct {
	*journaltest.Memory
	namespace string
	open      chan struct{}

	mu     sync.Mutex
	handed []string
}

func (s *hangingTasks) PostponeTask(ctx context.Context, h task.Held, until time.Time, used int64) error {
	if strings.HasPrefix(h.UID, s.namespace+"-") {
		<-s.open
	}
	s.mu.Lock()
	s.handed = append(s.handed, h.UID)
	s.mu.Unlock()
	return s.Memory.PostponeTask(ctx, h, until, used)
}

// TestANamespaceLeavesSlotsOfTasks checks that a namespace whose tasks hang delays no other one, however many it has,
// and that it gets on when they end.
func TestANamespaceLeavesSlotsOfTasks(t *testing.T) {
	for name, tc := range map[string]struct {
		slots, hang int
	}{
		"two slots":   {2, 1},
		"three slots": {3, 2},
		"four slots":  {4, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &hangingTasks{Memory: &journaltest.Memory{}, namespace: "a", open: make(chan struct{})}
				all := []string{"a-1", "a-2", "a-3", "a-4", "a-5", "b-1", "b-2", "b-3"}
				for _, uid := range all {
					namespace, _, _ := strings.Cut(uid, "-")
					err := s.Append(t.Context(), uid, journal.Entry{
						Seq: 1, Epoch: 1, Time: time.Now(), Kind: journal.Finalized, Payload: []byte(`{}`),
						Tasks: []task.Task{{UID: uid, Kind: "future", Namespace: namespace, Turn: uid, Agent: "desk", Created: time.Now()}},
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				tasks := NewTasks(s, s, tc.slots, logr.Discard())
				wait := tasks.start(ctx, &Executor{Now: time.Now})
				time.Sleep(claimFor / 2)
				s.mu.Lock()
				handed := slices.Sorted(slices.Values(s.handed))
				s.mu.Unlock()
				if want := []string{"b-1", "b-2", "b-3"}; !slices.Equal(handed, want) {
					t.Errorf("while the tasks of a hang, those that ended are %q, want %q", handed, want)
				}
				if busy := tasks.busy(); !slices.Equal(busy, []string{"a"}) || tasks.working["a"] != tc.hang {
					t.Errorf("busy are %q, and a has %d slots; want it alone, with %d", busy, tasks.working["a"], tc.hang)
				}
				close(s.open)
				time.Sleep(pollTasks)
				s.mu.Lock()
				handed = slices.Sorted(slices.Values(s.handed))
				s.mu.Unlock()
				if !slices.Equal(handed, all) {
					t.Errorf("at the end, those that ended are %q, want all", handed)
				}
				cancel()
				wait()
				if len(tasks.working) != 0 {
					t.Errorf("slots are left over: %v", tasks.working)
				}
			})
		})
	}
}
