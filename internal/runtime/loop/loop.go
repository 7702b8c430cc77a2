// Package loop asks the models of a chain until one gives a usable answer, within the limits of the Turn. There are no
// tools yet, so a run is one step: one model reply, bought once and journalled before anything follows from it.
package loop

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// ErrInterrupted is returned when a run stopped at a safe point because it was asked to. The journal holds what there is.
var ErrInterrupted = errors.New("interrupted at a safe point")

// Candidate is one model of a chain.
type Candidate struct {
	// ProviderName and Model name the candidate. Candidates of one pair in a chain share their attempts.
	ProviderName, Model string
	// Parameters of its requests.
	Parameters model.Parameters
	// Retry bounds its requests.
	Retry Retry
	// Provider sends them.
	Provider model.Provider
}

// Retry bounds the requests to one candidate.
type Retry struct {
	// MaxAttempts in all, at least 1.
	MaxAttempts int
	// InitialBackoff before the second attempt, and MaxBackoff between any two.
	InitialBackoff, MaxBackoff time.Duration
}

// Input of a run.
type Input struct {
	// Chain of models, at least one.
	Chain []Candidate
	// Prepare freezes the messages for a candidate of the chain and journals them. It is called once for each candidate
	// that is tried, and may return what an earlier run froze.
	Prepare func(ctx context.Context, c Candidate) (*prepare.Prepared, error)
	// Start is the place in the chain to begin at.
	Start int
	// Interrupt is closed to ask the run to stop at the next safe point; nil never asks.
	Interrupt <-chan struct{}
	// Log is the Turn's journal.
	Log *journal.Log
}

// Request is a request that is about to be sent, as the journal keeps it.
type Request struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	// Attempt counts the requests to this model for this step, over all runs, from 1.
	Attempt int `json:"attempt"`
}

// Attempt is a failed request, as the journal keeps it.
type Attempt struct {
	Provider   string          `json:"provider"`
	Model      string          `json:"model"`
	Kind       model.ErrorKind `json:"kind"`
	Message    string          `json:"message"`
	Usage      model.Usage     `json:"usage"`
	DurationMS int64           `json:"durationMilliseconds"`
	// Unsent is true if nothing reached the endpoint, as where a credential is missing.
	Unsent bool `json:"unsent,omitempty"`
	// Stack is where the adapter panicked, if it did.
	Stack string `json:"stack,omitempty"`
}

// Step is a reply, as the journal keeps it.
type Step struct {
	Step       int         `json:"step"`
	Provider   string      `json:"provider"`
	Model      string      `json:"model"`
	Reply      model.Reply `json:"reply"`
	DurationMS int64       `json:"durationMilliseconds"`
}

