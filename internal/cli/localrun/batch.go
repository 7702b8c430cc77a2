package localrun

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Batch runs many Turns of one Agent, with judges. The Turns share the models with their rate limits, the connections
// to tools and a temporary journal. Run and Judge are safe for concurrent use.
type Batch struct {
	run    *localRun
	judges []judge.Judge
	// askers has the models of each judge, in the order of judges.
	askers []*judge.Asker
}

// NewBatch connects to the models and the tools of the Agent of a bundle, and to the models of its judges. The end of
// ctx cancels the Turns. Approve must not be ApproveAsk, because no person can be asked while Turns run in parallel.
// The caller must close the batch.
func (r *Options) NewBatch(ctx context.Context, p *bundle.Bundle) (*Batch, error) {
	r.Quiet, r.DataDir = true, ""
	j, err := r.newLocalRun(ctx, p)
	if err != nil {
		return nil, err
	}
	j.watched, j.cancel = ctx, ctx
	j.life, j.abandon = context.WithCancelCause(context.WithoutCancel(ctx))
	b := &Batch{run: j}
	if err := b.findJudges(ctx, p); err != nil {
		_ = b.Close(ctx) // the first error is more useful
		return nil, err
	}
	return b, nil
}

// findJudges finds the models of the judges.
func (b *Batch) findJudges(ctx context.Context, p *bundle.Bundle) (err error) {
	if b.judges, err = translate.Judges(p.Profile); err != nil {
		return exit.WithCode(exit.Failed, p.Located(err.Error()))
	}
	redaction, err := translate.Redaction(ctx, p.Agent, b.run.credentials.RedactFunc(p.Turn.CredentialNamespaces()...))
	if err != nil {
		return exit.WithCode(exit.Failed, p.Located(err.Error()))
	}
	for i := range b.judges {
		links := b.run.chains[p.AgentName()]
		thinking := p.Agent.Spec.Thinking
		if b.judges[i].Provider != "" {
			link, err := p.JudgeLink(ctx, b.run.providers, i, b.run.logWait)
			if err != nil {
				return err
			}
			links, thinking = []translate.Link{link}, ""
		}
		a := &judge.Asker{Redact: redaction.Redact}
		for _, l := range links {
			c, err := translate.Candidate(l, thinking)
			if err != nil {
				return exit.WithCode(exit.Failed, err)
			}
			a.Chain = append(a.Chain, c)
		}
		b.askers = append(b.askers, a)
	}
	return nil
}

// Judges returns the judges of the profile.
func (b *Batch) Judges() []judge.Judge { return b.judges }

// Run runs a Turn to its end, and returns it with its status. It returns an error if the Turn has not ended.
func (b *Batch) Run(p *bundle.Bundle) (*v1alpha1.Turn, *turn.Result, error) {
	j, t := b.run, p.Turn.DeepCopy()
	t.Generation = 1
	var err error
	if t.UID, err = p.Identity(j.watched, j.Now); err != nil {
		return nil, nil, err
	}
	if err := p.CheckAttachments(); err != nil {
		return nil, nil, err
	}
	spanSeed, err := joinTrace(t, earlierRuns{}, func(string) (string, bool) { return "", false }, j.traces.On())
	if err != nil {
		return nil, nil, err
	}
	w, err := j.begin(j.life, p, t, j.bind(t, earlierRuns{}), spanSeed)
	if err != nil {
		return nil, nil, err
	}
	return j.runToEnd(w)
}

// runToEnd runs a Turn to its end, and returns it with its status.
func (j *localRun) runToEnd(w *localTurn) (*v1alpha1.Turn, *turn.Result, error) {
	if err := j.drive(w); err != nil {
		return nil, nil, fmt.Errorf("the Turn has not ended: %w", err)
	}
	return w.turn, w.result, nil
}

// Judge asks judge i to evaluate the answer of a Turn that Run has run. The Turn is given by its UID.
func (b *Batch) Judge(ctx context.Context, uid string, i int) judge.Evaluation {
	return b.JudgeAnswer(ctx, uid, "", i)
}

// JudgeAnswer is like Judge, but if answer is not empty, the judge evaluates it instead of the Turn's answer.
func (b *Batch) JudgeAnswer(ctx context.Context, uid, answer string, i int) judge.Evaluation {
	s, err := turn.Subject(ctx, b.run.store, uid, nil)
	if err != nil {
		e := b.judges[i].New()
		e.Reason = err.Error()
		return e
	}
	if answer != "" { // the other texts come from the journal, which is redacted already
		s.Answer = b.askers[i].Redact(answer)
	}
	return b.JudgeSubject(ctx, s, i)
}

// JudgeSubject asks judge i to evaluate any answer, for example one that was recorded elsewhere.
func (b *Batch) JudgeSubject(ctx context.Context, s *judge.Subject, i int) judge.Evaluation {
	return b.askers[i].Ask(ctx, &b.judges[i], s)
}

// Close closes the connections and removes the journal.
func (b *Batch) Close(ctx context.Context) error {
	b.run.abandon(nil)
	return b.run.close(context.WithoutCancel(ctx))
}
