package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// longReplies is a model that sends a long text with each tool call, for the given number of steps, and then
// answers.
type longReplies struct {
	steps, bytes int
	asked        atomic.Int32
}

func (m *longReplies) Generate(context.Context, *model.Request) (*model.Reply, error) {
	n := int(m.asked.Add(1))
	if n > m.steps {
		return &model.Reply{Text: "Done.", FinishReason: model.FinishStop}, nil
	}
	return &model.Reply{
		Text: strings.Repeat("x", m.bytes), FinishReason: model.FinishToolCalls,
		ToolCalls: []model.ToolCall{{ID: fmt.Sprintf("call-%d", n), Name: "look", Arguments: fmt.Sprintf(`{"n":%d}`, n)}},
	}, nil
}

// longWinded returns an executor with the model m, and with a memory budget of held bytes for conversations.
func longWinded(t *testing.T, m *longReplies, held int64) *Executor {
	t.Helper()
	e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(func(t *v1alpha1.Turn) {
		t.Spec.Execution = v1alpha1.ExecutionRun
		t.Spec.Limits = &v1alpha1.Limits{MaxSteps: new(int32(100)), MaxToolCalls: new(int32(100)), MaxTokens: new(int64(1_000_000_000))}
	}))...)
	e.Memory = bytebudget.New(held, held)
	e.Provider = func(*v1alpha1.ModelProvider) model.Provider { return m }
	e.Tools = func(context.Context, *v1alpha1.Agent) []tool.Tool {
		return []tool.Tool{{
			Tool: prompt.Tool{Name: "look"}, Effect: tool.ReadOnly, Schema: json.RawMessage(`{"type":"object"}`),
			Caller: tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{Content: "fine"}, nil }),
		}}
	}
	return e
}

// TestConversationIsBounded checks that a Turn whose model sends long replies for many steps ends before the manager
// runs out of memory.
func TestConversationIsBounded(t *testing.T) {
	m := &longReplies{steps: 90, bytes: 1 << 20}
	e := longWinded(t, m, 64<<20) // one Turn may hold 28 MiB of it: a conversation of about 9 MiB
	got := runTurn(t, e)
	message := got.Status.Conditions[0].Message
	if got.StateReason() != v1alpha1.TurnReasonBudgetExceeded ||
		!strings.Contains(message, "for a turn: ask for shorter replies") {
		t.Errorf("the Turn is %s: %s\nwant BudgetExceeded with a remedy", got.StateReason(), message)
	}
	if asked := m.asked.Load(); asked < 8 || asked > 11 {
		t.Errorf("the model was asked %d times, want 8 to 11 times, because the memory holds about 9 replies", asked)
	}
	if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != 0 {
		t.Errorf("after the end of the Turn, %d bytes are held, want none", use.Bytes)
	}
}

// TestTurnWaitsForMemory checks that a waiting Turn releases its memory, reports the wait in its status, and then
// continues from its journal without sending a request twice.
func TestTurnWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &longReplies{steps: 5, bytes: 100 << 10}
		e := longWinded(t, m, 16<<20)
		account := e.Memory.Account("helpdesk", bytebudget.Conversations)
		others, err := account.TryReserve(account.MaxReservation())
		if err != nil {
			t.Fatal(err)
		}
		e.observe(t.Context(), stored(t, e))
		synctest.Wait()
		if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != account.MaxReservation() || use.Waiting != 1 {
			t.Errorf("the use is %+v, want a Turn that waits and has no memory", use)
		}
		time.Sleep(10 * time.Second) // a short wait is not written
		if m := stored(t, e).Status.Conditions[0].Message; !strings.Contains(m, "waiting for RAM of the manager") {
			t.Fatalf("the status does not say that the Turn waits for RAM: %s", m)
		}
		others.Release()
		e.all.Wait()
		got := stored(t, e)
		if got.StateReason() != v1alpha1.TurnReasonCompleted || got.Epoch() != 1 {
			t.Errorf("the Turn is %s: %s, want Completed by the same binding", got.StateReason(), got.Status.Conditions[0].Message)
		}
		if asked := m.asked.Load(); asked != 6 {
			t.Errorf("the model was asked %d times, want 6", asked)
		}
		if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != 0 || use.Waiting != 0 {
			t.Errorf("after the end of the Turn, the use is %+v, want none", use)
		}
	})
}

