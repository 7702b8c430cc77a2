package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/ask"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/verdicts"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

const (
	// observeTimeout limits the time in which the learner stores the observation of one Turn.
	observeTimeout = 5 * time.Second
	// memoryTokens is the estimated number of tokens of the longest memory, at four characters for each token.
	memoryTokens = memories.MaxText / 4
)

// verifiedRequester returns the name of the user who asked for a Turn, or an empty string if the API server has not
// checked the name.
func (e *Executor) verifiedRequester(ctx context.Context, t *v1alpha1.Turn) (string, error) {
	if t.Requester() == "" {
		return "", nil
	}
	unchecked, err := approvals.Unchecked(ctx, e.Requesters, e.Reader, t)
	return requesterUnless(unchecked, t, err)
}

// requesterUnless returns the requester of a Turn, or an empty string if unchecked says why the name may be forged. err
// is the error of the check.
func requesterUnless(unchecked string, t *v1alpha1.Turn, err error) (string, error) {
	switch {
	case err != nil:
		return "", &retryError{fmt.Errorf("failed to find out whether the requester of the turn was checked: %w", err)}
	case unchecked != "":
		return "", nil
	}
	return t.Requester(), nil
}

// payingRequester returns the name of the user in whose Budgets a Turn counts, or an empty string if it is not known:
// the Turn then counts in the Budgets of all requesters. If the Turn names no caller, its own name counts if the API
// server has checked it, also if its depth says that another Turn called it: the name cannot be changed. So people who
// remove the owner reference leave a Budget only if the calling Turn is older than the policy for requesters.
func (e *Executor) payingRequester(ctx context.Context, t *v1alpha1.Turn) (string, error) {
	if _, called := translate.Parent(t); called || t.Requester() == "" || e.Requesters == nil {
		return e.verifiedRequester(ctx, t)
	}
	unchecked, err := e.Requesters(ctx, t.CreationTimestamp.Time)
	return requesterUnless(unchecked, t, err)
}

// recall returns the function that returns the memories for the prompt of a Turn, or nil if the prompt gets no
// memories. redact applies the current redaction of the Agent to a text.
func (e *Executor) recall(t *v1alpha1.Turn, agent *v1alpha1.Agent, session *v1alpha1.Session, redact func(string) string) func(
	ctx context.Context, message string, vector ranking.Vector,
) (turn.Recalled, error) {
	most := translate.MaxMemories(agent)
	if e.Memories == nil || !translate.Learns(agent) || most == 0 {
		return nil
	}
	return func(ctx context.Context, message string, vector ranking.Vector) (r turn.Recalled, err error) {
		var sessionUID, user string
		if session != nil {
			sessionUID = string(session.UID)
		}
		if translate.LearnsFor(agent, memories.User) {
			if user, err = e.verifiedRequester(ctx, t); err != nil {
				return r, err
			}
		}
		owners := translate.MemoryOwners(t, agent, sessionUID, user)
		r.Memories, r.More, err = memories.Recall(ctx, e.Memories, owners, message, vector, e.Now(), most, redact)
		return r, err
	}
}

// embeddings returns the model that turns texts into vectors for an Agent, or nil if it has none. It returns the error
// of link.
func (e *Executor) embeddings(
	ctx context.Context, t *v1alpha1.Turn, agent *v1alpha1.Agent, caller pace.Caller,
) (*turn.Embeddings, error) {
	if agent.Spec.Embeddings == nil {
		return nil, nil //nolint:nilnil // because "none" is an answer, not an error
	}
	l, err := e.link(ctx, t, agent.Namespace, translate.EmbeddingsModel(agent), caller)
	if err != nil {
		return nil, err
	}
	return translate.Embeddings(agent, l)
}

// learning is the extraction of memories from one Turn.
type learning struct {
	followUp
	// found has the results of the questions that must not be asked again. This attempt or an earlier attempt has asked
	// them, and the memories from these questions are in the store.
	found task.Learned
	// failures are messages about failures of anything but the questions.
	failures []string
}

