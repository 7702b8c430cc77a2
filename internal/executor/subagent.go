package executor

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// subAgent calls another Agent. Each call creates a Turn, a child of the calling Turn. A repeated call finds the child
// that it created earlier. subAgent is safe for concurrent use.
type subAgent struct {
	executor *Executor
	// parent is the calling Turn, and caller is its Agent.
	parent *v1alpha1.Turn
	caller *v1alpha1.Agent
	// agent is the name of the called Agent; NAMESPACE/NAME if it is in another namespace.
	agent string
	// mayCreate returns an error if the child must not be created.
	mayCreate func(context.Context) error
}

// Call creates the child, or finds it if it exists. It returns the child's answer, or a *tool.Pending if there is no
// answer yet. While the API server or the journal is unavailable, Call tries again until ctx ends. If Call still does
// not know whether the child was created, or how it ended, it also returns a *tool.Pending: the controller wakes the
// parent, and the next run checks again. This *tool.Pending says whether the next run may create the child.
func (s *subAgent) Call(ctx context.Context, c tool.Call) (tool.Result, error) {
	wanted, err := translate.ChildOf(s.parent, s.caller, s.agent, c)
	if err != nil {
		return tool.Result{Descendants: new(0)}, err
	}
	s.executor.Traces.Of(s.parent).AnnotateChild(wanted, c.Step, c.CallID)
	// An earlier request, or an earlier run, may have created the child without seeing the response.
	made := creation{unseen: c.Attempt > 1, mayExist: c.Attempt > 1 && !c.NotCreated}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 5*time.Second
	result, err := backoff.Retry(ctx, func() (tool.Result, error) {
		result, err := s.attempt(ctx, wanted, c, &made)
		if err != nil && !isUnavailable(err) {
			err = backoff.Permanent(err)
		}
		// A forbidden request has created nothing, but it may have been one to read a child that exists.
		made.unseen = made.unseen || made.mayExist || !apierrors.IsForbidden(err)
		return result, err
	}, backoff.WithBackOff(retry), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, wait time.Duration) {
		s.executor.logOf(s.parent).Error(err, "Failed to call a sub-agent, trying again", "in", wait)
	}))
	if err != nil && isUnavailable(err) {
		return result, &tool.Pending{Turn: wanted.Name, NotCreated: !made.mayExist}
	}
	return result, err
}

// creation is the knowledge about the creation of a child.
type creation struct {
	// unseen is true if an earlier request may have created the child without a response.
	unseen bool
	// mayExist is true unless it is certain that the child has not been created. After a wait, a child that may exist
	// must not be created again: if it was created, and deleted while its parent waited, its work would be done twice.
	mayExist bool
	// forbiddenSince is the time of the first request that the API server has forbidden for a reason that may pass, or
	// zero.
	forbiddenSince time.Time
}

// mayPass reports whether an API server may soon allow what it forbids now: an API server that starts forbids
// everything until it has loaded its roles and quotas. A denial by admission, a quota that is used up and a namespace
// that is being deleted do not pass so soon. If none of them is recognized, the call only ends later.
func (c *creation) mayPass(err error, now time.Time) bool {
	if !apierrors.IsForbidden(err) || writeerror.IsDenied(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) ||
		strings.Contains(err.Error(), "exceeded quota") {
		return false
	}
	if c.forbiddenSince.IsZero() {
		c.forbiddenSince = now
	}
	return now.Sub(c.forbiddenSince) < denialPatience
}

// attempt creates the child or finds it. made is the knowledge from earlier attempts, to which attempt adds. An error
// that is neither a *tool.Error nor a *tool.Pending comes from the API server or the journal, or means that there is no
// memory for the answer.
func (s *subAgent) attempt(
	ctx context.Context, wanted *v1alpha1.Turn, c tool.Call, made *creation,
) (tool.Result, error) {
	if c.Attempt > 1 {
		result, err := s.find(ctx, wanted, c.TurnUID)
		if !apierrors.IsNotFound(err) {
			return result, err
		}
		if c.TurnUID != "" {
			return s.endDeleted(ctx, wanted, c.TurnUID)
		}
		// The status lists the child in each wait for it, even if its creation failed. An older version does not record
		// whether the creation is certain to have failed.
		if !c.NotCreated && slices.Contains(s.parent.Status.AwaitedTurns, wanted.Name) {
			return tool.Result{}, missingError(wanted.Name)
		}
	}
	if err := s.mayCreate(ctx); err != nil {
		return s.endRefused(ctx, wanted, err, made.unseen)
	}
	child := wanted.DeepCopy()
	var sent atomic.Bool
	err := s.executor.Client.Create(noteSending(ctx, &sent), child)
	switch {
	case err == nil:
		return tool.Result{}, &tool.Pending{Turn: wanted.Name, UID: string(child.UID)}
	case !apierrors.IsAlreadyExists(err):
		made.mayExist = made.mayExist || sent.Load() && !isNotCreated(err)
		if made.mayPass(err, s.executor.Now()) {
			return tool.Result{}, err
		}
		return s.endRefused(ctx, wanted, refusalOf(err), made.unseen)
	}
	made.mayExist = true
	result, err := s.find(ctx, wanted, "")
	if apierrors.IsNotFound(err) {
		return s.endDeleted(ctx, wanted, "") // deleted between the two requests
	}
	return result, err
}

