package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// longReplies is a model that sends a long text with each tool call, for the given number of steps, and then
// answers.
type longReplies struct {
	steps, bytes int
	asked        atomic.Int32
}

func (m *longReplies) Generate(context.Context, model.Request) (model.Reply, error) {
	n := int(m.asked.Add(1))
	if n > m.steps {
		return model.Reply{Text: "Done.", FinishReason: model.FinishStop}, nil
	}
	return model.Reply{
		Text: strings.Repeat("x", m.bytes), FinishReason: model.FinishToolCalls,
		ToolCalls: []model.ToolCall{{ID: fmt.Sprintf("call-%d", n), Name: "look", Arguments: fmt.Sprintf(`{"n":%d}`, n)}},
	}, nil
}

// longWinded returns an executor with that model, and with a memory budget of the given number of bytes for
// conversations.
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

// TestConversationIsBounded checks that a model that sends long replies for many steps ends its Turn, and not the
// manager.
func TestConversationIsBounded(t *testing.T) {
	m := &longReplies{steps: 90, bytes: 1 << 20}
	e := longWinded(t, m, 64<<20) // one Turn may hold 28 MiB of it: a conversation of about 9 MiB
	got := runs(t, e)
	message := got.Status.Conditions[0].Message
	if got.StateReason() != v1alpha1.TurnReasonBudgetExceeded ||
		!strings.Contains(message, "of the manager's memory: ask for shorter replies") {
		t.Errorf("the Turn is %s: %s\nwant BudgetExceeded with a remedy", got.StateReason(), message)
	}
	if asked := m.asked.Load(); asked < 8 || asked > 11 {
		t.Errorf("the model was asked %d times, want about as often as 9 MiB hold its replies", asked)
	}
	if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != 0 {
		t.Errorf("the Turn has ended and %d bytes are held", use.Bytes)
	}
}

// TestTurnWaitsForMemory checks that a waiting Turn releases its memory, reports the wait in its status, and then
// continues from its journal without sending a request twice.
func TestTurnWaitsForMemory(t *testing.T) {
	m := &longReplies{steps: 5, bytes: 100 << 10}
	e := longWinded(t, m, 16<<20)
	account := e.Memory.Account("helpdesk", bytebudget.Conversations)
	others, err := account.Try(account.Most())
	if err != nil {
		t.Fatal(err)
	}
	e.observe(t.Context(), stored(t, e))
	for waits := time.Now().Add(time.Minute); !strings.Contains(stored(t, e).Status.Conditions[0].Message,
		"waiting for memory"); runtime.Gosched() {
		if time.Now().After(waits) {
			t.Fatalf("the status does not say that the Turn waits for memory: %s", stored(t, e).Status.Conditions[0].Message)
		}
	}
	for e.Memory.Use(bytebudget.Conversations).Waiting == 0 { // until it waits again, after the status is written
		runtime.Gosched()
	}
	if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != account.Most() {
		t.Errorf("while it waits %+v is held, want nothing by the Turn", use)
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
		t.Errorf("the Turn has ended and %+v is held", use)
	}
}

// TestWaitForMemoryCanBeStopped checks that such a Turn is handed back and holds no memory.
func TestWaitForMemoryCanBeStopped(t *testing.T) {
	m := &longReplies{steps: 5, bytes: 100 << 10}
	e := longWinded(t, m, 16<<20)
	account := e.Memory.Account("helpdesk", bytebudget.Conversations)
	if _, err := account.Try(account.Most()); err != nil {
		t.Fatal(err)
	}
	e.observe(t.Context(), stored(t, e))
	for e.Memory.Use(bytebudget.Conversations).Waiting == 0 {
		runtime.Gosched()
	}
	e.mu.Lock()
	for _, r := range e.runs {
		r.stopSoon()
	}
	e.mu.Unlock()
	e.all.Wait()
	if got := stored(t, e); got.BoundTo() != "" || got.StateReason() != v1alpha1.TurnReasonPending {
		t.Errorf("the Turn is %s and bound to %q, want it handed back", got.StateReason(), got.BoundTo())
	}
}

// heldReplies is a model whose replies hold memory until they are released, as the replies of an endpoint do. It
// also waits for memory of that kind itself, so a Turn that kept the memory of its last reply would wait for
// itself.
type heldReplies struct {
	*longReplies
	account bytebudget.Account
	bytes   int64
}

func (m *heldReplies) Generate(ctx context.Context, req model.Request) (model.Reply, error) {
	held, err := m.account.Reserve(ctx, m.bytes)
	if err != nil {
		return model.Reply{}, &model.Error{Kind: model.Overloaded, Message: err.Error()}
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
	held := &heldReplies{longReplies: m, account: account, bytes: account.Most()}
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
	if got := runs(t, e); got.StateReason() != v1alpha1.TurnReasonCompleted {
		t.Errorf("the Turn is %s: %s", got.StateReason(), got.Status.Conditions[0].Message)
	}
	if replies, conversations := use(); replies != 0 || conversations != 0 {
		t.Errorf("the Turn has ended, and %d bytes are held for replies and %d for conversations", replies, conversations)
	}
	if called != m.steps || ends != 1 {
		t.Errorf("%d calls and %d ends, want %d and 1", called, ends, m.steps)
	}
}