// Error is a chain of which no model gave a usable answer.
type Error struct {
	// Kind of the last failure.
	Kind model.ErrorKind
	// Message for people: each candidate's last failure.
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Run asks for one answer and journals it. It returns ErrInterrupted, the cause of a context that ended, an error of the
// journal or of Prepare as it is, or an *Error.
func Run(ctx context.Context, in Input) (*Step, error) {
	var failures []*model.Error
	var names []string
	for i := in.Start; i < len(in.Chain); i++ {
		c := in.Chain[i]
		prepared, err := in.Prepare(ctx, c)
		if err != nil {
			return nil, err
		}
		step, err := in.ask(ctx, c, prepared)
		if err == nil {
			return step, nil
		}
		failure, ok := errors.AsType[*model.Error](err)
		if !ok {
			return nil, err
		}
		failures, names = append(failures, failure), append(names, c.ProviderName+"/"+c.Model)
		if !failure.Kind.FallsBack() {
			break
		}
	}
	return nil, chainError(failures, names)
}

func chainError(failures []*model.Error, names []string) *Error {
	last := failures[len(failures)-1]
	if len(failures) == 1 {
		return &Error{Kind: last.Kind, Message: last.Message}
	}
	parts := []string{fmt.Sprintf("none of the %d models that were tried answered", len(failures))}
	for i, f := range failures {
		parts = append(parts, names[i]+": "+f.Message)
	}
	return &Error{Kind: last.Kind, Message: strings.Join(parts, "; ")}
}

// ask sends one request to one candidate, again where that may help. The error of a candidate that gave up is a
// *model.Error.
func (in Input) ask(ctx context.Context, c Candidate, p *prepare.Prepared) (*Step, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = c.Retry.InitialBackoff, c.Retry.MaxBackoff, 2
	attempt, err := in.sent(c)
	if err != nil {
		return nil, err
	}
	for {
		if err := in.safePoint(ctx); err != nil {
			return nil, err
		}
		attempt++
		if err := in.Log.Append(ctx, journal.Record{Kind: journal.ModelRequested, Payload: Request{
			Provider: c.ProviderName, Model: c.Model, Attempt: attempt,
		}}); err != nil {
			return nil, err
		}
		begin := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
		// The messages are frozen: each attempt gets a copy that the provider may do with as it likes.
		reply, err := guarded(ctx, c.Provider, model.Request{Model: c.Model, Messages: slices.Clone(p.Messages), Parameters: c.Parameters})
		took := time.Since(begin).Milliseconds()
		if err == nil {
			return in.keep(ctx, Step{Step: 1, Provider: c.ProviderName, Model: c.Model, Reply: reply, DurationMS: took})
		}
		failure := model.AsError(err)
		// A request that was cut short was sent all the same: it counts, and so does what it used.
		err = in.Log.Append(ctx, journal.Record{Kind: journal.ModelFailed, Payload: Attempt{
			Provider: c.ProviderName, Model: c.Model, Kind: failure.Kind, Message: failure.Message,
			Usage: failure.Usage, DurationMS: took, Unsent: failure.Unsent, Stack: stackOf(failure),
		}})
		if ctx.Err() != nil {
			return nil, ended(ctx, err)
		}
		if err != nil {
			return nil, err
		}
		if !failure.Kind.Retryable() {
			return nil, failure
		}
		if attempt >= c.Retry.MaxAttempts {
			return nil, exhausted(failure, attempt)
		}
		if err := in.pause(ctx, failure, max(min(wait.NextBackOff(), c.Retry.MaxBackoff), failure.RetryAfter)); err != nil {
			return nil, err
		}
	}
}

// panicked is the stack of an adapter that panicked. The value it panicked with may hold a part of the prompt and is not
// kept; a stack holds names and addresses only.
type panicked string

// Error says that there was a panic.
func (panicked) Error() string { return "panic in an adapter" }

func stackOf(err error) string {
	stack, _ := errors.AsType[panicked](err)
	return string(stack)
}

// guarded makes a panic of an adapter an error of that request.
func guarded(ctx context.Context, p model.Provider, req model.Request) (reply model.Reply, err error) {
	defer func() {
		if recover() != nil {
			err = &model.Error{
				Kind: model.InvalidRequest, Err: panicked(debug.Stack()),
				Message: "the adapter of the provider failed, which is a bug of Capstan: the turn's journal has the stack",
			}
		}
	}()
	return p.Generate(ctx, req)
}

// sent counts the requests to a candidate that earlier runs have sent. A run sends at least one of its own: one that was
// cut off by a restart must not use up the only attempt.
func (in Input) sent(c Candidate) (int, error) {
	requests, err := journal.All[Request](in.Log, journal.ModelRequested)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, r := range requests {
		if r.Provider == c.ProviderName && r.Model == c.Model {
			n++
		}
	}
	return n, nil
}

// ended returns the cause of a context that ended, with the error of the journal if there is one.
func ended(ctx context.Context, err error) error {
	if err == nil {
		return context.Cause(ctx)
	}
	return errors.Join(context.Cause(ctx), err)
}

func exhausted(failure *model.Error, attempts int) *model.Error {
	if attempts == 1 {
		return failure
	}
	e := *failure
	e.Message = fmt.Sprintf("%s (%d attempts)", failure.Message, attempts)
	return &e
}

// keep journals a reply. From here on it is never bought again.
func (in Input) keep(ctx context.Context, s Step) (*Step, error) {
	if err := in.Log.Keep(ctx, journal.Record{Kind: journal.ModelReplied, Payload: s}); err != nil {
		return nil, err
	}
	return &s, nil
}

// safePoint returns why the run must stop here, if it must.
func (in Input) safePoint(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-in.Interrupt:
		return ErrInterrupted
	default:
		return nil
	}
}

// pause waits before the next attempt. A wait that would end after the Turn is not begun.
func (in Input) pause(ctx context.Context, failure *model.Error, wait time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
		e := *failure
		e.Message = fmt.Sprintf("%s (the next attempt in %s would be after the turn's deadline)", failure.Message, rounded(wait))
		return &e
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.Interrupt:
		return ErrInterrupted
	}
}

// rounded shortens a duration to what people want to read.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
