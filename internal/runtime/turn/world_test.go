package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// world is everything that outlives a process: the journal, the model endpoints and the tool servers. It records
// the requests to them.
type world struct {
	t         testing.TB
	journal   journal.Journal
	uid, talk string // UIDs of the Turn and of its Session
	ending    ending
	// now is the clock of all processes. If it is nil, the time does not pass.
	now func() time.Time
	mu  sync.Mutex
	events
}

func newWorld(t testing.TB, j journal.Journal, uid string, e ending) *world {
	t.Helper()
	w := &world{t: t, journal: j, uid: uid, talk: uid + "-session", ending: e, events: events{
		calls: map[string]int{}, replied: map[string]bool{}, gaveUp: map[string]bool{}, began: map[string]int64{},
		observed: map[string]int{}, parts: map[string]turn.Span{},
	}}
	earlier := session.Turn{
		UID: uid + "-before", Name: "before", Usage: model.Usage{InputTokens: 5}, Cost: &finalize.Cost{Amount: "0.000005", Currency: "USD"},
		Messages: []model.Message{{Role: model.RoleUser, Content: "Hello."}, {Role: model.RoleAssistant, Content: "Good day."}},
	}
	if _, err := session.Add(t.Context(), w.talk, earlier, session.ExternalState{},
		journal.Options{Journal: j, Now: func() time.Time { return at }}); err != nil {
		t.Fatal(err)
	}
	return w
}

// errKilled is the cause of the end of a killed process, and the error of every operation that it still tries.
var errKilled = errors.New("the process was killed")

// process is one run of the Turn, with its own engine. It checks before and after each of its effects whether it is
// alive.
type process struct {
	world *world
	epoch int64
	life  context.Context //nolint:containedctx // because it is the process
	kill  context.CancelCauseFunc
	// hook is called at each moment between two effects, numbered from 1. It kills the process there if it returns
	// true. If hook is nil, the process is never killed.
	hook func(moment int) bool
	// mu guards the fields below, because the calls of a wave are concurrent.
	mu      sync.Mutex
	moments int
	dead    bool
	// zombie is true for a process that continues after another process has taken over the Turn.
	zombie bool
	// inFlight is true while a request has reached the endpoint but its end is not in the journal. intents are the
	// calls whose intent is in the journal but whose end is not.
	inFlight bool
	intents  map[string]loop.Intent
	// parked is true once the journal shows that the process has parked the Turn.
	parked bool
}

// process returns a process that runs the Turn with an epoch.
func (w *world) process(epoch int64, hook func(moment int) bool) *process {
	p := &process{world: w, epoch: epoch, hook: hook, intents: map[string]loop.Intent{}}
	p.life, p.kill = context.WithCancelCause(w.t.Context())
	return p
}

// killedAt returns the hook of a process that dies at a moment. 0 means never.
func killedAt(moment int) func(int) bool { return func(current int) bool { return current == moment } }

// alive is called between two effects. It counts the moment, and reports whether the process is alive.
func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
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

// run runs the Turn as an executor does. It runs the Turn again if another run has written to the journal
// meanwhile.
func (p *process) run() (*turn.Result, error) {
	defer p.kill(nil)
	e := &turn.Engine{Journal: p, Now: func() time.Time { return at }}
	if p.world.now != nil {
		e.Now = p.world.now
	}
	result, err := e.Run(p.life, new(p.input()))
	for errors.Is(err, journal.ErrSequence) {
		result, err = e.Run(p.life, new(p.input()))
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if p.inFlight {
		p.world.lost++
	}
	for _, i := range p.intents {
		if !i.Effect.Repeatable() {
			p.world.unknown++
		}
	}
	return result, err
}

// run runs the Turn in processes, one after another, until one of them ends the Turn or dies. The first process has the
// given epoch, and each later process has the next epoch. zombies is the field zombie of the processes. hook receives
// the moments of all processes, numbered consecutively. run returns the last process with its result, and the total
// number of moments.
func (w *world) run(epoch int64, zombies bool, hook func(moment int) bool) (last *process, result *turn.Result, moments int, err error) {
	for ; ; epoch++ {
		before := moments
		last = w.process(epoch, func(moment int) bool { return hook != nil && hook(before+moment) })
		last.zombie = zombies
		result, err = last.run()
		moments += last.moments
		if _, parked := asParked(err); !parked || last.dead {
			return last, result, moments, err
		}
	}
}

// gone reports whether the process was killed.
func (p *process) gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *process) input() turn.Input {
	link := func(name string) loop.Candidate {
		return loop.Candidate{
			ProviderName: name, Model: "m", Provider: endpoint{p, name},
			Retry: loop.Retry{MaxAttempts: 3, InitialBackoff: 1, MaxBackoff: 1},
			Pricing: &model.Pricing{
				Currency: "USD", Input: decimal.NewFromInt(1), Output: decimal.NewFromInt(10),
				CacheRead: decimal.NewFromInt(1),
			},
		}
	}
	named := func(name string, effect tool.Effect) tool.Tool {
		return tool.Tool{
			Tool: prompt.Tool{Name: name}, Schema: json.RawMessage(`{"type":"object"}`), Effect: effect,
			Caller: tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) {
				return p.call(name, c)
			}),
		}
	}
	in := turn.Input{
		UID: p.world.uid, Epoch: p.epoch, Timeout: time.Hour, Limit: time.Hour,
		Config:      loop.Config{Chain: []loop.Candidate{link("p0"), link("p1")}, Limits: p.world.ending.limits},
		Preparation: preparationOf(withSkill), DecisionKey: "k",
		Session: &turn.Session{UID: p.world.talk, Name: "talk"}, Observer: observer{p},
		Tools: []tool.Tool{named("find", tool.ReadOnly), named("store", tool.Idempotent), named("send", tool.Destructive)},
	}
	if change := p.world.ending.change; change != nil {
		change(p, &in)
	}
	return in
}