// TestWaitForMemoryNeedsNoWrite checks that a Turn waits for memory, and uses the memory that it gets, while no status
// can be written.
func TestWaitForMemoryNeedsNoWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &longReplies{steps: 5, bytes: 100 << 10}
		e := longWinded(t, m, 16<<20)
		e.Writes = fairgate.New(1, 1)
		account := e.Memory.Account("helpdesk", bytebudget.Conversations)
		others, err := account.TryReserve(account.MaxReservation())
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Writes.Enter(t.Context(), "helpdesk"); err != nil {
			t.Fatal(err)
		}
		e.observe(t.Context(), stored(t, e))
		synctest.Wait()
		e.mu.Lock()
		for _, r := range e.runs {
			go r.progress.onTimer() // the write of the wait, which the gate stops
		}
		e.mu.Unlock()
		others.Release()
		synctest.Wait()
		if asked := m.asked.Load(); asked < 6 {
			t.Fatalf("the model was asked %d times, want 6: the Turn has its memory and waits for a write", asked)
		}
		e.Writes.Leave("helpdesk")
		e.all.Wait()
		if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonCompleted {
			t.Errorf("the Turn is %s: %s", got.StateReason(), got.Status.Conditions[0].Message)
		}
	})
}

// TestWaitsForMemoryAreWrittenAtIntervals checks that a long wait costs two writes, and a short one none.
func TestWaitsForMemoryAreWrittenAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []bool
		p := &progress{}
		p.begin(t.Context(), turnWith(), func(_ context.Context, t *v1alpha1.Turn, u statusUpdate) (*v1alpha1.Turn, error) {
			if u.progress != nil {
				panic("progress is written that the run has not made")
			}
			said = append(said, u.wait.Memory)
			return t, nil
		})
		for range 20 { // the newest state counts
			time.Sleep(time.Second)
			p.setWait(turnstatus.RunWait{Memory: true})
			p.setWait(turnstatus.RunWait{})
		}
		p.setWait(turnstatus.RunWait{Memory: true})
		time.Sleep(time.Minute)
		p.setWait(turnstatus.RunWait{})
		time.Sleep(time.Minute)
		p.stop()
		if want := []bool{true, false}; !slices.Equal(said, want) {
			t.Errorf("the writes say %v, want %v", said, want)
		}
	})
}

// TestReservationFollowsTheConversation checks that a run holds no more memory than its conversation needs. After a
// wait for memory, the run keeps the whole reservation until it has read its journal again and begun a step.
func TestReservationFollowsTheConversation(t *testing.T) {
	const kib = 1 << 10
	e := &Executor{Memory: bytebudget.New(64<<20, 64<<20)}
	r := &run{
		executor: e, namespace: "helpdesk", timeOver: time.Now().Add(time.Hour), cancellation: newCancellation(t.Context()),
	}
	account := r.memoryAccount()
	held := func(bytes int64) int64 {
		t.Helper()
		if err := r.hold(bytes); err != nil {
			t.Fatalf("hold(%d) = %v", bytes, err)
		}
		return e.Memory.Use(bytebudget.Conversations).Bytes
	}
	of := func(bytes int64) int64 { return (bytes - unreservedConversation) * perByte }
	r.memory.read = true
	for _, bytes := range []int64{8 * kib, 800 * kib, 300 * kib, 400 * kib, 8 * kib} {
		if got := held(bytes); got != of(bytes) {
			t.Errorf("a conversation of %d bytes holds %d, want %d", bytes, got, of(bytes))
		}
	}
	others, err := account.TryReserve(account.MaxReservation())
	if err != nil {
		t.Fatal(err)
	}
	var short *memoryShortageError
	if err := r.hold(300 * kib); !errors.As(err, &short) || short.want != max(of(300*kib)+300*kib*perByte, of(800*kib)) {
		t.Fatalf("hold = %v with %+v, want a wait for the conversation and a step that doubles it", err, short)
	}
	others.Release()
	r.memory.read = false
	r.progress.begin(t.Context(), turnWith(), r.writeProgress)
	defer r.progress.stop()
	if err := r.awaitMemory(t.Context(), short); err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int64{10 * kib, 200 * kib, 300 * kib} { // while the journal is read
		if got := held(bytes); got != short.want {
			t.Errorf("while the journal is read %d bytes are held, want the %d that the run waited for", got, short.want)
		}
	}
	r.memory.read = true
	if got := held(300 * kib); got != short.want {
		t.Errorf("at the next step %d bytes are held, want the %d that the run waited for", got, short.want)
	}
	if got := held(310 * kib); got != of(310*kib) {
		t.Errorf("after that step %d bytes are held, want %d", got, of(310*kib))
	}
}

