package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// world is what outlives a process: the journal, the endpoints and the servers of the tools. It notes what they were asked.
type world struct {
	t          *testing.T
	journal    journal.Journal
	uid, talk  string // UIDs of the Turn and of its Session
	limits     loop.Limits
	mu         sync.Mutex
	overloaded bool // the one time that it is
	requests   []model.Request
	calls      map[string]int // by idempotency key
	replied    map[int]bool   // steps whose reply is in the journal
	appended   []*process     // those that have written to the Turn's journal, in order
	// resumes is how many processes have written before the one that ended the Turn.
	resumes int
	// lost are requests that the endpoint got and of whose end the journal knows nothing, and unknown are calls that do harm
	// and were under way when their process died.
	lost, unknown int
	// last are the messages of the request that was answered last, once that is checked.
	last []model.Message
}

func newWorld(t *testing.T, j journal.Journal, uid string, limits loop.Limits) *world {
	t.Helper()
	w := &world{t: t, journal: j, uid: uid, talk: uid + "-session", limits: limits, calls: map[string]int{}, replied: map[int]bool{}}
	earlier := session.Turn{
		UID: uid + "-before", Name: "before", Usage: model.Usage{InputTokens: 5}, Cost: &finalize.Cost{Amount: "0.000005", Currency: "USD"},
		Messages: []model.Message{{Role: model.RoleUser, Content: "Hello."}, {Role: model.RoleAssistant, Content: "Good day."}},
	}
	if _, err := session.Add(t.Context(), w.talk, earlier, journal.Options{Journal: j, Now: func() time.Time { return at }}); err != nil {
		t.Fatal(err)
	}
	return w
}

// errKilled is what a dead process gets of whatever it still tries.
var errKilled = errors.New("the process was killed")

// process is one run of the Turn, by an engine of its own. It asks before and after each of its effects whether it lives.
type process struct {
	world *world
	epoch int64
	life  context.Context //nolint:containedctx // because it is the process
	kill  context.CancelCauseFunc
	// hook is told of each moment between two effects, from 1. It returns true to kill the process there; nil never does.
	hook    func(moment int) bool
	moments int
	dead    bool
	// zombie processes go on after another has taken the Turn over.
	zombie bool
	// inFlight is true while a request was got by the endpoint and its end is not in the journal; intent is a call that was
	// intended and whose end is not in the journal.
	inFlight bool
	intent   *loop.Intent
}

// process makes the process that runs the Turn for an epoch.
func (w *world) process(epoch int64, hook func(moment int) bool) *process {
	p := &process{world: w, epoch: epoch, hook: hook}
	p.life, p.kill = context.WithCancelCause(w.t.Context())
	return p
}

// killedAt is the hook of a process that dies at a moment; 0 is never.
func killedAt(moment int) func(int) bool { return func(now int) bool { return now == moment } }

// alive is asked between two effects.
func (p *process) alive() bool {
	if p.dead {
		return false
	}
	p.moments++
	if p.hook != nil && p.hook(p.moments) {
		p.dead = true
		p.kill(errKilled)
	}
	return !p.dead
}

// run runs the Turn as an executor does: again where the journal has grown meanwhile.
func (p *process) run() (*turn.Result, error) {
	defer p.kill(nil)
	e := &turn.Engine{Journal: p, Now: func() time.Time { return at }}
	result, err := e.Run(p.life, p.input())
	for errors.Is(err, journal.ErrSequence) {
		result, err = e.Run(p.life, p.input())
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if p.inFlight {
		p.world.lost++
	}
	if p.intent != nil && !p.intent.Effect.Repeatable() {
		p.world.unknown++
	}
	return result, err
}

func (p *process) input() turn.Input {
	link := func(name string) loop.Candidate {
		return loop.Candidate{
			ProviderName: name, Model: "m", Provider: endpoint{p, name},
			Retry:   loop.Retry{MaxAttempts: 3, InitialBackoff: 1, MaxBackoff: 1},
			Pricing: &model.Pricing{Currency: "USD", Input: decimal.NewFromInt(1), Output: decimal.NewFromInt(10), CacheRead: decimal.NewFromInt(1)},
		}
	}
	named := func(name string, effect tool.Effect) tool.Tool {
		return tool.Tool{Tool: prompt.Tool{Name: name}, Effect: effect, Caller: tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) {
			return p.call(name, c)
		})}
	}
	return turn.Input{
		UID: p.world.uid, Epoch: p.epoch, Timeout: time.Hour, Limit: time.Hour, Chain: []loop.Candidate{link("p0"), link("p1")},
		Preparation: making(withSkill), DecisionKey: "k", Limits: p.world.limits,
		Session: &turn.Session{UID: p.world.talk, Name: "talk"},
		Tools:   []tool.Tool{named("find", tool.ReadOnly), named("store", tool.Idempotent), named("send", tool.Destructive)},
	}
}