func withSkill(m *prepare.Input) {
	m.Profile.Skills = []prepare.Skill{{Key: "refunds", Name: "Refunds", Content: "Ask first."}}
	m.Agent.Available = []string{"refunds"}
}

// Read reads the journal.
func (p *process) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	if p.gone() {
		return func(yield func(journal.Entry, error) bool) { yield(journal.Entry{}, errKilled) }
	}
	return p.world.journal.Read(ctx, uid, after)
}

// Last returns the end of the journal.
func (p *process) Last(ctx context.Context, uid string) (int64, error) {
	if p.gone() {
		return 0, errKilled
	}
	return p.world.journal.Last(ctx, uid)
}

// PayloadBytes reads the size of payloads.
func (p *process) PayloadBytes(ctx context.Context, uid string, first, last int64) (int64, error) {
	if p.gone() {
		return 0, errKilled
	}
	return p.world.journal.PayloadBytes(ctx, uid, first, last)
}

// Artifact reads an artifact.
func (p *process) Artifact(ctx context.Context, uid, sha256 string) (journal.Artifact, error) {
	if p.gone() {
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
		p.noteEntries(entries)
	}
	if !p.alive() {
		p.world.mu.Lock()
		defer p.world.mu.Unlock()
		if uid == p.world.uid && slices.ContainsFunc(entries, mayEndRequest) {
			p.world.unobserved++
		}
		return errKilled
	}
	return nil
}

// mayEndRequest reports whether an entry may show the end or the interruption of a request.
func mayEndRequest(e journal.Entry) bool {
	return slices.Contains([]journal.Kind{journal.ModelRequested, journal.ModelReplied, journal.ModelFailed, journal.Finalized}, e.Kind)
}

// observer counts the requests of a process, as metrics do.
type observer struct{ *process }

func (o observer) Observe(s *turn.Span) {
	o.world.mu.Lock()
	defer o.world.mu.Unlock()
	if s.Kind == turn.SpanRequest && !s.Again {
		o.world.observed[s.Key]++
	}
	part := turn.Span{Kind: s.Kind, Key: s.Key, Parent: s.Parent, Start: s.Start, End: s.End, Step: s.Step, Failure: s.Failure}
	if first, known := o.world.parts[s.Key]; known {
		if diff := cmp.Diff(first, part); diff != "" {
			o.world.t.Errorf("the part %s differs in two runs: -first +again:\n%s", s.Key, diff)
		}
	}
	o.world.parts[s.Key] = part
}

func (observer) Within(ctx context.Context, _ string) context.Context { return ctx }

// noteEntries updates the world after entries were added to the Turn's journal.
func (p *process) noteEntries(entries []journal.Entry) {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.appended, p) {
		w.appended = append(w.appended, p)
	}
	for _, e := range entries {
		switch e.Kind { //nolint:exhaustive // because the other kinds do not matter
		case journal.ModelReplied:
			p.inFlight = false
			s := decoded[loop.Step](w.t, e)
			w.replied[asked(s.Step, s.Purpose)] = true
		case journal.ModelFailed:
			p.inFlight = false
			f := decoded[loop.FailedRequest](w.t, e)
			w.gaveUp[f.Provider] = w.gaveUp[f.Provider] || f.Purpose == loop.ForStep && f.GaveUp != ""
		case journal.ToolIntended:
			i := decoded[loop.Intent](w.t, e)
			p.intents[fmt.Sprintf("%d/%s", i.Step, i.CallID)] = i
		case journal.ToolFinished:
			f := decoded[loop.CallResult](w.t, e)
			delete(p.intents, fmt.Sprintf("%d/%s", f.Step, f.CallID))
		case journal.Finalized:
			w.resumes = len(slices.DeleteFunc(slices.Clone(w.appended), func(o *process) bool { return o == p || o.parked }))
		case journal.RunParked:
			p.parked = true
		}
	}
}