// TestWaitForMemoryCanBeStopped checks that a Turn that waits for memory is handed back if its run must stop.
func TestWaitForMemoryCanBeStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &longReplies{steps: 5, bytes: 100 << 10}
		e := longWinded(t, m, 16<<20)
		account := e.Memory.Account("helpdesk", bytebudget.Conversations)
		if _, err := account.TryReserve(account.MaxReservation()); err != nil {
			t.Fatal(err)
		}
		e.observe(t.Context(), stored(t, e))
		synctest.Wait()
		e.mu.Lock()
		for _, r := range e.runs {
			r.stopSoon()
		}
		e.mu.Unlock()
		e.all.Wait()
		if got := stored(t, e); got.BoundTo() != "" || got.StateReason() != v1alpha1.TurnReasonPending {
			t.Errorf("the Turn is %s and bound to %q, want it handed back", got.StateReason(), got.BoundTo())
		}
	})
}

// TestTurnEndsWithoutMemory checks that a Turn that waits for memory ends when it is cancelled or when its time is
// over, although there is no memory all the time.
func TestTurnEndsWithoutMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		seconds int32
		cancel  bool
		want    string
	}{
		"cancelled":    {600, true, v1alpha1.TurnReasonCancelled},
		"time is over": {1, false, v1alpha1.TurnReasonDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := longWinded(t, &longReplies{steps: 5, bytes: 100 << 10}, 16<<20)
				e.Unreserved, e.Now = fairgate.New(1, 1), time.Now
				account := e.Memory.Account("helpdesk", bytebudget.Conversations)
				others, err := account.TryReserve(account.MaxReservation())
				if err != nil {
					t.Fatal(err)
				}
				defer others.Release()
				begun := stored(t, e)
				begun.Spec.Limits.TimeoutSeconds = &tc.seconds
				begun.Status.StartTime = new(metav1.NewMicroTime(e.Now()))
				e.observe(t.Context(), begun)
				if tc.cancel {
					synctest.Wait() // the Turn waits for memory
					cancelled := begun.DeepCopy()
					cancelled.Spec.DesiredState = v1alpha1.DesiredStateCancelled
					e.observe(t.Context(), cancelled)
				}
				e.all.Wait()
				if got := stored(t, e); got.StateReason() != tc.want || got.Status.Usage == nil || got.Status.Usage.OutputTokens == 0 {
					t.Errorf("the Turn is %s: %s, with the usage %+v; want %s, and the usage of the reply that it has received",
						got.StateReason(), got.Status.Conditions[0].Message, got.Status.Usage, tc.want)
				}
				if err := e.Unreserved.Enter(t.Context(), "another"); err != nil {
					t.Errorf("the Turn has not left the gate: %v", err)
				}
				if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != account.MaxReservation() || use.Waiting != 0 {
					t.Errorf("after the end of the Turn, the use is %+v, want only the memory of others", use)
				}
			})
		})
	}
}

