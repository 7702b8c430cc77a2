package executor

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// hangingTasks is a store with tasks of a kind that this version does not support, so each task is postponed. Calls of
// PostponeTask for the tasks of one namespace hang until the channel release is closed.
type hangingTasks struct {
	*journaltest.Store
	namespace string
	release   chan struct{}

	mu sync.Mutex
	// postponed are the UIDs of the postponed tasks.
	postponed []string
}

func (s *hangingTasks) PostponeTask(ctx context.Context, h task.Held, d task.Delay) error {
	if strings.HasPrefix(h.UID, s.namespace+"-") {
		<-s.release
	}
	s.mu.Lock()
	s.postponed = append(s.postponed, h.UID)
	s.mu.Unlock()
	return s.Store.PostponeTask(ctx, h, d)
}

// TestNamespaceWithHangingTasksLeavesSlotsToOthers checks that a namespace whose tasks hang delays no other
// namespace, however many tasks it has, and that its own tasks continue when the calls no longer hang.
func TestNamespaceWithHangingTasksLeavesSlotsToOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		// slots is the number of all slots, and hanging the number of those that the namespace with hanging tasks
		// occupies.
		slots, hanging int
	}{
		"two slots":   {2, 1},
		"three slots": {3, 2},
		"four slots":  {4, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &hangingTasks{Store: &journaltest.Store{}, namespace: "a", release: make(chan struct{})}
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
				tasks := NewTasks(s, s, tc.slots, time.Now, logr.Discard())
				wait := tasks.start(ctx, &Executor{Now: time.Now})
				time.Sleep(claimFor / 2)
				s.mu.Lock()
				postponed := slices.Sorted(slices.Values(s.postponed))
				s.mu.Unlock()
				if want := []string{"b-1", "b-2", "b-3"}; !slices.Equal(postponed, want) {
					t.Errorf("while the tasks of namespace \"a\" hang, the postponed tasks are %q, want %q", postponed, want)
				}
				if busy := tasks.busy(); !slices.Equal(busy, []string{"a"}) || tasks.working["a"] != tc.hanging {
					t.Errorf("the busy namespaces are %q, and namespace \"a\" has %d slots; want only namespace \"a\", with %d slots",
						busy, tasks.working["a"], tc.hanging)
				}
				close(s.release)
				time.Sleep(pollTasks)
				s.mu.Lock()
				postponed = slices.Sorted(slices.Values(s.postponed))
				s.mu.Unlock()
				if !slices.Equal(postponed, all) {
					t.Errorf("at the end, the postponed tasks are %q, want all", postponed)
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

// claimedTasks is a store that counts the claims. Calls of PostponeTask hang until the channel release is closed.
type claimedTasks struct {
	*journaltest.Store
	claims  atomic.Int64
	release chan struct{}
}

func (s *claimedTasks) ClaimTask(ctx context.Context, search task.Search) (*task.Task, error) {
	k, err := s.Store.ClaimTask(ctx, search)
	if k != nil {
		s.claims.Add(1)
	}
	return k, err
}

func (s *claimedTasks) PostponeTask(ctx context.Context, h task.Held, d task.Delay) error {
	<-s.release
	return s.Store.PostponeTask(ctx, h, d)
}

// TestAClockThatIsSetTakesNoTaskAway checks that an executor does not take its own tasks from itself when its clock is
// set, and that it continues to claim tasks.
func TestAClockThatIsSetTakesNoTaskAway(t *testing.T) {
	for name, step := range map[string]time.Duration{"forward": time.Hour, "back": -2 * time.Hour} {
		t.Run(name, func(t *testing.T) { testClockIsSet(t, step) })
	}
}

func testClockIsSet(t *testing.T, step time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		s := &claimedTasks{Store: &journaltest.Store{}, release: make(chan struct{})}
		add := func(uid string) {
			if err := s.Append(t.Context(), uid, journal.Entry{
				Seq: 1, Epoch: 1, Time: time.Now(), Kind: journal.Finalized, Payload: []byte(`{}`),
				Tasks: []task.Task{{UID: uid, Kind: "future", Namespace: uid, Turn: uid, Agent: "desk", Created: time.Now()}},
			}); err != nil {
				t.Fatal(err)
			}
		}
		var ahead atomic.Int64
		clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		tasks := NewTasks(s, s, 4, clock, logr.Discard())
		ctx, cancel := context.WithCancel(t.Context())
		wait := tasks.start(ctx, &Executor{Now: clock})
		add("a")
		time.Sleep(pollTasks)
		synctest.Wait() // the search may be due at this moment
		ahead.Store(int64(step))
		time.Sleep(2 * claimFor)
		synctest.Wait()
		if n := s.claims.Load(); n != 1 {
			t.Errorf("the task was claimed %d times, want once", n)
		}
		add("b")
		time.Sleep(pollTasks)
		synctest.Wait()
		if n := s.claims.Load(); n != 2 {
			t.Errorf("there were %d claims, want one of each task", n)
		}
		close(s.release)
		cancel()
		wait()
	})
}

// TestAnExecutorThatIsAheadTakesNoTaskAway checks that an executor whose time is still ahead, because the API server's
// clock was set back, does not take the tasks of executors that have started since.
func TestAnExecutorThatIsAheadTakesNoTaskAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &claimedTasks{Store: &journaltest.Store{}, release: make(chan struct{})}
		close(s.release)
		if err := s.Append(t.Context(), "a", journal.Entry{
			Seq: 1, Epoch: 1, Time: time.Now(), Kind: journal.Finalized, Payload: []byte(`{}`),
			Tasks: []task.Task{{UID: "a", Kind: "future", Namespace: "a", Turn: "a", Agent: "desk", Created: time.Now()}},
		}); err != nil {
			t.Fatal(err)
		}
		k, err := s.Store.ClaimTask(t.Context(), task.Search{Now: time.Now(), Until: time.Now().Add(claimFor)})
		if k == nil || err != nil {
			t.Fatalf("ClaimTask: %v, %v; want the task", k, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ahead := &Executor{Now: func() time.Time { return time.Now().Add(time.Hour) }}
		wait := NewTasks(s, s, 1, time.Now, logr.Discard()).start(ctx, ahead)
		time.Sleep(claimFor - pollTasks)
		cancel()
		wait()
		if n := s.claims.Load(); n != 0 {
			t.Errorf("the executor that is ahead has claimed %d tasks, want none, because the other one holds it", n)
		}
	})
}

