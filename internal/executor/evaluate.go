package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

const (
	// maxAge is the age of a task after which it is not begun, and retryAge that after which a judge whose request
	// could not be sent has failed.
	maxAge, retryAge = 24 * time.Hour, time.Hour
	// maxAttempts is the number of attempts of an evaluation that were cut off.
	maxAttempts = 3
	// afterFailure, afterShortage and afterRefusal are the times until a task is tried again: after a failure of the
	// store or the API server, after a lack of memory, and after a refusal by an endpoint or a Budget.
	afterFailure, afterShortage, afterRefusal = 5 * time.Second, 10 * time.Second, 30 * time.Second
	// questionBytes is the memory of the questions of a judge, in bytes, beside the journal.
	questionBytes = 1 << 20
	// replyTokens is the number of tokens that are reserved for the reply of a judge.
	replyTokens = 1024
)

// evaluated is the end of an attempt to evaluate a Turn.
type evaluated struct {
	// result is the result. If it is nil, the task is tried again after a time.
	result *task.Result
	again  time.Duration
	// used is what the requests have used.
	used budget.Amount
	// err is why the task is tried again. It is nil if that is not worth a line in the log.
	err error
}

func skipped(why task.Skip) evaluated { return evaluated{result: &task.Result{Skipped: why}} }

func retried(again time.Duration, err error) evaluated { return evaluated{again: again, err: err} }

// evaluation is the evaluation of one Turn.
type evaluation struct {
	*Evaluations
	executor *Executor
	task     *task.Task
	turn     v1alpha1.Turn
	agent    *v1alpha1.Agent
	judges   []judge.Judge
}

// evaluate asks the judges of the Turn. A panic is a failure of the evaluation.
func (v *evaluation) evaluate(ctx context.Context) (o evaluated) {
	defer func() {
		if recover() != nil { // the value may contain a part of the answer
			v.logPanic()
			if o = skipped(task.Unreadable); len(v.judges) > 0 {
				o = v.failed(panicked)
			}
		}
	}()
	e, k := v.executor, v.task
	if e.Now().Sub(k.Created) > maxAge {
		return skipped(task.Expired)
	}
	if o := v.read(ctx); o != nil {
		return *o
	}
	if k.Attempts >= maxAttempts {
		return v.failed(fmt.Sprintf("the evaluation was cut off %d times, because its executor was lost", k.Attempts))
	}
	held, err := v.reserveMemory(ctx)
	if err != nil {
		return retried(afterShortage, nil)
	}
	defer held.Release()
	s, err := turn.Subject(ctx, v.Journal, k.UID)
	if err != nil {
		return v.unread(err)
	}
	redaction, err := translate.Redaction(ctx, v.agent, fairgate.Fairly(ctx, v.credentials()))
	if err != nil { // the Agent was changed after the Turn had ended
		return v.failed(err.Error())
	}
	chain, err := v.chain(ctx)
	if err != nil {
		return v.failed(err.Error())
	}
	start, err := v.start(ctx, s, chain)
	if err == nil {
		err = v.Store.BeginTask(ctx, k.Held(), *start)
	}
	if err != nil {
		return notBegun(err)
	}
	return v.ask(ctx, s, chain, redaction.Redact)
}

// credentials returns the function that removes credentials from a text about the Turn.
func (v *evaluation) credentials() func(text string) string {
	return v.executor.Credentials.RedactFunc(v.turn.CredentialNamespaces()...)
}

// read reads the Turn, its Agent and its judges. It returns nil if the evaluation can go on.
func (v *evaluation) read(ctx context.Context) *evaluated {
	e, k := v.executor, v.task
	end := func(o evaluated) *evaluated { return &o }
	err := e.Reader.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Turn}, &v.turn)
	if apierrors.IsNotFound(err) || err == nil && v.turn.UID != types.UID(k.UID) {
		return end(skipped(task.TurnDeleted))
	}
	if err != nil {
		return end(retried(afterFailure, fmt.Errorf("failed to get the turn: %w", err)))
	}
	if !v.turn.IsFinished() {
		return end(retried(afterFailure, nil)) // its status is not written yet
	}
	v.agent, err = e.Sharing.Agent(ctx, e.objects(k.Namespace), v.turn.Spec.AgentRef, k.Namespace)
	if err == nil && v.agent.Namespace != k.Namespace {
		v.agent, err = translate.Foreign(v.agent)
	}
	_, refused := errors.AsType[*sharing.RefusedError](err)
	if refused || apierrors.IsNotFound(err) || err == nil && v.agent.Spec.Evaluation == nil {
		return end(skipped(task.NotEnabled))
	}
	if err != nil {
		return end(retried(afterFailure, fmt.Errorf("failed to get the agent: %w", err)))
	}
	if v.judges, err = turn.Judges(ctx, v.Journal, k.UID); err != nil {
		return end(v.unread(err))
	}
	return nil
}

