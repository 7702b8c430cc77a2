package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/apiclock"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/tracing"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// input gathers everything that a run of the Turn needs. It fails if the Agent was deleted between the binding and the
// first attempt of the run, unless the Turn only has to end.
func (r *run) input(ctx context.Context) (*turn.Input, error) {
	e, t := r.executor, r.turn
	found, err := r.readAgent(ctx)
	if err != nil {
		return nil, err
	}
	r.agent = found
	agent, redaction, err := r.redaction(ctx, translate.WithinCeiling(r.agent, t, e.Ceiling))
	if err != nil {
		return nil, err
	}
	chain := make([]translate.Link, 0, len(agent.Spec.Models))
	caller := pace.Caller{Namespace: t.Namespace, Agent: t.AgentName(), Waits: r.progress.setProviderWait}
	for _, m := range agent.Spec.Models {
		l, err := e.link(ctx, t, agent.Namespace, m, caller)
		if err != nil && !r.onlyEnds(agent.Spec.Limits) {
			return nil, err
		}
		chain = append(chain, l)
	}
	now := e.Now()
	start := now
	if t.Status.StartTime != nil {
		start = t.Status.StartTime.Time
	}
	session, err := e.session(ctx, t)
	if err != nil {
		return nil, err
	}
	var judges []judge.Judge
	in, err := translate.Input(t, agent, chain, session, func(ctx context.Context) (prepare.Input, error) {
		in, profile, err := e.preparation(ctx, t, agent, session, redaction, start)
		if err == nil && e.Tasks != nil && translate.IsSampled(agent, t) {
			judges, err = translate.Judges(profile)
		}
		return in, err
	})
	if err != nil {
		return nil, err
	}
	in.Executor, in.Epoch, in.About = e.Name, r.epoch, translate.About(t, e.RecordLabels)
	e.attach(&in, t, session, redaction)
	if in.Session != nil {
		in.Session.OnLoss = e.onLoss(t)
	}
	if ahead := start.Sub(now); ahead > apiclock.Tolerance {
		r.log().Info("Warning: the start time of a turn is in the future, so a clock is wrong; the turn gets its full time limit",
			"aheadSeconds", ahead.Seconds())
	}
	in.Timeout = turnstatus.TimeLeft(t, in.Limit, now)
	if t.Status.Executor.Overdue && (in.Timeout > 0 || found.Name != "") {
		in.Timeout, in.TimeOver = 0, fmt.Sprintf(
			"the turn did not continue within %s (limits.startingDeadlineSeconds), or within its time limit while its Agent was missing",
			v1alpha1.StartingDeadline(t.Spec.Limits, agent.Spec.Limits))
	} else if in.Timeout <= 0 && r.failure != nil {
		in.TimeOver = fmt.Sprintf("the turn reached its time limit of %s; before, its run could not continue: %s",
			in.Limit, redaction.Redact(r.failure.Error()))
	}
	in.IsCounted = turnstatus.IsCounted(t)
	in.Entries, in.BeforeEffect, in.Hold = &r.entries, r.beforeEffect, r.hold
	in.ReserveCall, in.ReserveRead = r.reserveCall, r.reserveRead
	in.Keep = r.keepReply
	in.Opened = func(ctx context.Context, entries int64, ended bool) error {
		r.memory.read = true
		return r.checkJournal(ctx, finding{entries, ended}, &in, agent)
	}
	in.Cancel, in.Interrupt, in.Redact, in.Redactions = r.cancelled, r.interrupt, redaction.Redact, redaction.Take
	in.Toolbox, in.Decide, in.Progress, in.Child = r.toolbox(agent), r.decide, r.progress.note, r.child
	if in.Selection.Pinned, err = r.pinned(ctx, agent); err != nil {
		return nil, err
	}
	if e.Tasks != nil {
		in.Judges = func() []judge.Judge { return judges }
		in.MayEvaluate = func() bool { return e.Tasks.admit(t.Namespace, task.Evaluate) }
		if translate.Learns(agent) {
			in.MayLearn = func() bool { return e.Tasks.admit(t.Namespace, task.Learn) }
		}
	}
	in.Recall = e.recall(t, agent, session, redaction.Redact)
	if in.Embeddings, err = e.embeddings(ctx, t, agent, caller); err != nil && !r.onlyEnds(agent.Spec.Limits) {
		return nil, err
	}
	if in.Embeddings != nil {
		in.Embeddings.Vectors = e.vectors.Of(t.Namespace)
	}
	in.NotEmbedded = func(failure *model.Error) {
		metrics.NotEmbedded(t.Namespace)
		r.log().Info("Failed to request vectors; words alone decide which memories and tools fit", "cause", failure.Kind,
			"message", failure.Message)
	}
	in.NotRecalled = func(err error) {
		metrics.NotRecalled(t.Namespace)
		r.log().Error(err, "Failed to recall memories; the turn continues without them")
	}
	if e.Tools != nil {
		in.Tools = e.Tools(ctx, agent)
	}
	in.HoldAnswer, in.Warned = r.suspended.Load, r.warnContext
	in.Budgets = e.budgetsOf(ctx, t, agent)
	in.HasEnded = func(ctx context.Context, name, uid string) (bool, error) {
		return e.hasEnded(ctx, client.ObjectKey{Namespace: t.Namespace, Name: name}, uid)
	}
	o := observerOf(e.Traces, t)
	in.Observer, in.TraceID = o, o.TraceID()
	return &in, nil
}

