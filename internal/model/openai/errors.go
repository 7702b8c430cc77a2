package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// classify turns any error of a request into a *model.Error with a message for people that contains no secrets.
func (p *Provider) classify(ctx context.Context, err error, note *response, came model.Reply) *model.Error {
	e := p.kindOf(ctx, err, note)
	e.Message = fmt.Sprintf("provider %q: %s", p.cfg.Name, e.Message)
	e.RetryAfter = note.retryAfter
	e.Usage, e.Received = came.Usage, came.Received
	return e
}

func (p *Provider) kindOf(ctx context.Context, err error, note *response) *model.Error {
	as := func(kind model.ErrorKind, format string, args ...any) *model.Error {
		return &model.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
	}
	if ctx.Err() != nil {
		return as(model.Cancelled, "the request was cancelled")
	}
	if e, ok := errors.AsType[*model.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*api.APIError](err); ok {
		return p.statusError(statusOr(e.HTTPStatusCode, note), codeOf(e), e.Message)
	}
	if e, ok := errors.AsType[*api.RequestError](err); ok && e.HTTPStatusCode >= http.StatusBadRequest {
		return p.statusError(e.HTTPStatusCode, "", string(e.Body))
	}
	if refused, ok := errors.AsType[*netpolicy.Refused](err); ok {
		e := as(model.InvalidRequest, "%s", refused)
		e.Unsent, e.Err = true, refused
		return e
	}
	if encoded, ok := errors.AsType[*netpolicy.EncodedError](err); ok {
		return as(model.InvalidRequest, "%s", encoded)
	}
	long, isLong := errors.AsType[tooLong](err)
	netErr, isNet := errors.AsType[net.Error](err)
	_, isSyntax := errors.AsType[*json.SyntaxError](err)
	_, isType := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case isLong && note.status >= http.StatusBadRequest:
		return p.statusError(note.status, "", "")
	case errors.Is(err, errIdle):
		return as(model.Timeout, "the endpoint sent no part of an answer for %s", p.cfg.IdleTimeout)
	case isLong:
		return as(model.ReplyTooLong, "%s", long)
	case errors.Is(err, errRedirect):
		return as(model.InvalidRequest, "the endpoint redirects to another address: set baseURL to the final one")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return as(model.Network, "the connection broke before the answer was finished")
	case isSyntax, isType, errors.Is(err, api.ErrTooManyEmptyStreamMessages):
		return as(model.Malformed, "the response does not follow the chat-completions protocol%s", contentTypeHint(note))
	case isNet && netErr.Timeout():
		return p.withCause(model.Timeout, fmt.Sprintf("no connection within %s", p.cfg.ConnectTimeout), err)
	case isNet || note.status != 0:
		return p.withCause(model.Network, "the connection to the endpoint failed", err)
	}
	// The library refused the request before it sent anything.
	return as(model.InvalidRequest, "the request cannot be sent: %s", p.clean(err.Error()))
}

// withCause adds the cause of a failure: to the message if Capstan has words for the cause, otherwise to Said.
func (p *Provider) withCause(kind model.ErrorKind, what string, err error) *model.Error {
	if cause := netpolicy.Cause(err); cause != "" {
		return &model.Error{Kind: kind, Message: what + ": " + p.clean(cause)}
	}
	return &model.Error{Kind: kind, Message: what, Said: p.clean(rootCause(err))}
}

func statusOr(status int, note *response) int {
	if status == 0 && note.status != http.StatusOK {
		return note.status
	}
	return status
}

func codeOf(e *api.APIError) string {
	code, _ := e.Code.(string) // some servers send a number, which only repeats the status
	return strings.ToLower(code + " " + e.Type)
}

// statusError classifies an error of the endpoint by its status, and by its code if the code is more precise.
func (p *Provider) statusError(status int, code, detail string) *model.Error {
	detail = p.clean(detail)
	as := func(kind model.ErrorKind, format string, args ...any) *model.Error {
		return &model.Error{Kind: kind, Message: fmt.Sprintf(format, args...), Said: detail}
	}
	switch {
	case isContextLength(status, code, detail):
		return as(model.ContextLength, "the prompt is longer than the model's context window")
	case strings.Contains(code, "content_filter"), strings.Contains(code, "content_policy"):
		return as(model.ContentFiltered, "the content filter refused the request")
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return as(model.Auth, "the endpoint refused the credentials (HTTP %d): check %s", status, p.credentials())
	case strings.Contains(code, "insufficient_quota"):
		// This is also a 429, but waiting does not help.
		return as(model.Auth, "the account's quota is used up (HTTP %d): check its plan and billing", status)
	case status == http.StatusTooManyRequests, strings.Contains(code, "rate_limit"):
		return as(model.RateLimited, "the endpoint's rate limit is reached (HTTP %d)", http.StatusTooManyRequests)
	case status == http.StatusNotFound:
		return as(model.InvalidRequest, "the endpoint does not know the model, or serves nothing at this baseURL (HTTP 404)")
	case status == http.StatusRequestTimeout:
		return as(model.Timeout, "the endpoint timed out (HTTP 408)")
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError:
		return as(model.InvalidRequest, "the endpoint refused the request (HTTP %d)", status)
	case status == 0:
		return as(model.Overloaded, "the endpoint reported an error in the stream")
	}
	return as(model.Overloaded, "the endpoint failed (HTTP %d)", status)
}

// isContextLength recognizes the codes of OpenAI and llama.cpp, and the message of vLLM, which has no code for it.
func isContextLength(status int, code, detail string) bool {
	return strings.Contains(code, "context_length") || strings.Contains(code, "exceed_context") ||
		status == http.StatusBadRequest && strings.Contains(strings.ToLower(detail), "maximum context length")
}

func (p *Provider) credentials() string {
	if p.cfg.CredentialsFrom == "" {
		return "whether the endpoint needs a key: the ModelProvider has no credentialsRef"
	}
	return p.cfg.CredentialsFrom
}

// rootCause returns the message of the innermost error, because the outer errors repeat the URL.
func rootCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
