package executor

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/sharing"
)

// slowJournal is a journal whose reads wait until release is closed.
type slowJournal struct {
	journal.Journal
	inside  atomic.Int32
	release chan struct{}
}

// Read waits before it reads.
func (s *slowJournal) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	s.inside.Add(1)
	<-s.release
	s.inside.Add(-1)
	return s.Journal.Read(ctx, uid, after)
}

// slowTurns returns an executor to which a number of Turns are bound, each changed by change, with a slow journal. get
// reads one of the Turns.
func slowTurns(t *testing.T, turns int, change func(n int, t *v1alpha1.Turn)) (
	e *Executor, slow *slowJournal, get func(n int) *v1alpha1.Turn,
) {
	objects := surroundings()
	for n := range turns {
		objects = append(objects, turnWith(func(t *v1alpha1.Turn) {
			t.Name, t.UID = fmt.Sprint("turn-", n), types.UID(fmt.Sprint("uid-", n))
			change(n, t)
		}))
	}
	e, journals := newExecutor(t, interceptor.Funcs{}, objects...)
	slow = &slowJournal{Journal: journals, release: make(chan struct{})}
	e.Engine.Journal, e.Events = slow, events.NewFakeRecorder(10*turns)
	return e, slow, func(n int) *v1alpha1.Turn {
		t.Helper()
		var turn v1alpha1.Turn
		if err := e.Reader.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: fmt.Sprint("turn-", n)}, &turn); err != nil {
			t.Fatal(err)
		}
		return &turn
	}
}

// TestFewTurnsEndAtTheSameTime checks that the gate Endings limits how many cancelled Turns are handled at the same
// time, because the limit of concurrent Turns does not apply to them. A Turn that is asked to stop while it waits for
// the gate is handed back.
func TestFewTurnsEndAtTheSameTime(t *testing.T) {
	const turns = 20
	synctest.Test(t, func(t *testing.T) {
		e, slow, get := slowTurns(t, turns, func(_ int, t *v1alpha1.Turn) { t.Spec.DesiredState = v1alpha1.DesiredStateCancelled })
		e.Endings = fairgate.New(4, 2)
		for n := range turns {
			e.observe(t.Context(), get(n))
		}
		synctest.Wait()
		if n := slow.inside.Load(); n != 4 {
			t.Errorf("%d cancelled Turns are handled at the same time, want 4", n)
		}
		e.mu.Lock()
		for _, r := range e.runs {
			if r.leave == nil {
				r.stopSoon()
			}
		}
		e.mu.Unlock()
		synctest.Wait()
		close(slow.release)
		e.all.Wait()
		reasons := map[string]int{}
		for n := range turns {
			reasons[get(n).StateReason()]++
		}
		if reasons[v1alpha1.TurnReasonCancelled] != 4 || reasons[v1alpha1.TurnReasonPending] != turns-4 {
			t.Errorf("the Turns are %v, want 4 cancelled and the others handed back", reasons)
		}
		for n := range turns {
			if turn := get(n); !turn.IsFinished() {
				turn.Status.Executor = boundAgain(turn.Status.Executor)
				e.observe(t.Context(), turn)
			}
		}
		e.all.Wait()
		for n := range turns {
			if turn := get(n); turn.StateReason() != v1alpha1.TurnReasonCancelled {
				t.Errorf("Turn %d is %s, want it cancelled in the end", n, turn.StateReason())
			}
		}
	})
}

// TestOnlyTurnsThatMustEndEnterTheGate checks that a Turn enters the gate Endings exactly if the Turn only has to end.
// Such a Turn may begin even if the journals of its namespace are full.
func TestOnlyTurnsThatMustEndEnterTheGate(t *testing.T) {
	started := func(ago time.Duration) func(*v1alpha1.Turn) {
		return func(t *v1alpha1.Turn) { t.Status.StartTime = new(metav1.NewMicroTime(now.Add(-ago))) }
	}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Turn)
		enters bool
		// waiting is true if the Turn must wait for journal space.
		waiting bool
	}{
		"the time limit of its Agent is not over": {started(2 * time.Minute), false, true},
		"its time is over":                        {started(2 * time.Hour), true, false},
		"cancelled":                               {desires(v1alpha1.DesiredStateCancelled), true, false},
		"overdue":                                 {func(t *v1alpha1.Turn) { t.Status.Executor.Overdue = true }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := surroundings()
				for _, o := range objects {
					if agent, ok := o.(*v1alpha1.Agent); ok {
						agent.Spec.Limits = &v1alpha1.Limits{TimeoutSeconds: new(int32(3600))}
					}
				}
				e, _ := newExecutor(t, interceptor.Funcs{}, append(objects, turnWith(tc.change))...)
				report := &quota.Report{Namespaces: map[string]quota.Budget{"helpdesk": {Used: 100, Limit: 100}}}
				e.Endings, e.Quota = fairgate.New(1, 1), func() *quota.Report { return report }
				turn := stored(t, e)
				r := &run{
					executor: e, turn: turn, namespace: turn.Namespace, epoch: turn.Epoch(), binding: *turn.Status.Executor,
					cancellation: newCancellation(t.Context()), interrupt: make(chan struct{}),
				}
				r.handleDesiredState(turn.Spec.DesiredState)
				_, err := r.beginAttempt(t.Context())
				if (r.leave != nil) != tc.enters || errors.Is(err, loop.ErrInterrupted) != tc.waiting || err != nil && !tc.waiting {
					t.Errorf("beginAttempt = %v, in the gate: %t; want waiting for space: %t, in the gate: %t",
						err, r.leave != nil, tc.waiting, tc.enters)
				}
				if r.leave != nil {
					r.leave()
				}
			})
		})
	}
}