// TestDelayedHandBackLeavesMemoryToOthers checks that a run whose attempt was futile holds neither memory nor a place
// in the gates while it waits before it hands its Turn back.
func TestDelayedHandBackLeavesMemoryToOthers(t *testing.T) {
	for name, reserve := range map[string]func(context.Context, *run) error{
		"with a reservation":    func(_ context.Context, r *run) error { return r.hold(100 << 10) },
		"without a reservation": func(ctx context.Context, r *run) error { return r.enterUnreserved(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
				e.Memory, e.Unreserved, e.Endings = bytebudget.New(16<<20, 16<<20), fairgate.New(1, 1), fairgate.New(1, 1)
				r := newRun(t, e)
				if err := errors.Join(r.enterEndings(t.Context()), reserve(t.Context(), r)); err != nil {
					t.Fatal(err)
				}
				done := make(chan error)
				go func() { done <- r.endAttempt(t.Context(), journal.ErrNewer) }()
				synctest.Wait()
				select {
				case err := <-done:
					t.Fatalf("the run does not wait: %v", err)
				default:
				}
				if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != 0 {
					t.Errorf("%d bytes are held, want none", use.Bytes)
				}
				noWait, cancel := context.WithCancel(t.Context())
				cancel()
				for gate, g := range map[string]*fairgate.Gate{"Unreserved": e.Unreserved, "Endings": e.Endings} {
					if err := g.Enter(noWait, "another"); err != nil {
						t.Errorf("the run has not left the gate %s: %v", gate, err)
					}
				}
				if err := <-done; !errors.Is(err, journal.ErrNewer) {
					t.Errorf("the attempt ends with %v, want its own error", err)
				}
			})
		})
	}
}

// TestTurnWithTimeLeftNeedsMemory checks that a Turn whose time seems to be over still waits for memory if its clock
// was set back, and so gives it time again. Otherwise it would run without a reservation, and would keep others from
// ending.
func TestTurnWithTimeLeftNeedsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &longReplies{steps: 5, bytes: 100 << 10}
		e := longWinded(t, m, 16<<20)
		e.Unreserved = fairgate.New(1, 1)
		var reads atomic.Int32
		start := e.Now()
		e.Now = func() time.Time { reads.Add(1); return start } // this clock is always set back
		account := e.Memory.Account("helpdesk", bytebudget.Conversations)
		others, err := account.TryReserve(account.MaxReservation())
		if err != nil {
			t.Fatal(err)
		}
		begun := stored(t, e)
		begun.Spec.Limits.TimeoutSeconds, begun.Status.StartTime = new(int32(1)), new(metav1.NewMicroTime(start))
		e.observe(t.Context(), begun)
		synctest.Wait()
		asked, before := m.asked.Load(), reads.Load()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if waiting := e.Memory.Use(bytebudget.Conversations).Waiting; reads.Load() == before || waiting != 1 {
			t.Fatalf("%d Turns wait after %d reads of the clock, want that the Turn makes another attempt and waits again", waiting,
				reads.Load()-before)
		}
		if n := m.asked.Load(); n != asked {
			t.Errorf("without memory, the Turn has sent %d further requests, want none", n-asked)
		}
		others.Release()
		e.all.Wait()
		if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonCompleted {
			t.Errorf("the Turn is %s: %s, want Completed", got.StateReason(), got.Status.Conditions[0].Message)
		}
	})
}

// TestTurnWaitsForPlaceInQueue checks that a Turn waits for memory, and says so, although the queue for memory is full.
func TestTurnWaitsForPlaceInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := longWinded(t, &longReplies{steps: 5, bytes: 100 << 10}, 16<<20)
		var failures atomic.Int32
		e.Log = funcr.New(func(_, args string) { failures.Add(1); t.Log(args) }, funcr.Options{})
		account := e.Memory.Account("helpdesk", bytebudget.Conversations)
		others, err := account.TryReserve(account.MaxReservation())
		if err != nil {
			t.Fatal(err)
		}
		queued, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		const queue = 4096 // the maximum of bytebudget
		for range queue {
			all.Go(func() {
				if held, err := account.Reserve(queued, 1); err == nil {
					held.Release()
				}
			})
		}
		if synctest.Wait(); e.Memory.Use(bytebudget.Conversations).Waiting != queue {
			t.Fatalf("the use of memory is %+v, want a full queue", e.Memory.Use(bytebudget.Conversations))
		}
		e.observe(t.Context(), stored(t, e))
		time.Sleep(10 * time.Second) // a short wait is not written
		if m := stored(t, e).Status.Conditions[0].Message; !strings.Contains(m, "waiting for RAM of the manager") {
			t.Fatalf("the status does not say that the Turn waits for RAM: %s", m)
		}
		leave()
		all.Wait()
		others.Release()
		e.all.Wait()
		if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonCompleted {
			t.Errorf("the Turn is %s: %s, want Completed", got.StateReason(), got.Status.Conditions[0].Message)
		}
		if n := failures.Load(); n > 0 {
			t.Errorf("the log has %d lines about a Turn that only waits, want none", n)
		}
	})
}