// do asks for memories, with one question for each scope. A panic ends the work.
func (l *learning) do(ctx context.Context) (o done) {
	defer func() {
		if recover() != nil { // the value may contain a part of the conversation
			l.logPanic()
			l.requests.settle(ctx, nil)
			l.addFailure("the extraction of memories failed because of a bug in Capstan: see the log of its executor")
			o = l.learned(&task.Learned{})
		}
		if o.result != nil && o.result.Skipped != "" && len(l.failures) > 0 { // report the earlier failures, too
			why := o.result.Skipped
			o = l.learned(&task.Learned{})
			o.result.Skipped = why
		}
	}()
	e, k := l.executor, l.task
	if p := k.Partial; p != nil && p.Learned != nil {
		l.found = *p.Learned
	}
	if e.Now().Sub(k.Created) > maxAge {
		return l.skipped(task.Expired)
	}
	if o := l.read(ctx, translate.Learns); o != nil {
		return *o
	}
	about, o, ok := l.about(ctx)
	if !ok {
		return o
	}
	l.observe(ctx, about)
	held, err := l.reserveMemory(ctx)
	if err != nil {
		return retried(afterShortage, nil)
	}
	defer held.Release()
	user, err := e.verifiedRequester(ctx, &l.turn)
	if err != nil {
		return retried(afterFailure, err)
	}
	source, err := turn.LearnFrom(ctx, l.Journal, k.UID, user != "" && translate.IsWrittenByRequester(&l.turn))
	if err != nil {
		return l.unread(err)
	}
	redaction, err := translate.Redaction(ctx, l.agent, fairgate.Fairly(ctx, l.credentials()))
	if err != nil { // the Agent was changed after the Turn had ended
		return l.skipped(task.NotEnabled)
	}
	limits := translate.Learning(l.agent)
	scopes := slices.DeleteFunc(slices.Clone(limits.Scopes), func(s memories.Scope) bool {
		return s == memories.Session && about.SessionUID == "" || slices.Contains(l.found.Scopes, s)
	})
	questions := memories.Questions(source, scopes, limits.MaxPerTurn)
	if len(questions) == 0 {
		return l.learned(&task.Learned{})
	}
	if k.Attempts >= maxAttempts {
		l.addFailure("it " + tooManyAttempts(k.Attempts))
		return l.learned(&task.Learned{})
	}
	models, thinking := translate.LearningModels(l.agent)
	chain, err := l.chain(ctx, models, thinking)
	if _, again := errors.AsType[*retryError](err); again {
		return retried(afterFailure, err)
	}
	if err != nil {
		return l.skipped(task.NotEnabled)
	}
	var all []modelQuestion
	for i := range questions {
		all = append(all, modelQuestion{chain, questions[i].Request})
	}
	spec := l.agent.Spec.Memory.Learning
	perHour := ptr.Deref(spec.MaxPerHour, v1alpha1.DefaultLearningPerHour)
	var forVectors int64
	if l.agent.Spec.Embeddings != nil {
		forVectors = memoryTokens * model.MaxEmbedTexts * int64(len(questions)) // each question is about one owner
	}
	if end := l.begin(ctx, all, forVectors, perHour, spec.MaxTokensPerDay); end != nil {
		return *end
	}
	return l.ask(ctx, &ask.Learning{
		Chain: chain, Questions: questions, About: about, MaxPerTurn: limits.MaxPerTurn, MinConfidence: limits.MinConfidence,
		MaxItems: limits.MaxMemories, Redact: redaction.Redact, Account: l.requests,
	})
}

// about returns a memory without a text, with the fields that all memories from the Turn share. If nothing may be
// learned from the Turn now, ok is false, and o is the end of the attempt.
func (l *learning) about(ctx context.Context) (about memories.Memory, o done, ok bool) {
	k := l.task
	about = memories.Memory{
		Namespace: k.Namespace, Agent: k.Agent, Requester: l.turn.Requester(), Turn: k.Turn, TurnUID: k.UID, Learned: k.Created,
		Expires: k.Created.AddDate(0, 0, translate.Learning(l.agent).ExpiryDays),
	}
	if ref := l.turn.Spec.SessionRef; ref != nil {
		uid, err := l.executor.Engine.Reference(ctx, k.UID, l.executor.reserveIn(k.Namespace))
		if err != nil {
			return about, retried(afterFailure, err), false
		}
		if uid == "" {
			return about, l.skipped(task.SessionDeleted), false
		}
		about.Session, about.SessionUID = ref.Name, uid
	}
	return about, done{}, true
}

// observe lets the learner store an observation of the Turn, and waits at most observeTimeout for it. If this fails,
// the work continues.
func (l *learning) observe(ctx context.Context, about memories.Memory) {
	err := l.callLearner(ctx, translate.Observation(&l.turn, about))
	if err != nil {
		metrics.LearningSkipped(l.task.Namespace, "ObservationFailed")
		l.Log.Error(err, "Failed to store the observation of a turn", "namespace", l.task.Namespace, "turn", l.task.Turn,
			"requester", l.task.Requester)
		l.addFailure("the observation of the Turn could not be stored: see the log of the executor")
	}
}

