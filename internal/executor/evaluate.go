package executor

import (
	"context"
	"errors"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/ask"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// evaluation is the evaluation of one Turn.
type evaluation struct {
	followUp
	judges []judge.Judge
	// found are the evaluations of judges that must not be asked again, from this attempt and from earlier ones.
	found []task.Evaluation
}

// do asks the judges of the Turn. A panic is a failure of the evaluation.
func (v *evaluation) do(ctx context.Context) (o done) {
	defer func() {
		if recover() != nil { // the value may contain a part of the answer
			v.logPanic()
			v.requests.settle(ctx, nil)
			if o = v.skipped(task.Unreadable); len(v.judges) > 0 {
				o = v.failed(panicked)
			}
			o.used = v.used()
		}
	}()
	e, k := v.executor, v.task
	if e.Now().Sub(k.Created) > maxAge {
		return v.skipped(task.Expired)
	}
	if o := v.read(ctx, func(a *v1alpha1.Agent) bool { return a.Spec.Evaluation != nil }); o != nil {
		return *o
	}
	var err error
	if v.judges, err = turn.Judges(ctx, v.Journal, k.UID); err != nil {
		return v.unread(err)
	}
	v.resume()
	judges := v.rotate(v.unasked())
	if len(judges) == 0 { // the last attempt was cut off before it ended the work
		return done{result: v.result()}
	}
	if k.Attempts >= maxAttempts {
		return v.failed("the evaluation " + tooManyAttempts(k.Attempts))
	}
	held, err := v.reserveMemory(ctx)
	if err != nil {
		return retried(afterShortage, nil)
	}
	defer held.Release()
	s, err := turn.Subject(ctx, v.Journal, k.UID, func(bytes int64) (bool, error) {
		err := held.Resize(held.Bytes() + perByte*bytes)
		if errors.Is(err, bytebudget.ErrTooLarge) {
			return false, nil // waiting would not help
		}
		return err == nil, err
	})
	if errors.Is(err, bytebudget.ErrShort) {
		return retried(afterShortage, nil)
	}
	if err != nil {
		return v.unread(err)
	}
	redaction, err := translate.Redaction(ctx, v.agent, fairgate.Fairly(ctx, v.credentials()))
	if err != nil { // the Agent was changed after the Turn had ended
		return v.failed(err.Error())
	}
	models, thinking := translate.JudgeModels(v.agent)
	chain, err := v.chain(ctx, models, thinking)
	if _, again := errors.AsType[*retryError](err); again {
		return retried(afterFailure, err)
	}
	if err != nil {
		return v.failed(err.Error())
	}
	var questions []modelQuestion
	for _, j := range judges {
		questions = append(questions, modelQuestion{
			v.models(j, chain), func(structured bool) model.Request { return j.Request(s, structured) },
		})
	}
	limits := v.agent.Spec.Evaluation
	perHour := ptr.Deref(limits.MaxPerHour, v1alpha1.DefaultEvaluationsPerHour)
	if end := v.begin(ctx, questions, 0, perHour, limits.MaxTokensPerDay); end != nil {
		return *end
	}
	return v.ask(ctx, judges, s, chain, redaction.Redact)
}

// resume takes over the evaluations of earlier attempts, except those of judges that the Turn does not have.
func (v *evaluation) resume() {
	if p := v.task.Partial; p != nil {
		v.found = slices.DeleteFunc(slices.Clone(p.Evaluations), func(e task.Evaluation) bool { return v.indexOf(e.Judge) < 0 })
	}
}

// indexOf returns the index of a judge, or -1 if there is no such judge.
func (v *evaluation) indexOf(name string) int {
	return slices.IndexFunc(v.judges, func(j judge.Judge) bool { return j.Name == name })
}

// unasked returns the judges that have no evaluation.
func (v *evaluation) unasked() (all []*judge.Judge) {
	for i := range v.judges {
		j := &v.judges[i]
		if !slices.ContainsFunc(v.found, func(e task.Evaluation) bool { return e.Judge == j.Name }) {
			all = append(all, j)
		}
	}
	return all
}

// rotate rotates judges so that each attempt begins with a different judge. Otherwise one judge whose endpoint uses up
// the time of each attempt could prevent all judges after it from being asked.
func (v *evaluation) rotate(judges []*judge.Judge) []*judge.Judge {
	if len(judges) == 0 {
		return nil
	}
	first := int(v.task.Claim/2) % len(judges) // a claim and its return each raise Claim by one
	return slices.Concat(judges[first:], judges[:first])
}

// result returns a result with the evaluations in found and with further ones, in the order of the judges.
func (v *evaluation) result(further ...task.Evaluation) *task.Result {
	all := slices.Concat(v.found, further)
	slices.SortStableFunc(all, func(a, b task.Evaluation) int { return v.indexOf(a.Judge) - v.indexOf(b.Judge) })
	return &task.Result{Evaluations: all}
}

// models returns the models that a judge asks: the one that its profile names, if the Agent allows it, or the chain.
func (v *evaluation) models(j *judge.Judge, chain []loop.Candidate) []loop.Candidate {
	if i := translate.JudgeModel(v.agent, j.Provider, j.Model); i >= 0 {
		return chain[i : i+1]
	}
	return chain
}

// ask asks judges one after another. redact applies the redaction of the Agent to a text of a model.
func (v *evaluation) ask(
	ctx context.Context, judges []*judge.Judge, s *judge.Subject, chain []loop.Candidate, redact func(string) string,
) done {
	e := v.executor
	var unpaid []task.Evaluation
	refused := false
	// All judges together have the time of one question, so that the judges of one namespace do not hold a slot for
	// long.
	bounded, cancel := context.WithTimeout(ctx, ask.Timeout)
	defer cancel()
	for _, j := range judges {
		sent := v.requests.sent
		asker := &judge.Asker{Chain: v.models(j, chain), Redact: redact, Account: v.requests}
		said := v.askOne(bounded, asker, j, s)
		if v.requests.err != nil || said.Score == nil && ctx.Err() != nil { // a verdict is kept even if the process stops
			break
		}
		refused = refused || said.MayRetry
		one := translate.Evaluation(&said, e.Now())
		if said.MayRetry || v.requests.sent == sent { // another attempt may ask again
			unpaid = append(unpaid, one)
			continue
		}
		v.found = append(v.found, one)
		v.requests.settle(ctx, v.result())
	}
	if end := v.requests.close(ctx, len(unpaid) > 0, refused); end != nil {
		return *end
	}
	return done{result: v.result(unpaid...), used: v.used()}
}

// askOne asks one judge. A panic is a failure of this judge.
func (v *evaluation) askOne(ctx context.Context, asker *judge.Asker, j *judge.Judge, s *judge.Subject) (said judge.Evaluation) {
	defer func() {
		if recover() != nil { // the value may contain a part of the answer
			said = j.New()
			said.Reason = panicked
			v.logPanic()
		}
	}()
	return asker.Ask(ctx, j, s)
}

// panicked is the reason of an evaluation that panicked.
const panicked = "the evaluation failed because of a bug in Capstan: see the log of its executor"

// failed returns the end of an evaluation in which each judge that has no evaluation yet fails for the same reason.
func (v *evaluation) failed(reason string) done {
	var all []task.Evaluation
	for _, j := range v.unasked() {
		said := j.New()
		said.Reason = v.credentials()(reason)
		all = append(all, translate.Evaluation(&said, v.executor.Now()))
	}
	return done{result: v.result(all...)}
}

// publish writes the result into the status of the Turn, and then ends the task.
func (v *evaluation) publish(ctx context.Context) error {
	k := v.task
	if len(k.Result.Evaluations) > 0 {
		all := k.Result.Evaluations
		err := v.writeStatus(ctx, func(t *v1alpha1.Turn, refused bool) bool {
			if refused {
				all = withoutReasons(all)
			}
			return turnstatus.Evaluate(t, all, v.executor.Now())
		})
		if err != nil {
			return err
		}
	}
	if err := v.Store.PublishTask(ctx, k.Held(), v.executor.Now()); err != nil {
		return err
	}
	for i := range k.Result.Evaluations {
		metrics.Evaluated(k.Namespace, k.Agent, &k.Result.Evaluations[i].Evaluation)
	}
	return nil
}

// withoutReasons returns evaluations without the reasons that the judges gave.
func withoutReasons(all []task.Evaluation) []task.Evaluation {
	out := slices.Clone(all)
	for i := range out {
		out[i].Reason = ""
	}
	return out
}