// heldReplies is a model whose replies hold memory until they are released, as the replies of an endpoint do. Each
// request waits for the memory of its reply, so a Turn that kept the memory of its last reply would deadlock.
type heldReplies struct {
	*longReplies
	account bytebudget.Account
	bytes   int64
}

func (m *heldReplies) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	held, err := m.account.Reserve(ctx, m.bytes)
	if err != nil {
		return nil, &model.Error{Kind: model.Overloaded, Message: err.Error()}
	}
	reply, err := m.longReplies.Generate(ctx, req)
	reply.Release = held.Release
	return reply, err
}

// TestReplyHoldsMemoryUntilItsTurnHasEnded checks that the answer holds its memory until the Turn is written to
// the API server. During tool calls, the reply counts only as part of the conversation.
func TestReplyHoldsMemoryUntilItsTurnHasEnded(t *testing.T) {
	m := &longReplies{steps: 3, bytes: 200 << 10}
	e := longWinded(t, m, 16<<20)
	account := e.Memory.Account("helpdesk", bytebudget.Replies)
	held := &heldReplies{longReplies: m, account: account, bytes: account.MaxReservation()}
	e.Provider = func(*v1alpha1.ModelProvider) model.Provider { return held }
	use := func() (replies, conversations int64) {
		return e.Memory.Use(bytebudget.Replies).Bytes, e.Memory.Use(bytebudget.Conversations).Bytes
	}
	called := 0
	tools := e.Tools
	e.Tools = func(ctx context.Context, a *v1alpha1.Agent) []tool.Tool {
		all := tools(ctx, a)
		all[0].Caller = tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
			called++
			if replies, conversations := use(); replies != 0 ||
				conversations < int64(called*m.bytes*perByte-unreservedConversation*perByte) {
				t.Errorf("call %d: %d bytes are held for replies and %d for the conversation, want none and three times its length", called,
					replies, conversations)
			}
			return tool.Result{Content: "fine"}, nil
		})
		return all
	}
	var ends int
	e.Client = interceptor.NewClient(e.Client.(client.WithWatch), interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption,
		) error {
			if turn, ok := o.(*v1alpha1.Turn); ok && turn.Status.StopReason != "" {
				ends++
				if replies, _ := use(); replies != held.bytes {
					t.Errorf("while the answer is written %d bytes are held for it, want %d", replies, held.bytes)
				}
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	if got := runTurn(t, e); got.StateReason() != v1alpha1.TurnReasonCompleted {
		t.Errorf("the Turn is %s: %s", got.StateReason(), got.Status.Conditions[0].Message)
	}
	if replies, conversations := use(); replies != 0 || conversations != 0 {
		t.Errorf("the Turn has ended, and %d bytes are held for replies and %d for conversations", replies, conversations)
	}
	if called != m.steps || ends != 1 {
		t.Errorf("%d calls and %d ends, want %d and 1", called, ends, m.steps)
	}
}

// TestConcurrentCallsNeedMemory checks that the calls of one reply run at the same time if there is memory for them,
// and otherwise one after another.
func TestConcurrentCallsNeedMemory(t *testing.T) {
	const calls = 8
	for name, most := range map[string]int64{"free": calls, "used": 1} {
		t.Run(name, func(t *testing.T) {
			e := longWinded(t, nil, 16<<20)
			e.Provider = func(*v1alpha1.ModelProvider) model.Provider { return manyCalls(calls) }
			account := e.Memory.Account("helpdesk", bytebudget.Conversations)
			if name == "used" {
				// The rest is enough for the conversation, but not for a call.
				if _, err := account.TryReserve(account.MaxReservation() - callBytes*7/8); err != nil {
					t.Fatal(err)
				}
			}
			var mu sync.Mutex
			var running, made, together int64
			met := make(chan struct{}) // closed when the expected number of calls run at the same time
			tools := e.Tools
			e.Tools = func(ctx context.Context, a *v1alpha1.Agent) []tool.Tool {
				all := tools(ctx, a)
				all[0].Caller = tool.CallerFunc(func(ctx context.Context, _ tool.Call) (tool.Result, error) {
					mu.Lock()
					made, running = made+1, running+1
					if together < most && running == most {
						close(met)
					}
					together = max(together, running)
					mu.Unlock()
					select {
					case <-met:
					case <-ctx.Done():
					}
					mu.Lock()
					running--
					mu.Unlock()
					return tool.Result{Content: "fine"}, nil
				})
				return all
			}
			before := e.Memory.Use(bytebudget.Conversations).Bytes
			got := runTurn(t, e)
			if got.StateReason() != v1alpha1.TurnReasonCompleted || made != calls || together != most {
				t.Errorf("the Turn is %s after %d calls, %d of them at the same time; want Completed, %d and %d",
					got.StateReason(), made, together, calls, most)
			}
			if held := e.Memory.Use(bytebudget.Conversations).Bytes; held != before {
				t.Errorf("the Turn has ended and %d bytes are held, want %d", held, before)
			}
		})
	}
}

// manyCalls is a model that makes this number of calls in one reply, and then answers.
type manyCalls int

func (m manyCalls) Generate(_ context.Context, r *model.Request) (*model.Reply, error) {
	if last := r.Messages[len(r.Messages)-1]; last.Role == model.RoleTool {
		return &model.Reply{Text: "Done.", FinishReason: model.FinishStop}, nil
	}
	reply := model.Reply{FinishReason: model.FinishToolCalls}
	for n := range int(m) {
		reply.ToolCalls = append(reply.ToolCalls,
			model.ToolCall{ID: fmt.Sprintf("call-%d", n), Name: "look", Arguments: fmt.Sprintf(`{"n":%d}`, n)})
	}
	return &reply, nil
}

// TestReadsOfLargeOutputsWait checks that a small output is read immediately, and that a large output waits until there
// is memory for its stored and its decompressed bytes. An output that needs more than all memory is read alone.
func TestReadsOfLargeOutputsWait(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	synctest.Test(t, func(t *testing.T) {
		e := &Executor{Memory: bytebudget.New(16*mib, 16*mib)}
		r := &run{executor: e, namespace: "helpdesk"}
		read := func(ctx context.Context, bytes int64) func() {
			t.Helper()
			release, err := r.reserveRead(ctx, bytes)
			if err != nil {
				t.Fatalf("reserveRead(%d) = %v", bytes, err)
			}
			return release
		}
		large := read(t.Context(), 32*mib)
		if held := e.Memory.Use(bytebudget.Results).Bytes; held != 14*mib {
			t.Errorf("%d bytes are held for the largest output, want all that a namespace can have", held)
		}
		read(t.Context(), 100*kib)()
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := errors.New("the turn has ended")
		time.AfterFunc(time.Second, func() { cancel(ended) })
		if _, err := r.reserveRead(ctx, mib); !errors.Is(err, ended) {
			t.Errorf("reserveRead during the read of the largest output = %v, want a wait until the Turn ends", err)
		}
		time.AfterFunc(time.Second, large)
		read(t.Context(), mib)()
		for _, kind := range bytebudget.Kinds() {
			if held := e.Memory.Use(kind).Bytes; held != 0 {
				t.Errorf("%d bytes of %s are still held", held, kind)
			}
		}
	})
}