// unread returns the end of an evaluation whose Turn cannot be read from its journal.
func (v *evaluation) unread(err error) evaluated {
	if errors.Is(err, turn.ErrNoJudges) || errors.Is(err, turn.ErrNoAnswer) || errors.Is(err, journal.ErrDamaged) ||
		errors.Is(err, journal.ErrNoArtifact) {
		return skipped(task.Unreadable)
	}
	return retried(afterFailure, err)
}

// reserveMemory reserves the memory for the journal and the questions. It does not wait: Turns go first.
func (v *evaluation) reserveMemory(ctx context.Context) (*bytebudget.Reservation, error) {
	last, err := v.Journal.Last(ctx, v.task.UID)
	if err != nil {
		return nil, err
	}
	bytes, err := v.Journal.PayloadBytes(ctx, v.task.UID, 1, last)
	if err != nil {
		return nil, err
	}
	account := v.executor.Memory.Account(v.task.Namespace, bytebudget.Conversations)
	if account.Contended() {
		return nil, bytebudget.ErrShort
	}
	want := perByte*bytes + questionBytes
	if most := account.MaxReservation(); most > 0 {
		want = min(want, most/2)
	}
	return account.TryReserve(want)
}

// chain returns the models that judges may ask.
func (v *evaluation) chain(ctx context.Context) ([]loop.Candidate, error) {
	models, thinking := translate.JudgeModels(v.agent)
	caller := pace.Caller{Namespace: v.task.Namespace, Agent: v.task.Agent, Low: true}
	var all []loop.Candidate
	for _, m := range models {
		c, err := translate.Candidate(v.executor.link(ctx, &v.turn, v.agent.Namespace, m, caller), thinking)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// models returns the models that a judge asks: the one that its profile names, if the Agent allows it, or the chain.
func (v *evaluation) models(j *judge.Judge, chain []loop.Candidate) []loop.Candidate {
	if i := translate.JudgeModel(v.agent, j.Provider, j.Model); i >= 0 {
		return chain[i : i+1]
	}
	return chain
}

// start returns the limits and the reservations of the evaluation. The requests of all judges are reserved at once,
// each for the first model that can be asked.
func (v *evaluation) start(ctx context.Context, s *judge.Subject, chain []loop.Candidate) (*task.Start, error) {
	e, spec := v.executor, v.agent.Spec.Evaluation
	start := &task.Start{Now: e.Now(), MaxPerHour: v1alpha1.DefaultEvaluationsPerHour}
	if spec.MaxPerHour != nil {
		start.MaxPerHour = int64(*spec.MaxPerHour)
	}
	if spec.MaxTokensPerDay != nil {
		start.MaxTokensPerDay = *spec.MaxTokensPerDay
	}
	var cost amounts
	for i := range v.judges {
		models := v.models(&v.judges[i], chain)
		first := slices.IndexFunc(models, func(c loop.Candidate) bool { return !c.Unusable })
		if first < 0 {
			continue
		}
		c := &models[first]
		question := v.judges[i].Request(s, c.StructuredOutput)
		prompt := loop.EstimateTokens(&question)
		start.Tokens += prompt + replyTokens
		cost.add(prompt+replyTokens, c.Pricing.Expected(prompt, replyTokens))
	}
	rules, err := v.rules(ctx)
	if err != nil {
		return nil, err
	}
	amount := cost.sum()
	for _, rule := range rules {
		period, err := budget.PeriodAt(rule.Unit, rule.Zone, start.Now)
		if err != nil {
			return nil, fmt.Errorf("failed to compute the period of budget %q: %w", rule.Name, err)
		}
		next := budget.Reservation{
			Hold: budget.Hold{
				Key: budget.KeyOf(rule.UID, period), Currency: rule.Currency, Tokens: start.Tokens, Unknown: amount,
			},
			Limits: rule.Limits, Unpriced: amount.Currency != rule.Currency,
		}
		if !next.Unpriced {
			next.Cost = amount.Cost
		}
		start.Reserve = append(start.Reserve, next)
	}
	return start, nil
}

// rules returns the Budgets that apply to the Turn.
func (v *evaluation) rules(ctx context.Context) ([]budget.Rule, error) {
	find := v.executor.budgetsOf(ctx, &v.turn, v.agent)
	if find == nil {
		return nil, nil
	}
	rules, err := find()
	if err != nil {
		return nil, fmt.Errorf("failed to find the budgets of the turn: %w", err)
	}
	return rules[:min(len(rules), budget.MaxOfTurn)], nil
}

// amounts adds up what requests use. The cost is unknown if that of one request is.
type amounts struct {
	total   budget.Amount
	unknown bool
}

func (a *amounts) add(tokens int64, cost *model.Cost) {
	a.total.Tokens += tokens
	switch {
	case tokens == 0:
	case cost == nil, a.total.Currency != "" && a.total.Currency != cost.Currency:
		a.unknown = true
	default:
		a.total.Cost, a.total.Currency = a.total.Cost.Add(cost.Amount), cost.Currency
	}
}

func (a *amounts) sum() budget.Amount {
	if a.unknown {
		return budget.Amount{Tokens: a.total.Tokens}
	}
	return a.total
}

// notBegun returns the end of an evaluation that may not begin.
func notBegun(err error) evaluated {
	if refusal, ok := errors.AsType[*task.Refusal](err); ok {
		return skipped(refusal.Skip)
	}
	if refusal, ok := errors.AsType[*budget.Refusal](err); ok {
		if slices.ContainsFunc(refusal.Refused, func(r budget.Refused) bool { return !r.Contended }) {
			return skipped(task.BudgetExceeded)
		}
		return retried(afterRefusal, nil) // requests of Turns have reserved the rest
	}
	return retried(afterFailure, err)
}

// ask asks the judges one after another. redact returns a text of a model without what the Agent redacts.
func (v *evaluation) ask(ctx context.Context, s *judge.Subject, chain []loop.Candidate, redact func(string) string) evaluated {
	e := v.executor
	var used amounts
	result := &task.Result{}
	refused := true
	for i := range v.judges {
		j := &v.judges[i]
		asker := &judge.Asker{Chain: v.models(j, chain), Redact: redact}
		said := v.askOne(ctx, asker, j, s)
		used.add(said.Usage.InputTokens+said.Usage.OutputTokens, said.Cost)
		if ctx.Err() != nil {
			return evaluated{used: used.sum(), err: context.Cause(ctx)}
		}
		refused = refused && said.MayRetry
		result.Evaluations = append(result.Evaluations, translate.Evaluation(&said, e.Now()))
	}
	if refused && e.Now().Sub(v.task.Created) < retryAge {
		return retried(afterRefusal, nil)
	}
	return evaluated{result: result, used: used.sum()}
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

// logPanic logs the stack of a panic. It must be called by the function that recovers.
func (v *evaluation) logPanic() {
	v.Log.Info("Failed to evaluate a turn because of a panic", "namespace", v.task.Namespace, "turn", v.task.Turn,
		"stack", string(debug.Stack()))
}

// failed returns the end of an evaluation whose judges have all failed for one reason.
func (v *evaluation) failed(reason string) evaluated {
	result := &task.Result{}
	for i := range v.judges {
		said := v.judges[i].New()
		said.Reason = v.credentials()(reason)
		result.Evaluations = append(result.Evaluations, translate.Evaluation(&said, v.executor.Now()))
	}
	return evaluated{result: result}
}

// publish writes the result into the status of the Turn, and then ends the task.
func (v *evaluation) publish(ctx context.Context) error {
	k := v.task
	if len(k.Result.Evaluations) > 0 {
		if err := v.writeStatus(ctx, k.Result.Evaluations); err != nil {
			return err
		}
	}
	if err := v.Store.PublishTask(ctx, k.Held(), v.executor.Now()); err != nil {
		return err
	}
	if why := k.Result.Skipped; why != "" {
		metrics.EvaluationSkipped(k.Namespace, string(why))
	}
	for i := range k.Result.Evaluations {
		metrics.Evaluated(k.Namespace, k.Agent, &k.Result.Evaluations[i].Evaluation)
	}
	return nil
}

// writeStatus writes evaluations into the status of the Turn, if it still exists. If the API server refuses them, it
// writes them without the words of the judges.
func (v *evaluation) writeStatus(ctx context.Context, all []task.Evaluation) error {
	e, k := v.executor, v.task
	if err := e.Writes.Enter(ctx, k.Namespace); err != nil {
		return fmt.Errorf("failed to wait until turn %q could be written: %w", k.Turn, err)
	}
	defer e.Writes.Leave(k.Namespace)
	for range maxConflicts {
		var t v1alpha1.Turn
		err := e.Reader.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Turn}, &t)
		if apierrors.IsNotFound(err) || err == nil && t.UID != types.UID(k.UID) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("failed to read turn %q: %w", k.Turn, err)
		}
		if !turnstatus.Evaluate(&t, all, e.Now()) {
			return nil
		}
		err = e.Client.Status().Update(ctx, &t)
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case isRefused(err):
			e.Log.Error(err, "The API server refused the evaluations of a turn, writing them without reasons",
				"turn", client.ObjectKeyFromObject(&t))
			all = withoutReasons(all)
		case !apierrors.IsConflict(err):
			return fmt.Errorf("failed to write the status of turn %q: %w", k.Turn, err)
		}
	}
	return fmt.Errorf("failed to write the evaluations of turn %q: the API server refused them %d times", k.Turn, maxConflicts)
}

func withoutReasons(all []task.Evaluation) []task.Evaluation {
	out := slices.Clone(all)
	for i := range out {
		out[i].Reason = ""
	}
	return out
}
