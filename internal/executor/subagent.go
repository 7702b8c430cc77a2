package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// subAgent makes calls of another Agent: each is a Turn, a child of the one that calls. A call that is made again finds the
// Turn that it has made. It is safe for concurrent use.
type subAgent struct {
	executor *Executor
	// parent is the Turn that calls, and caller its Agent.
	parent *v1alpha1.Turn
	caller *v1alpha1.Agent
	// agent is the name of the Agent that is called.
	agent string
}

// Call makes the child, or finds it, and returns its answer, or a *tool.Pending while it has none. While the API server or the
// journal is away it is tried again until ctx ends. Where nobody knows by then whether the child was made, or what it has
// answered, the call is pending, too: the controller wakes the parent, and the next attempt looks.
func (s *subAgent) Call(ctx context.Context, c tool.Call) (tool.Result, error) {
	wanted, err := translate.ChildOf(s.parent, s.caller, s.agent, c)
	if err != nil {
		return tool.Result{Descendants: new(0)}, err
	}
	// A request of before, or of an earlier run, may have created the child although nobody has seen it.
	unseen := c.Attempt > 1
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 5*time.Second
	result, err := backoff.Retry(ctx, func() (tool.Result, error) {
		result, err := s.attempt(ctx, wanted, c, unseen)
		if err != nil && !isAway(err) {
			err = backoff.Permanent(err)
		}
		unseen = true
		return result, err
	}, backoff.WithBackOff(retry), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, wait time.Duration) {
		s.executor.Log.Error(err, "Failed to call a sub-agent, trying again", "turn", client.ObjectKeyFromObject(s.parent), "in", wait)
	}))
	if err != nil && isAway(err) {
		return result, &tool.Pending{Turn: wanted.Name}
	}
	return result, err
}

// attempt makes the child or finds it; unseen says that a request of before may have created it. Errors that are no *tool.Error
// and no *tool.Pending are those of the API server and of the journal.
func (s *subAgent) attempt(ctx context.Context, wanted *v1alpha1.Turn, c tool.Call, unseen bool) (tool.Result, error) {
	if c.Attempt > 1 {
		result, err := s.find(ctx, wanted)
		if !apierrors.IsNotFound(err) {
			return result, err
		}
		if c.TurnUID != "" || slices.Contains(s.parent.Status.AwaitedTurns, wanted.Name) {
			return s.gone(ctx, wanted, c.TurnUID)
		}
	}
	child := wanted.DeepCopy()
	err := s.executor.Client.Create(ctx, child)
	switch {
	case err == nil:
		return tool.Result{}, &tool.Pending{Turn: wanted.Name, UID: string(child.UID)}
	case !apierrors.IsAlreadyExists(err):
		return s.refused(ctx, wanted, err, unseen)
	}
	result, err := s.find(ctx, wanted)
	if apierrors.IsNotFound(err) {
		return s.gone(ctx, wanted, "") // in this moment
	}
	return result, err
}

// gone is the end of a call whose Turn was deleted before its answer was taken. What it took counts, as far as its journal can be
// read.
func (s *subAgent) gone(ctx context.Context, wanted *v1alpha1.Turn, uid string) (tool.Result, error) {
	spent, err := family{s.executor.Reader, s.executor.Engine}.left(ctx, uid)
	if err != nil {
		return tool.Result{}, err
	}
	return tool.Result{Spent: spent}, goneError(wanted.Name)
}

// goneError is the end of a call whose Turn was deleted before its answer was taken, and is not made anew: what it did would
// be done twice.
func goneError(name string) error {
	return &tool.Error{
		Class:   tool.OutcomeUnknown,
		Message: fmt.Sprintf("the Turn %q of the sub-agent is gone, and its answer with it: it may have done what it was asked to", name),
	}
}

