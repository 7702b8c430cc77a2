package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// modelFunc is a model that is a function.
type modelFunc func(context.Context, *model.Request) (*model.Reply, error)

// Generate calls the function.
func (f modelFunc) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	return f(ctx, r)
}

// largeRequest is a Turn whose message has 60,000 bytes.
func largeRequest(change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	return turnWith(append(change, func(t *v1alpha1.Turn) {
		t.Spec.Execution, t.Spec.Message = v1alpha1.ExecutionRun, strings.Repeat("m", 60_000)
	})...)
}

// asking returns an answer that asks for calls of the tool "look".
func asking(calls int) *model.Reply {
	reply := &model.Reply{FinishReason: model.FinishToolCalls}
	for n := range calls {
		reply.ToolCalls = append(reply.ToolCalls,
			model.ToolCall{ID: fmt.Sprint("c", n), Name: "look", Arguments: fmt.Sprintf(`{"n":%d}`, n)})
	}
	return reply
}

// look returns the tool "look".
func look(approval bool, result string) func(context.Context, *v1alpha1.Agent) []tool.Tool {
	return func(context.Context, *v1alpha1.Agent) []tool.Tool {
		return []tool.Tool{{
			Tool: prompt.Tool{Name: "look"}, Effect: tool.ReadOnly, Schema: json.RawMessage(`{"type":"object"}`),
			RequiresApproval: approval,
			Caller: tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
				return tool.Result{Content: result}, nil
			}),
		}}
	}
}

// panicking is a journal that panics when it receives a reply.
type panicking struct{ journal.Journal }

func (p panicking) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	for _, e := range entries {
		if e.Kind == journal.ModelReplied {
			panic("a bug")
		}
	}
	return p.Journal.Append(ctx, uid, entries...)
}

// TestRunReleasesItsMemory checks that a Turn holds the memory of its request while it waits for its first reply, and
// that it releases all memory, however its run ends.
func TestRunReleasesItsMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		// meanwhile is called while the model works, and prepare is called before the run. Both may be nil.
		meanwhile func(r *run)
		prepare   func(e *Executor)
		reply     *model.Reply
		want      string
	}{
		"completed": {want: v1alpha1.TurnReasonCompleted, reply: &model.Reply{Text: "Done.", FinishReason: model.FinishStop}},
		"cancelled": {want: v1alpha1.TurnReasonCancelled, meanwhile: func(r *run) { r.handleDesiredState(v1alpha1.DesiredStateCancelled) }},
		"suspended": {
			want: v1alpha1.TurnReasonSuspended, reply: asking(1),
			meanwhile: func(r *run) { r.handleDesiredState(v1alpha1.DesiredStateSuspended) },
		},
		"abandoned": {want: v1alpha1.TurnReasonPending, meanwhile: func(r *run) { r.abandon(context.Canceled) }},
		"parked": {
			want: v1alpha1.TurnReasonAwaitingApproval, reply: asking(1),
			prepare: func(e *Executor) { e.Tools = look(true, "") },
		},
		"panicked": {
			want: v1alpha1.TurnReasonInterrupted, reply: &model.Reply{Text: "Done.", FinishReason: model.FinishStop},
			prepare: func(e *Executor) { e.Engine.Journal = panicking{e.Engine.Journal} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), largeRequest())...)
			e.Memory, e.Tools = bytebudget.New(16<<20, 16<<20), look(false, "fine")
			e.Provider = func(*v1alpha1.ModelProvider) model.Provider {
				return modelFunc(func(ctx context.Context, _ *model.Request) (*model.Reply, error) {
					least := int64(60_000-unreservedConversation) * perByte
					if held := e.Memory.Use(bytebudget.Conversations).Bytes; held < least || held > 2*least {
						t.Errorf("%d bytes are held while the model works, want about %d", held, least)
					}
					if tc.meanwhile != nil {
						e.mu.Lock()
						tc.meanwhile(e.runs["uid-one"])
						e.mu.Unlock()
					}
					if tc.reply == nil {
						<-ctx.Done()
						return nil, &model.Error{Kind: model.Cancelled, Message: "cancelled"}
					}
					return tc.reply, nil
				})
			}
			if tc.prepare != nil {
				tc.prepare(e)
			}
			if got := runTurn(t, e); got.StateReason() != tc.want {
				t.Errorf("the Turn is %s: %s\nwant %s", got.StateReason(), got.Status.Conditions[0].Message, tc.want)
			}
			for _, kind := range bytebudget.Kinds() {
				if use := e.Memory.Use(kind); use.Bytes != 0 || use.Waiting != 0 {
					t.Errorf("after the run, the use of memory for %s is %+v, want none", kind, use)
				}
			}
		})
	}
}