func withSkill(m *prepare.Input) {
	m.Profile.Skills = []prepare.Skill{{Key: "refunds", Name: "Refunds", Content: "Ask first."}}
	m.Agent.Available = []string{"refunds"}
}

// Read reads the journal.
func (p *process) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	if p.dead {
		return func(yield func(journal.Entry, error) bool) { yield(journal.Entry{}, errKilled) }
	}
	return p.world.journal.Read(ctx, uid, after)
}

// Artifact reads an artifact.
func (p *process) Artifact(ctx context.Context, uid, sha256 string) (journal.Artifact, error) {
	if p.dead {
		return journal.Artifact{}, errKilled
	}
	return p.world.journal.Artifact(ctx, uid, sha256)
}

// Append writes to the journal.
func (p *process) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if !p.alive() {
		return errKilled
	}
	if err := p.world.journal.Append(ctx, uid, entries...); err != nil {
		return err
	}
	if uid == p.world.uid {
		p.wrote(entries)
	}
	if !p.alive() {
		return errKilled
	}
	return nil
}

// wrote notes what is in the Turn's journal now.
func (p *process) wrote(entries []journal.Entry) {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.appended, p) {
		w.appended = append(w.appended, p)
	}
	for _, e := range entries {
		switch e.Kind { //nolint:exhaustive // because the others are no effects
		case journal.ModelReplied:
			p.inFlight = false
			w.replied[decoded[loop.Step](w.t, e).Step] = true
		case journal.ModelFailed:
			p.inFlight = false
		case journal.ToolIntended:
			p.intent = new(decoded[loop.Intent](w.t, e))
		case journal.ToolFinished:
			p.intent = nil
		case journal.Finalized:
			w.resumes = len(slices.DeleteFunc(slices.Clone(w.appended), func(o *process) bool { return o == p }))
		}
	}
}

func decoded[T any](t *testing.T, e journal.Entry) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(e.Payload, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// endpoint is one of the two models, as a process sees it.
type endpoint struct {
	*process
	name string
}

// Generate asks the model.
func (e endpoint) Generate(_ context.Context, req model.Request) (model.Reply, error) {
	killed := &model.Error{Kind: model.Cancelled, Message: errKilled.Error()}
	if !e.alive() {
		return model.Reply{}, killed
	}
	reply, err := e.world.reply(e.process, e.name, req)
	if !e.alive() {
		return model.Reply{}, killed
	}
	return reply, err
}

// reply is what the models say. They know nothing of the past but the transcript. The first is overloaded once, and fails from
// the second step on.
func (w *world) reply(p *process, name string, req model.Request) (model.Reply, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.inFlight = true
	w.requests = append(w.requests, req)
	step := 1
	for _, m := range req.Messages {
		if m.Role == model.RoleAssistant && m.Name != prepare.MessageHistory {
			step++
		}
	}
	if w.replied[step] && !p.zombie {
		w.t.Errorf("the reply to step %d is in the journal and was requested again", step)
	}
	switch {
	case step == 1 && !w.overloaded:
		w.overloaded = true
		return model.Reply{}, &model.Error{Kind: model.Overloaded, Message: "busy", Usage: model.Usage{InputTokens: 10}}
	case step > 1 && name == "p0":
		return model.Reply{}, &model.Error{Kind: model.Auth, Message: "the key has expired"}
	case step == 1:
		return calls("I look.", call("r1", "find"), call("i1", "store"), call("d1", "send")), nil
	case step == 2:
		skill := model.ToolCall{ID: "l1", Name: "load_skill", Arguments: `{"key":"refunds"}`}
		reply := calls("", call("d1", "send"), skill, call("d2", "send"), call("x1", "unheard"))
		reply.Usage = model.Usage{InputTokens: 9000, OutputTokens: 1000} // more than all before, whatever of it was lost
		return reply, nil
	}
	return says("Done.").reply, nil
}

// call calls the server of a tool.
func (p *process) call(name string, c tool.Call) (tool.Result, error) {
	if !p.alive() {
		return tool.Result{}, errKilled
	}
	p.world.mu.Lock()
	p.world.calls[c.IdempotencyKey]++
	p.world.mu.Unlock()
	if !p.alive() {
		return tool.Result{}, errKilled
	}
	return tool.Result{Content: name + " is done"}, nil
}

func calls(text string, calls ...model.ToolCall) model.Reply {
	return model.Reply{Text: text, ToolCalls: calls, FinishReason: model.FinishToolCalls, Usage: model.Usage{InputTokens: 1000, OutputTokens: 100}}
}

func call(id, name string) model.ToolCall { return model.ToolCall{ID: id, Name: name, Arguments: `{}`} }