func decoded[T any](t testing.TB, e journal.Entry) T {
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
func (e endpoint) Generate(_ context.Context, req *model.Request) (*model.Reply, error) {
	killed := &model.Error{Kind: model.Cancelled, Message: errKilled.Error()}
	if !e.alive() {
		return nil, killed
	}
	reply, err := e.world.reply(e.process, e.name, *req)
	if !e.alive() {
		return nil, killed
	}
	return &reply, err
}

// reply returns the reply of a model. The models know only the transcript of the request. The first model is
// overloaded once, and fails from the second step on.
func (w *world) reply(p *process, name string, req model.Request) (model.Reply, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.inFlight = true
	w.requests = append(w.requests, req)
	step, purpose := w.ending.stepOf(req.Messages)
	if w.replied[asked(step, purpose)] && !p.zombie {
		w.t.Errorf("the reply to step %d is in the journal, and was requested again %s", step, purpose)
	}
	if w.gaveUp[name] && !p.zombie {
		w.t.Errorf("%s was given up and is asked again for step %d %s", name, step, purpose)
	}
	checkAnswers(w.t, req.Messages)
	switch {
	case step == 1 && !w.overloaded:
		w.overloaded = true
		return model.Reply{}, &model.Error{Kind: model.Overloaded, Message: "busy", Usage: model.Usage{InputTokens: 10}}
	case step > 1 && name == "p0":
		return model.Reply{}, &model.Error{Kind: model.Auth, Message: "the key has expired"}
	case w.ending.reply != nil:
		return w.ending.reply(step, purpose), nil
	case step == 1:
		return calls("I look.", call("r1", "find"), call("i1", "store"), call("d1", "send")), nil
	case step == 2:
		skill := model.ToolCall{ID: "l1", Name: "load_skill", Arguments: `{"key":"refunds"}`}
		// An earlier reply used this ID, so the engine replaces it. The arguments differ, because a call with equal
		// arguments would be refused if the outcome of the first call is unknown.
		again := call("d1", "send")
		again.Arguments = `{"for":"d1, again"}`
		reply := calls("", again, skill, call("d2", "send"), call("x1", "unheard"))
		reply.Usage = model.Usage{InputTokens: 9000, OutputTokens: 1000} // more than all earlier usage, whichever part of it was lost
		return reply, nil
	}
	return says("Done.").reply, nil
}

// asked returns the key for the requests of a step with this purpose.
func asked(step int, purpose loop.Purpose) string { return fmt.Sprint(step, purpose) }

// stepOf returns the step and the purpose of a request. It counts the earlier replies, which works only if no summary
// has replaced them.
func (e ending) stepOf(messages []model.Message) (int, loop.Purpose) {
	if e.asked != nil {
		return e.asked(messages)
	}
	step := 1
	for _, m := range messages {
		if m.Role == model.RoleAssistant && m.Name != prepare.MessageHistory {
			step++
		}
	}
	return step, loop.ForStep
}

// checkAnswers checks that each call of each reply has exactly one result after the reply.
func checkAnswers(t testing.TB, messages []model.Message) {
	t.Helper()
	var open []string
	for i, m := range append(slices.Clip(messages), model.Message{Role: model.RoleUser}) {
		if m.Role == model.RoleTool {
			at := slices.Index(open, m.ToolCallID)
			if at < 0 {
				t.Errorf("message %d is a result of the call %q, which was not requested or already has a result", i, m.ToolCallID)
				continue
			}
			open = slices.Delete(open, at, at+1)
			continue
		}
		if len(open) > 0 {
			t.Errorf("the calls %v have no result before message %d", open, i)
		}
		open = nil
		for _, c := range m.ToolCalls {
			open = append(open, c.ID)
		}
	}
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
	return model.Reply{
		Text: text, ToolCalls: calls, FinishReason: model.FinishToolCalls,
		Usage: model.Usage{InputTokens: 1000, OutputTokens: 100},
	}
}

// call returns a request for a tool. Calls with different IDs have different arguments.
func call(id, name string) model.ToolCall {
	return model.ToolCall{ID: id, Name: name, Arguments: `{"for":"` + id + `"}`}
}