// TestTurnEndsWithoutAnUsableAgent checks that a Turn that only has to end does so if its Agent of another namespace
// cannot be used any more: otherwise it would be handed back and bound again forever.
func TestTurnEndsWithoutAnUsableAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Turn)
		ends   bool
	}{
		"cancelled": {desires(v1alpha1.DesiredStateCancelled), true},
		"running":   {func(*v1alpha1.Turn) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			foreign := &v1alpha1.Agent{
				ObjectMeta: metav1.ObjectMeta{Namespace: "owner", Name: "shared"},
				Spec: v1alpha1.AgentSpec{
					PromptProfileRef:  v1alpha1.SharedReference{Name: strings.Repeat("p", 253)},
					AllowedNamespaces: &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromAll},
				},
			}
			e, _ := newExecutor(t, interceptor.Funcs{}, foreign, turnWith(tc.change, func(t *v1alpha1.Turn) {
				t.Spec.AgentRef = v1alpha1.SharedReference{Namespace: "owner", Name: "shared"}
			}))
			e.Sharing = sharing.New(e.Reader, e.Now, nil)
			turn := stored(t, e)
			r := &run{executor: e, turn: turn, namespace: turn.Namespace, epoch: turn.Epoch(), binding: *turn.Status.Executor}
			if _, err := r.readAgent(t.Context()); (err == nil) != tc.ends {
				t.Errorf("readAgent: %v, want an Agent: %t", err, tc.ends)
			}
		})
	}
}

// TestRunKeepsItsDeletedAgent checks that a run continues with the Agent that it has read, and so with its limits, when
// the Agent is deleted between two attempts. A run that has not read the Agent hands the Turn back, unless the leader
// has decided that the Turn has waited too long.
func TestRunKeepsItsDeletedAgent(t *testing.T) {
	for name, tc := range map[string]struct{ hasRead, overdue bool }{
		"the second attempt": {true, false}, "the first attempt": {false, false}, "the first attempt, overdue": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			agent := &v1alpha1.Agent{
				ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "support"},
				Spec:       v1alpha1.AgentSpec{Limits: &v1alpha1.Limits{TimeoutSeconds: new(int32(3600))}},
			}
			e, _ := newExecutor(t, interceptor.Funcs{}, agent, turnWith(func(t *v1alpha1.Turn) {
				t.Status.StartTime = new(metav1.NewMicroTime(now.Add(-3 * time.Minute)))
				t.Status.Executor.Overdue = tc.overdue
			}))
			turn := stored(t, e)
			r := &run{executor: e, turn: turn, namespace: turn.Namespace, epoch: turn.Epoch(), binding: *turn.Status.Executor}
			if tc.hasRead {
				read, err := r.readAgent(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				r.agent = read
			}
			if err := e.Client.Delete(t.Context(), agent); err != nil {
				t.Fatal(err)
			}
			got, err := r.readAgent(t.Context())
			switch {
			case tc.hasRead && (err != nil || got.Spec.Limits == nil || *got.Spec.Limits.TimeoutSeconds != 3600):
				t.Errorf("readAgent = %+v, %v; want the Agent that was read before", got, err)
			case tc.overdue && (err != nil || got.Spec.Limits != nil):
				t.Errorf("readAgent = %+v, %v; want an empty Agent, with which the Turn ends", got, err)
			case !tc.hasRead && !tc.overdue && !apierrors.IsNotFound(err):
				t.Errorf("readAgent = %+v, %v; want that the Agent does not exist", got, err)
			}
		})
	}
}

// boundAgain returns the next binding to the executor.
func boundAgain(b *v1alpha1.ExecutorBinding) *v1alpha1.ExecutorBinding {
	next := b.DeepCopy()
	next.Name, next.Epoch = me, b.Epoch+1
	return next
}