// hasEnded reports whether a Turn has ended or does not exist any more. It asks the API server, because the cache may
// not have a new Turn yet.
func (e *Executor) hasEnded(ctx context.Context, key client.ObjectKey, uid string) (bool, error) {
	var t v1alpha1.Turn
	switch err := e.Reader.Get(ctx, key, &t); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("failed to get turn %q: %w", key.Name, err)
	}
	return string(t.UID) != uid || t.IsFinished(), nil
}

// observer records the parts of a Turn in its trace, and counts its requests.
type observer struct {
	*tracing.Turn
	requests requestCounter
}

// observerOf returns the observer of a Turn.
func observerOf(traces *tracing.Provider, t *v1alpha1.Turn) observer {
	return observer{traces.Of(t), requestCounter{t.Namespace, t.AgentName()}}
}

// Observe records a part of the Turn.
func (o observer) Observe(s *turn.Span) {
	o.requests.Observe(s)
	o.Turn.Observe(s)
}

// requestCounter counts the requests of a Turn in the metrics. namespace is that of the Turn.
type requestCounter struct{ namespace, agent string }

// CountRequests returns an observer that only counts the requests of a Turn. It is for a Turn whose object is gone: the
// trace of such a Turn is not known.
func CountRequests(namespace, agent string) turn.Observer { return requestCounter{namespace, agent} }

// Observe counts a request, and ignores all other parts of the Turn.
func (c requestCounter) Observe(s *turn.Span) { metrics.Requested(c.namespace, c.agent, s) }

// Within returns the context unchanged.
func (requestCounter) Within(ctx context.Context, _ string) context.Context { return ctx }

// budgetsOf returns the function that returns the Budgets that apply to a Turn at present.
func (e *Executor) budgetsOf(ctx context.Context, t *v1alpha1.Turn, agent *v1alpha1.Agent) func() ([]budget.Rule, error) {
	if e.Budgets == nil {
		return nil
	}
	var name string
	known := false
	// requester needs no lock, because the requests of a Turn are made one after another.
	requester := func() (verified string, err error) {
		if !known {
			name, err = e.payingRequester(ctx, t)
			known = err == nil
		}
		return name, err
	}
	return func() ([]budget.Rule, error) { return e.Budgets(ctx, t, agent.Labels, requester) }
}