// TestManyTurnsShareLittleMemory checks that all Turns complete if their requests, histories and results together need
// many times the memory of their namespace. No Turn waits forever, and few attempts end for lack of memory.
func TestManyTurnsShareLittleMemory(t *testing.T) {
	const turns, calls = 30, 60
	objects := surroundings()
	for n := range turns {
		talk := metav1.ObjectMeta{Namespace: "helpdesk", Name: fmt.Sprint("talk-", n), UID: types.UID(fmt.Sprint("uid-talk-", n))}
		objects = append(objects, &v1alpha1.Session{ObjectMeta: talk}, largeRequest(func(t *v1alpha1.Turn) {
			t.Name, t.UID = fmt.Sprint("turn-", n), types.UID(fmt.Sprint("uid-", n))
			t.Spec.Limits = &v1alpha1.Limits{MaxToolCalls: new(int32(calls)), MaxTokens: new(int64(1_000_000_000))}
			t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: talk.Name}
		}))
	}
	e, journals := newExecutor(t, interceptor.Funcs{}, objects...)
	for n := range turns {
		for i := range 4 {
			_, err := session.Add(t.Context(), fmt.Sprint("uid-talk-", n), session.Turn{
				UID: fmt.Sprint("earlier-", i), Messages: []model.Message{{Role: model.RoleUser, Content: strings.Repeat("h", 200_000)}},
			}, session.ExternalState{}, journal.Options{Journal: journals, Now: e.Now})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	var reads atomic.Int64
	journals.read = func() { reads.Add(1) }
	e.Events, e.Capacity = events.NewFakeRecorder(10*turns), turns
	e.Memory, e.Tools = bytebudget.New(16<<20, 16<<20), look(false, strings.Repeat("r", 11_000))
	e.Provider = func(*v1alpha1.ModelProvider) model.Provider {
		return modelFunc(func(_ context.Context, r *model.Request) (*model.Reply, error) {
			if r.Messages[len(r.Messages)-1].Role == model.RoleTool {
				return &model.Reply{Text: "Done.", FinishReason: model.FinishStop}, nil
			}
			return asking(calls), nil
		})
	}
	for n := range turns {
		var turn v1alpha1.Turn
		if err := e.Reader.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: fmt.Sprint("turn-", n)}, &turn); err != nil {
			t.Fatal(err)
		}
		e.observe(t.Context(), &turn)
	}
	e.all.Wait()
	if n := reads.Load(); n > 20*turns {
		t.Errorf("journals were read %d times by %d Turns, want few attempts that end for lack of memory", n, turns)
	}
	for n := range turns {
		var turn v1alpha1.Turn
		if err := e.Reader.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: fmt.Sprint("turn-", n)}, &turn); err != nil {
			t.Fatal(err)
		}
		if turn.StateReason() != v1alpha1.TurnReasonCompleted || turn.Epoch() != 1 {
			t.Errorf("%s is %s: %s, want it Completed by its first binding", turn.Name, turn.StateReason(),
				turn.Status.Conditions[0].Message)
		}
	}
	if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != 0 || use.Waiting != 0 {
		t.Errorf("after all Turns have ended, the use of memory is %+v, want none", use)
	}
}