// endDeleted returns the result of a call whose child was deleted before its answer was read. The result contains the
// usage of the child if its journal can be read. If only a newer version can read the journal, the usage is unknown:
// the caller runs, so it cannot wait until this process has that version.
func (s *subAgent) endDeleted(ctx context.Context, wanted *v1alpha1.Turn, uid string) (tool.Result, error) {
	spent, err := s.usageOfDeleted(ctx, uid)
	if err != nil && !errors.Is(err, journal.ErrNewer) {
		return tool.Result{}, err
	}
	return tool.Result{Spent: spent}, goneError(wanted.Name)
}

// usageOfDeleted returns the usage of a deleted child. If there is no memory to read the journal of the child, it reads
// the journal within the gate Unreserved: the caller holds the memory of its own conversation, so it must not wait for
// more memory, for which others might wait as well.
func (s *subAgent) usageOfDeleted(ctx context.Context, uid string) (*tool.Spent, error) {
	e, namespace := s.executor, s.parent.Namespace
	reserve := func(ctx context.Context, namespace, uid string) (release func(), err error) {
		return reserveJournal(ctx, e.Engine.Journal, e.Memory, namespace, uid)
	}
	spent, err := family{e.Reader, e.Engine, reserve}.usageOfDeleted(ctx, namespace, uid)
	if !errors.Is(err, bytebudget.ErrShort) {
		return spent, err
	}
	if err := e.Unreserved.Enter(ctx, namespace); err != nil {
		return nil, err
	}
	defer e.Unreserved.Leave(namespace)
	return family{e.Reader, e.Engine, withoutReservation}.usageOfDeleted(ctx, namespace, uid)
}

// goneError returns the error of a call whose child was deleted before its answer was read. Capstan does not create the
// child again, because its work would be done twice.
func goneError(name string) error {
	return &tool.Error{
		Class: tool.OutcomeUnknown,
		Message: fmt.Sprintf("the Turn %q of the sub-agent was deleted, and its answer is lost. "+
			"The sub-agent may have completed the task", name),
	}
}

// missingError returns the error of a call whose child does not exist, if it is not known whether it was ever created.
// Capstan does not create the child again, because its work could be done twice.
func missingError(name string) error {
	return &tool.Error{
		Class: tool.OutcomeUnknown,
		Message: fmt.Sprintf("the Turn %q of the sub-agent does not exist: either it was never created, because the API "+
			"server did not confirm its creation, or it was deleted, and its answer is lost. "+
			"The sub-agent may have completed the task", name),
	}
}

// noteSending returns a context whose requests set sent when they begin to send. The client may send a request several
// times, for example after 503 with Retry-After, and returns only the last error.
func noteSending(ctx context.Context, sent *atomic.Bool) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
}

// isNotCreated reports whether an error of a request to create an object means that the API server has certainly not
// created the object: it refused the request before it reached the storage. A time-out or a lost connection is no such
// error, nor is any other failure within the API server.
func isNotCreated(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || writeerror.IsDenied(err) ||
		writeerror.IsFailedWebhook(err) // if this is not recognized, the call has an unknown outcome, which is safe
}

// find returns the result of the existing child. uid is the UID of the child, or empty if it is unknown. If the child
// was deleted, or another Turn has its name by now, the error is one for which apierrors.IsNotFound is true.
//
// A child with a known UID is the one that the call has created, even if admission has changed its spec, for example
// with a limit for all Turns. Without the UID, only the spec can show that: a user may have created a Turn with the
// name of the child and with the parent as its owner before the call did.
func (s *subAgent) find(ctx context.Context, wanted *v1alpha1.Turn, uid string) (tool.Result, error) {
	child := &v1alpha1.Turn{}
	if err := s.executor.Reader.Get(ctx, client.ObjectKeyFromObject(wanted), child); err != nil {
		return tool.Result{}, err
	}
	if uid != "" && string(child.UID) != uid {
		return tool.Result{}, apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("turns").GroupResource(), wanted.Name)
	}
	isOwn := translate.SameChild(child, wanted, s.parent)
	if uid != "" {
		isOwn = metav1.IsControlledBy(child, s.parent)
	}
	switch {
	case !isOwn:
		return tool.Result{Descendants: new(0)}, &tool.Error{Class: tool.Failed, Message: nameTaken(child, wanted, s.parent)}
	case !child.IsFinished():
		return tool.Result{}, &tool.Pending{Turn: wanted.Name, UID: string(child.UID)}
	}
	return s.outcome(ctx, child)
}