// onlyEnds reports whether a Turn of an Agent with these limits only has to end, so that its run can do without the
// rest of the Agent: to end, the Turn needs no model, and its journal has its usage.
func (r *run) onlyEnds(limits *v1alpha1.Limits) bool {
	t := r.turn
	return t.IsCancelled() || t.Status.Executor.Overdue ||
		turnstatus.TimeLeft(t, v1alpha1.Timeout(t.Spec.Limits, limits), r.executor.Now()) <= 0
}

// endsWithoutAgent is like onlyEnds, for a Turn without an Agent that it may use. The default time limit does not count
// here: the leader decides when a Turn has waited too long for its Agent, and the Turn is then overdue.
func (r *run) endsWithoutAgent() bool {
	if own := r.turn.Spec.Limits; own == nil || own.TimeoutSeconds == nil {
		return r.turn.IsCancelled() || r.turn.Status.Executor.Overdue
	}
	return r.onlyEnds(translate.WithinCeiling(&v1alpha1.Agent{}, r.turn, r.executor.Ceiling).Spec.Limits)
}

// redaction returns the redaction of the Turn, and the Agent with which the Turn runs. If a rule of the Agent cannot be
// used, because the Agent was changed after the Turn was bound, the Turn waits for the Agent. If such a Turn only has
// to end, it runs with an Agent that has only limits: the texts in its journal were redacted when they were written.
func (r *run) redaction(ctx context.Context, agent *v1alpha1.Agent) (*v1alpha1.Agent, *redact.TurnRedactor, error) {
	credentials := fairgate.Fairly(ctx, r.executor.Credentials.RedactFunc(r.turn.CredentialNamespaces()...))
	redaction, err := translate.Redaction(ctx, agent, credentials)
	if err == nil {
		return agent, redaction, nil
	}
	if !r.onlyEnds(agent.Spec.Limits) {
		missing := agentNotReady(r.turn, err.Error())
		missing.mayBePrepared = !r.first || r.tried
		return nil, nil, missing
	}
	agent = &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Limits: agent.Spec.Limits}}
	redaction, err = translate.Redaction(ctx, agent, credentials)
	return agent, redaction, err
}

// notReadyError means that the Turn cannot run because an object is missing or not ready. The Turn waits for that
// object.
type notReadyError struct {
	// reason and message are the reason and the message of the wait.
	reason, message string
	// mayBePrepared is true if the journal may have the prompt. Otherwise the prompt cannot be made without the object.
	mayBePrepared bool
}

func (e *notReadyError) Error() string { return e.message }

// Is reports whether the target is toolbox.ErrUnusable, which a toolbox expects of an object for which the Turn waits.
func (e *notReadyError) Is(target error) bool { return target == toolbox.ErrUnusable }

// agentNotReady returns the *notReadyError for a Turn whose Agent cannot run Turns because of cause. If the Agent is in
// another namespace, the message leaves out the cause, because the cause may contain names from that namespace.
func agentNotReady(t *v1alpha1.Turn, cause string) *notReadyError {
	if t.IsOfForeignAgent() {
		cause = "ask its owner"
	}
	return &notReadyError{
		reason: v1alpha1.TurnReasonWaitingForAgent, message: fmt.Sprintf("Agent %q is not ready: %s", t.Spec.AgentRef, cause),
	}
}