// callLearner calls the learner. A call that does not return within observeTimeout keeps its goroutine. If too many
// such calls have not returned, the learner is not called.
func (l *learning) callLearner(ctx context.Context, observation memories.Observation) error {
	select {
	case l.observing <- struct{}{}:
	default:
		return fmt.Errorf("it is not attempted, because %d earlier attempts have not ended", cap(l.observing))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, observeTimeout, fmt.Errorf("it took longer than %s", observeTimeout))
	defer cancel()
	ended := make(chan error, 1) // buffered, so that the goroutine ends whether or not the task still waits
	go func() {
		var err error
		defer func() {
			if recover() != nil { // the value may contain a part of the conversation
				l.logPanic()
				err = errors.New("it failed because of a bug in Capstan")
			}
			<-l.observing
			ended <- err
		}()
		err = l.Learner.Observe(ctx, observation)
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ask asks the questions, and stores the memories from each reply.
func (l *learning) ask(ctx context.Context, questions *ask.Learning) done {
	unpaid, isOpen, refused, sent := &task.Learned{}, false, false, 0
	var kept task.Learned
	questions.Each(ctx, func(one *task.Learned, o ask.Outcome) bool {
		if l.requests.err != nil || one.Failed > 0 && ctx.Err() != nil { // learned memories are kept even if the process stops
			return false
		}
		refused = refused || o.MayRetry
		isAsked := l.requests.sent > sent
		sent = l.requests.sent
		if o.MayRetry || !isAsked { // another attempt may ask again
			unpaid, isOpen = unpaid.With(one), true
			return true
		}
		l.found = *l.found.With(one)
		l.requests.settle(ctx, &task.Result{Learned: &l.found})
		kept.Memories = append(kept.Memories, one.Memories...)
		l.found.Memories = nil // a later write must not restore a memory that was deleted in the meantime
		return true
	})
	l.embed(ctx, kept.Owners(), questions.Redact)
	if end := l.requests.close(ctx, isOpen, refused); end != nil {
		return *end
	}
	return l.learned(unpaid)
}

// embed stores vectors for the newest memories of owners that have none, at most model.MaxEmbedTexts of each owner, if
// the Agent has a model for vectors: the memories that were just stored, and older ones, such as memories from before
// the Agent had this model. A memory without a vector is found by its words, so a failure of embed does not fail the
// task. redact applies the current redaction of the Agent, which an older memory has not had.
func (l *learning) embed(ctx context.Context, owners []memories.Owner, redact func(string) string) {
	if len(owners) == 0 || l.requests.err != nil || ctx.Err() != nil {
		return
	}
	e, err := l.executor.embeddings(ctx, &l.turn, l.agent, pace.Caller{Namespace: l.task.Namespace, Agent: l.task.Agent, Low: true})
	if e == nil && err == nil {
		return
	}
	var missing []memories.Memory
	if err == nil {
		missing, err = l.Store.UnembeddedMemories(ctx, owners, e.Space, l.executor.Now(), model.MaxEmbedTexts)
		for i := range missing {
			missing[i].Text = redact(missing[i].Text)
		}
	}
	if err == nil {
		var all []memories.Embedded
		var used ask.Outcome
		all, used, err = ask.Embed(ctx, &e.Model, e.Space, e.Dimensions, missing, l.requests)
		l.found.Usage = l.found.Usage.Add(used.Usage)
		l.requests.settle(ctx, nil)
		if len(all) > 0 {
			write, stop := forPaidWork(ctx)
			defer stop()
			err = errors.Join(err, l.Store.EmbedMemories(write, all))
		}
	}
	if err != nil {
		metrics.NotEmbedded(l.task.Namespace)
		l.Log.Error(errors.New(l.credentials()(err.Error())), "Failed to embed memories; they are found by their words",
			"namespace", l.task.Namespace, "turn", l.task.Turn, "requester", l.task.Requester)
	}
}

// addFailure adds a message of Capstan about what failed, and why.
func (l *learning) addFailure(why string) {
	l.failures = append(l.failures, verdicts.Reason(l.credentials()(why)))
}

// learned returns the end of the work, with the results in found, the results of further questions, and the failures.
func (l *learning) learned(further *task.Learned) done {
	all := l.found.With(further)
	all.Failures = append(l.failures, all.Failures...)
	return done{result: &task.Result{Learned: all}, used: l.used()}
}

// publish writes the failures into the status of the Turn, ends the task, and counts the result. The memories are in
// the store already.
func (l *learning) publish(ctx context.Context) error {
	k := l.task
	if r := k.Result.Learned; r != nil && len(r.Failures) > 0 {
		err := l.writeStatus(ctx, func(t *v1alpha1.Turn, refused bool) bool {
			why := r.Failures
			if refused {
				why = []string{"see the log of the executor"}
			}
			return turnstatus.LearningFailed(t, why, l.executor.Now())
		})
		if err != nil {
			return err
		}
	}
	if err := l.Store.PublishTask(ctx, k.Held(), l.executor.Now()); err != nil {
		return err
	}
	if r := k.Result.Learned; r != nil {
		kept := map[string]int{}
		for scope, n := range r.Kept {
			kept[string(scope)] = n
		}
		metrics.Learned(k.Namespace, kept, r.Refused, r.Failed, r.Usage)
	}
	return nil
}
