package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/screen"
	"github.com/capstan-dev/capstan/internal/toolservers"
	"github.com/capstan-dev/capstan/internal/translate"
)

// job is one run of the command: what its Turn and those of sub-agents share.
type job struct {
	*runner
	env       Environment
	store     *store
	providers *providers.Cache
	servers   *reachable
	// credentials are those of providers and servers: no run records them.
	credentials *redact.Set
	// chains of models, by the name of their Agent.
	chains map[string][]translate.Link
	// live shows what goes on; nil where there is no terminal, or where that is not wanted.
	live *spinner
	// watched ends with a signal, life when the run is given up. cancel ends when the Turns are to end; nil for never.
	watched, life context.Context //nolint:containedctx // because the Turns of sub-agents live no longer than that of their parent
	cancel        context.Context //nolint:containedctx // because it is a signal, no scope
	// ask asks a person; nil where there is none. decided are their replies, and asking is how long they took.
	ask     *asker
	decided map[waitingCall]bool
	asking  time.Duration
}

// newJob opens what the Turns need: the journal, the models and the tools. As in a cluster, all must be there before any is used.
func (r *runner) newJob(ctx context.Context, p *project) (*job, error) {
	j := &job{runner: r, env: r.env, credentials: redact.NewSet(), decided: map[waitingCall]bool{}, chains: map[string][]translate.Link{}}
	j.providers = providers.NewCache(p.readSecret, r.env.Now, netpolicy.Permissive(), nil)
	j.providers.NoteIn(j.credentials)
	j.servers = &reachable{
		Cache: toolservers.NewCache(p.readSecret, netpolicy.Permissive(), r.env.Now, logr.Discard()), tell: func(text string) { j.env.tell("%s", text) },
	}
	j.servers.NoteIn(j.credentials)
	if err := j.prepare(ctx, p); err != nil {
		j.providers.Close()
		j.servers.Close()
		return nil, err
	}
	if !r.quiet {
		j.live = j.env.watch()
	}
	if r.env.canAsk() && r.approve == approveAsk {
		j.ask = newAsker(j.env)
	}
	return j, nil
}

// prepare finds the models and the Secrets of all Agents, and opens the journal.
func (j *job) prepare(ctx context.Context, p *project) (err error) {
	for _, member := range p.team {
		if j.chains[member.agent.Name], err = j.chain(ctx, member, j.providers); err != nil {
			return err
		}
		if err := member.checkSecrets(ctx); err != nil {
			return err
		}
	}
	if j.store, err = j.openStore(ctx); err != nil {
		return fail(ExitFailed, err)
	}
	return nil
}

func (j *job) close() error {
	if j.live != nil {
		j.live.close()
	}
	j.servers.Close()
	j.providers.Close()
	return j.store.close()
}

// work is one Turn of a job.
type work struct {
	*project
	// turn with its status, and the binding it has.
	turn    *v1alpha1.Turn
	binding binding
	engine  *turn.Engine
	in      turn.Input
	// begun is when the Turn got its time, and asked how long people had been asked by then.
	begun time.Time
	asked time.Duration
	// result of the Turn; nil while it has none.
	result *turn.Result

	mu sync.Mutex
	// done is what the Turn has done by now; nil where this run has done nothing yet.
	done *turn.Progress
	// children are the Turns of sub-agents, by name.
	children map[string]*work
}

// begin makes a Turn ready to run.
func (j *job) begin(p *project, t *v1alpha1.Turn, b binding) (*work, error) {
	w := &work{project: p, turn: t, binding: b, asked: j.asking, children: map[string]*work{}}
	w.begun = time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	objects := p.objects()
	objects.Turn = t
	in, err := translate.Input(t, p.agent, j.chains[p.agent.Name], p.session, func(ctx context.Context) (prepare.Input, error) {
		return translate.Preparation(ctx, objects, t.Status.StartTime.Time)
	})
	if err != nil {
		return nil, fail(ExitFailed, p.located(err.Error()))
	}
	in.Epoch, in.Executor, in.Cancel = b.epoch, executorName, j.cancel
	in.Redact = j.credentials.In(t.Namespace)
	in.Toolbox, in.Selection.Pinned = j.toolbox(w), p.profile.Spec.PinnedTools
	in.Decide = func(_ context.Context, a loop.Approval) (*loop.Decision, error) { return j.decide(w, a), nil }
	in.Progress = w.note
	w.in, w.engine = in, j.engine(w)
	return w, nil
}

// note notes what the Turn has done by now.
func (w *work) note(p turn.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = &p
}

// park writes what the Turn waits for into its status.
func (w *work) park(waits *loop.Parked) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done != nil {
		translate.Progress(w.turn, *w.done)
	}
	translate.Park(w.turn, waits, w.binding.clock())
}

// engine returns what runs a Turn, and tells how it gets on.
func (j *job) engine(w *work) *turn.Engine {
	e := &turn.Engine{Journal: j.store, Now: j.clock(), Patience: storePatience}
	if !j.quiet {
		p := &progress{Journal: j.store, env: j.env, question: screen.Line(w.turn.Spec.Message, longestQuestion), live: j.live}
		if w.turn.Spec.Depth != nil {
			p.agent = w.agent.Name
		}
		e.Journal = p
	}
	e.Waiting = func(_ turn.Input, err error, again time.Duration) {
		j.env.tell("Waiting for the journal, trying again in %s: %s", again.Round(time.Millisecond), err)
	}
	return e
}

// drive runs a Turn to its end, and those of its sub-agents. It returns a *loop.Parked if the Turn waits for somebody's decision and
// nobody can be asked.
func (j *job) drive(w *work) error {
	for {
		in := w.in
		in.Timeout = in.Limit - j.elapsed(w)
		result, err := w.engine.Run(j.life, in)
		if err == nil {
			w.result = result
			translate.Finish(w.turn, result, w.binding.end())
			return nil
		}
		waits, parked := errors.AsType[*loop.Parked](err)
		if !parked {
			return err
		}
		moved, err := j.serve(w, waits)
		if err != nil {
			return err
		}
		if !moved {
			return waits
		}
		w.in.Epoch++ // as a cluster binds a Turn anew
		w.turn.Status.Executor.Epoch = w.in.Epoch
	}
}

// serve does what a parked Turn waits for, and reports whether it can go on.
func (j *job) serve(w *work, waits *loop.Parked) (moved bool, err error) {
	for _, name := range waits.Turns {
		w.mu.Lock()
		child := w.children[name]
		w.mu.Unlock()
		if child == nil {
			return false, fmt.Errorf("the Turn waits for Turn %q, which it has not called", name)
		}
		err := j.drive(child)
		if _, parked := errors.AsType[*loop.Parked](err); parked {
			continue
		}
		if err != nil {
			return false, err
		}
		moved = true
	}
	for _, a := range waits.Approvals {
		ok, err := j.resolve(w, a)
		if err != nil {
			return false, err
		}
		if call := fmt.Sprintf("%s (%s)", screen.Line(a.Name, longestID), screen.Line(a.CallID, longestID)); !ok && !slices.Contains(j.undecided, call) {
			j.undecided = append(j.undecided, call)
		}
		moved = moved || ok
	}
	return moved, nil
}