// find returns what became of the child that there is.
func (s *subAgent) find(ctx context.Context, wanted *v1alpha1.Turn) (tool.Result, error) {
	child := &v1alpha1.Turn{}
	if err := s.executor.Reader.Get(ctx, client.ObjectKeyFromObject(wanted), child); err != nil {
		return tool.Result{}, err
	}
	switch {
	case !translate.SameChild(child, wanted, s.parent):
		return tool.Result{Descendants: new(0)}, &tool.Error{Class: tool.Failed, Message: fmt.Sprintf("there is another Turn of the name %q, which is not this call's", wanted.Name)}
	case !child.IsFinished():
		return tool.Result{}, &tool.Pending{Turn: wanted.Name, UID: string(child.UID)}
	}
	return s.outcome(ctx, child)
}

// outcome is what became of a child. What it took counts also where its answer cannot be read.
func (s *subAgent) outcome(ctx context.Context, child *v1alpha1.Turn) (tool.Result, error) {
	answer, err := s.answer(ctx, child)
	if err != nil {
		return tool.Result{Spent: translate.Spent(child), Descendants: translate.Descendants(child)}, err
	}
	return translate.ChildResult(child, answer)
}

// child returns what the Turn of a call of a sub-agent took, for a run that ends its Turn without the answer, or a *tool.Pending.
func (r *run) child(ctx context.Context, call loop.Intent, uid string) (tool.Result, error) {
	e := r.executor
	return family{e.Reader, e.Engine}.took(ctx, turn.Gone{UID: string(r.turn.UID), Namespace: r.turn.Namespace, Name: r.turn.Name}, call, uid)
}

// answer of a child, whole: its status may have the beginning alone.
func (s *subAgent) answer(ctx context.Context, child *v1alpha1.Turn) (string, error) {
	r := child.Status.Result
	switch {
	case r == nil:
		return "", nil
	case !r.Truncated || len(r.Artifacts) == 0:
		return r.Text, nil
	}
	a, err := s.executor.Engine.Journal.Artifact(ctx, string(child.UID), r.Artifacts[0].SHA256)
	if errors.Is(err, journal.ErrNoArtifact) {
		return r.Text, nil // its journal is gone: the beginning is better than nothing
	}
	if err != nil {
		return "", fmt.Errorf("failed to read the answer of turn %q: %w", child.Name, err)
	}
	content, err := a.Content()
	if err != nil {
		return "", &tool.Error{Class: tool.Failed, Message: "the answer of the sub-agent cannot be read: its record is damaged", Err: err}
	}
	return string(content), nil
}

// isAway says whether an error is neither the outcome of a call nor that there is none yet.
func isAway(err error) bool {
	_, failed := errors.AsType[*tool.Error](err)
	_, pending := errors.AsType[*tool.Pending](err)
	return !failed && !pending
}

// refused is the end of a call whose Turn the API server will not take, unless an earlier request has created it after all: an
// API server may refuse a Turn, as for a quota, before it looks whether there is one of the name. Other errors stay as they are.
func (s *subAgent) refused(ctx context.Context, wanted *v1alpha1.Turn, err error, unseen bool) (tool.Result, error) {
	refusal := refusalOf(err)
	if isAway(refusal) {
		return tool.Result{}, refusal
	}
	if !unseen {
		return tool.Result{Descendants: new(0)}, refusal
	}
	result, err := s.find(ctx, wanted)
	if apierrors.IsNotFound(err) {
		return tool.Result{}, refusal // that request may still be under way, so that what was reserved stays so
	}
	return result, err
}

// refusalOf is the failure of a call whose Turn the API server will not take; other errors stay as they are.
func refusalOf(err error) error {
	const message = "the API server does not take the Turn of the sub-agent"
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &tool.Error{Class: tool.InvalidArguments, Message: message, Said: reasonOf(err), Err: err}
	case apierrors.IsRequestEntityTooLargeError(err):
		return &tool.Error{Class: tool.InvalidArguments, Message: message + ": task and context are too long", Err: err}
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return &tool.Error{Class: tool.Unavailable, Message: message, Said: reasonOf(err), Err: err}
	}
	return err
}

// reasonOf is what the API server says.
func reasonOf(err error) string {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return status.ErrStatus.Message
	}
	return err.Error()
}