// nameTaken returns the message of a call whose child cannot be created, because another Turn has its name. After the
// loss of its journal, a Turn that starts over may repeat the step and the call ID of a lost call, and so the name.
func nameTaken(taken, wanted, parent *v1alpha1.Turn) string {
	message := fmt.Sprintf("another Turn already has the name %q", wanted.Name)
	if metav1.IsControlledBy(taken, parent) && taken.Spec.Message != wanted.Spec.Message {
		message += ", with another task: admission has changed its message, or an earlier run of the calling Turn, " +
			"whose journal was lost, has created it"
	}
	return message
}

// outcome returns the result of a child. The child's usage counts even if its answer cannot be read.
func (s *subAgent) outcome(ctx context.Context, child *v1alpha1.Turn) (tool.Result, error) {
	answer, err := s.answer(ctx, child)
	if err != nil {
		return tool.Result{Spent: translate.SubAgentUsage(child), Descendants: translate.Descendants(child)}, err
	}
	return translate.ChildResult(child, answer)
}

// child returns the usage of a sub-agent's Turn for a run that ends without the answer of that Turn. It returns a
// *tool.Pending while that Turn has not ended, and a *memoryShortageError if there is no memory to read the journal of
// that Turn. The usage is unknown if only a newer version can read that journal, as in endDeleted.
func (r *run) child(ctx context.Context, call loop.Intent, uid string) (tool.Result, error) {
	e := r.executor
	result, err := family{e.Reader, e.Engine, r.reserveChild}.usage(ctx,
		turn.DeletedTurn{UID: string(r.turn.UID), Namespace: r.turn.Namespace, Name: r.turn.Name}, call, uid)
	if errors.Is(err, journal.ErrNewer) {
		return tool.Result{}, nil
	}
	return result, err
}

// answer returns the whole answer of a child. The child's status may have only the beginning of the answer.
func (s *subAgent) answer(ctx context.Context, child *v1alpha1.Turn) (string, error) {
	r := child.Status.Result
	switch {
	case r == nil:
		return "", nil
	case !r.Truncated || len(r.Artifacts) == 0:
		return r.Text, nil
	}
	release, err := s.executor.reserveResult(ctx, child.Namespace, r.Artifacts[0].Bytes)
	if err != nil {
		return "", fmt.Errorf("failed to get the memory to read the answer of turn %q: %w", child.Name, err)
	}
	defer release()
	a, err := s.executor.Engine.Journal.Artifact(ctx, string(child.UID), r.Artifacts[0].SHA256)
	if errors.Is(err, journal.ErrNoArtifact) {
		return r.Text, nil // the child's journal is gone: return the beginning
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

// isUnavailable reports whether an error comes from an unavailable API server or journal, or from a lack of memory.
// Such an error does not end the call, and does not mean that the call is pending.
func isUnavailable(err error) bool {
	_, failed := errors.AsType[*tool.Error](err)
	_, pending := errors.AsType[*tool.Pending](err)
	return !failed && !pending
}

// endRefused ends a call whose Turn must not be created, or is refused by the API server: refusal is the failure of the
// call. An earlier request may have created the Turn after all, because an API server may refuse a Turn, for example
// for a quota, before it checks whether the name exists. Errors that do not end the call are returned unchanged.
func (s *subAgent) endRefused(ctx context.Context, wanted *v1alpha1.Turn, refusal error, unseen bool) (tool.Result, error) {
	if isUnavailable(refusal) {
		return tool.Result{}, refusal
	}
	if !unseen {
		return tool.Result{Descendants: new(0)}, refusal
	}
	result, err := s.find(ctx, wanted, "")
	if apierrors.IsNotFound(err) {
		return tool.Result{}, refusal // the earlier request may still create the Turn, so keep the reservation
	}
	return result, err
}

// refusalOf returns the failure of a call whose Turn the API server refuses. Other errors are returned unchanged.
func refusalOf(err error) error {
	const message = "the API server refused the Turn of the sub-agent"
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &tool.Error{Class: tool.InvalidArguments, Message: message, RemoteMessage: reasonOf(err), Err: err}
	case writeerror.IsTooLarge(err):
		return &tool.Error{Class: tool.InvalidArguments, Message: message + ": task and context are too long", Err: err}
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), writeerror.IsRejected(err):
		// Admission may deny with any code, for example 401, which otherwise means that the token has expired.
		return &tool.Error{Class: tool.Unavailable, Message: message, RemoteMessage: reasonOf(err), Err: err}
	}
	return err
}

// reasonOf returns the message of the API server.
func reasonOf(err error) string {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return status.ErrStatus.Message
	}
	return err.Error()
}