// preparation returns the input for the messages of a Turn, and the profile of its Agent. It is called only if the
// journal does not have this input yet. It returns a *notReadyError if the profile or a ConfigMap was deleted after the
// Turn was bound. The controller binds a Turn again even if its Agent is not ready, because the journal may have the
// input. So preparation also checks that the Agent is ready.
func (e *Executor) preparation(
	ctx context.Context, t *v1alpha1.Turn, agent *v1alpha1.Agent, session *v1alpha1.Session, redaction *redact.TurnRedactor,
	start time.Time,
) (prepare.Input, *v1alpha1.PromptProfile, error) {
	if session == nil && t.Spec.SessionRef != nil {
		return prepare.Input{}, nil, sessionGone(t.Spec.SessionRef.Name)
	}
	if c := meta.FindStatusCondition(agent.Status.Conditions, v1alpha1.ConditionReady); t.Epoch() > 1 && c != nil &&
		c.Status != metav1.ConditionTrue {
		return prepare.Input{}, nil, agentNotReady(t, c.Message)
	}
	ref := agent.Spec.PromptProfileRef
	profile, err := e.Sharing.Profile(ctx, e.objects(t.Namespace), ref, agent.Namespace)
	if refused, ok := errors.AsType[*sharing.RefusedError](err); ok {
		return prepare.Input{}, nil, agentNotReady(t, refused.Error())
	}
	if apierrors.IsNotFound(err) {
		return prepare.Input{}, nil, agentNotReady(t, fmt.Sprintf("PromptProfile %q does not exist", ref))
	}
	if err != nil {
		return prepare.Input{}, nil, fmt.Errorf("failed to get prompt profile %q: %w", ref, err)
	}
	if err := e.Preparations.Enter(ctx, t.Namespace); err != nil {
		return prepare.Input{}, nil, err
	}
	defer e.Preparations.Leave(t.Namespace)
	in, err := translate.Preparation(ctx, translate.Objects{
		Turn: t, Agent: agent, Profile: profile, ConfigMaps: e.ConfigMaps(t.Namespace),
		AgentConfigMaps: e.ConfigMaps(agent.Namespace), ProfileConfigMaps: e.ConfigMaps(ref.Key(agent.Namespace).Namespace),
		ManagerSkills: e.ManagerSkills, Session: session, Redaction: redaction,
	}, start)
	return in, profile, awaitingConfigMap(err, t)
}

// awaitingConfigMap turns the error about a missing ConfigMap into a wait. If the ConfigMap exists but lacks a key,
// the error is returned unchanged and ends the Turn.
func awaitingConfigMap(err error, t *v1alpha1.Turn) error {
	missing, ok := errors.AsType[*translate.MissingError](err)
	if !ok || missing.Key != "" {
		return err
	}
	if wrong, ok := errors.AsType[*invalid.Error](err); ok && strings.HasPrefix(wrong.Field, "Turn ") {
		return &notReadyError{reason: v1alpha1.TurnReasonPending, message: wrong.Error()}
	}
	return agentNotReady(t, err.Error())
}

// link returns the provider of one model of an Agent, for a caller on behalf of a Turn. If the ModelProvider cannot be
// used, each request to the returned provider fails with the cause. If the ModelProvider could not be read, link also
// returns a *retryError, because the next attempt may find that it can be used.
func (e *Executor) link(
	ctx context.Context, t *v1alpha1.Turn, agentNamespace string, m v1alpha1.ModelReference, caller pace.Caller,
) (translate.Link, error) {
	l := translate.Link{Reference: m}
	object, err := e.Sharing.Provider(ctx, e.objects(t.Namespace), m.ProviderRef, agentNamespace)
	refused, isRefused := errors.AsType[*sharing.RefusedError](err)
	switch {
	case isRefused:
		l.Provider = providers.Unusable(m.ProviderRef.String(), refused)
		return l, nil
	case apierrors.IsNotFound(err):
		l.Provider = providers.Unusable(m.ProviderRef.String(), errors.New("the ModelProvider does not exist"))
		return l, nil
	case err != nil:
		err = fmt.Errorf("failed to get ModelProvider %q: %w", m.ProviderRef, err)
		l.Provider = providers.Unusable(m.ProviderRef.String(), err)
		return l, &retryError{err}
	}
	l.Object = e.providers.Of(versionOf(object), object)
	if l.Provider = e.Provider(l.Object); object.Namespace != t.Namespace || agentNamespace != t.Namespace {
		l.Provider = &sharedProvider{
			Provider: l.Provider, executor: e, turn: t, ref: m.ProviderRef, agentNamespace: agentNamespace,
			namespace: object.Namespace,
		}
	}
	if e.Gates != nil {
		l.Provider = e.Gates.Gated(l.Object, caller, l.Provider)
	}
	return l, nil
}