// panickingTasks is a store that panics when the first task is published.
type panickingTasks struct {
	*journaltest.Store
	published int
}

func (s *panickingTasks) PublishTask(ctx context.Context, h task.Held, now time.Time) error {
	if s.published++; s.published == 1 {
		panic("a bug with a secret")
	}
	return s.Store.PublishTask(ctx, h, now)
}

// TestPanicDuringPublishDoesNotEndTheProcess checks that the process continues after a panic, and that the
// result is published later.
func TestPanicDuringPublishDoesNotEndTheProcess(t *testing.T) {
	for _, kind := range task.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &panickingTasks{Store: &journaltest.Store{}}
				now := time.Now()
				err := s.Append(t.Context(), "u", journal.Entry{
					Seq: 1, Epoch: 1, Time: now, Kind: journal.Finalized, Payload: []byte(`{}`),
					Tasks: []task.Task{{UID: "u", Kind: kind, Namespace: "a", Turn: "u", Agent: "desk", Requester: "ada", Created: now}},
				})
				if err != nil {
					t.Fatal(err)
				}
				k, err := s.ClaimTask(t.Context(), task.Search{Now: now, Until: now.Add(time.Second)})
				if err != nil {
					t.Fatal(err)
				}
				if err := s.FinishTask(t.Context(), k.Held(), task.Result{Skipped: task.Expired}, 0); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var logs strings.Builder
				log := funcr.New(func(_, line string) { logs.WriteString(line + "\n") }, funcr.Options{})
				wait := NewTasks(s, s, 1, time.Now, log).start(ctx, &Executor{Now: time.Now})
				time.Sleep(2 * claimFor)
				cancel()
				wait()
				if s.published != 2 {
					t.Errorf("published %d times, want twice: once with the panic", s.published)
				}
				if got := logs.String(); strings.Count(got, "bug in Capstan") != 1 || strings.Contains(got, "secret") {
					t.Errorf("the log must have the panic once, without its value:\n%s", got)
				}
				for line := range strings.Lines(logs.String()) {
					if strings.Contains(line, `"turn"=`) && !strings.Contains(line, `"requester"="ada"`) {
						t.Errorf("a line about a Turn does not name its requester: %s", line)
					}
				}
			})
		})
	}
}
