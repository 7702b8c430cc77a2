package endpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// classify turns any error of a request into a *model.Error with a message for people that contains no secrets.
func (x *exchange) classify(ctx context.Context, err error, came model.Reply) *model.Error {
	e := x.kindOf(ctx, err, came)
	e.Message = fmt.Sprintf("provider %q: %s", x.provider.cfg.Name, e.Message)
	e.RetryAfter = cmp.Or(x.retryAfter, e.RetryAfter, x.limitReset)
	e.Usage, e.Received = came.Usage, came.Received
	return e
}

// kindOf is classify without the parts of the reply that arrived before the error.
func (x *exchange) kindOf(ctx context.Context, err error, came model.Reply) *model.Error {
	p := x.provider
	as := func(kind model.ErrorKind, format string, args ...any) *model.Error {
		return &model.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
	}
	worked, sent := x.sent.sentFor()
	if ctx.Err() != nil {
		e := as(model.Cancelled, "the request was cancelled")
		e.MayBeBilled = sent
		return e
	}
	if e, ok := errors.AsType[*model.Error](err); ok {
		return e
	}
	if refused, ok := errors.AsType[*netpolicy.ProxyError](err); ok {
		return proxyFailure(refused)
	}
	if refused, ok := errors.AsType[*netpolicy.Refused](err); ok {
		e := as(model.InvalidRequest, "%s", refused)
		e.Unsent, e.Err = true, refused
		return e
	}
	if encoded, ok := errors.AsType[*netpolicy.EncodedError](err); ok {
		return as(model.InvalidRequest, "%s", encoded)
	}
	remote := "endpoint"
	if proxy := netpolicy.FailedProxy(x.out, err); proxy != "" {
		remote = "proxy " + proxy
	}
	long, isLong := errors.AsType[tooLong](err)
	netErr, isNet := errors.AsType[net.Error](err)
	_, isSyntax := errors.AsType[*json.SyntaxError](err)
	_, isType := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case errors.Is(err, errIdle):
		e := as(model.Timeout, "the endpoint sent no part of an answer for %s", x.watch.limit)
		e.MayBeBilled = true
		return e
	case isLong:
		return as(model.ReplyTooLong, "%s", long)
	case errors.Is(err, errRedirect):
		return as(model.InvalidRequest, "the endpoint redirects to another address: set baseURL to the final one")
	case errors.Is(err, io.ErrUnexpectedEOF):
		e := as(model.Network, "the connection broke before the answer was finished")
		e.MayBeBilled = worked > unbilled || came.Received > 0
		return e
	case isSyntax, isType:
		return as(model.Malformed, "the response does not follow %s%s", p.protocol.Name(), x.contentTypeHint())
	case isNet && netErr.Timeout() && !sent:
		return p.withCause(model.Timeout, fmt.Sprintf("no connection to the %s within %s", remote, p.cfg.ConnectTimeout), err)
	}
	e := p.withCause(model.Network, fmt.Sprintf("the connection to the %s failed", remote), err)
	e.MayBeBilled = worked > unbilled || came.Received > 0
	return e
}

// proxyFailure returns the failure of a request that a proxy did not pass on.
func proxyFailure(e *netpolicy.ProxyError) *model.Error {
	kind := model.InvalidRequest
	switch {
	case e.Status == http.StatusProxyAuthRequired:
		kind = model.Auth
	case e.IsTemporary():
		kind = model.Network
	}
	return &model.Error{Kind: kind, Unsent: true, Message: e.Error()}
}

// unbilled is the time for which an endpoint may have a request before its connection breaks, and will not bill it
// unless a part of the answer has arrived. Proxies cut connections without traffic after minutes, while the model works
// on.
const unbilled = 5 * time.Second

// withCause adds the cause of a failure: to the message if Capstan has words for the cause, otherwise to RemoteMessage.
func (p *Provider) withCause(kind model.ErrorKind, what string, err error) *model.Error {
	if cause := netpolicy.Cause(err); cause != "" {
		return &model.Error{Kind: kind, Message: what + ": " + p.clean(cause)}
	}
	return &model.Error{Kind: kind, Message: what, RemoteMessage: p.clean(rootCause(err))}
}

// errorOf classifies an error in a response: see Provider.errorOf.
func (x *exchange) errorOf(sent []byte, status int) *model.Error {
	return x.provider.errorOf(sent, status, x.resp.Header.Get("Date"))
}

// errorOf classifies an error of the endpoint. status is 0 for an error within a stream: then the codes of the error
// count instead. date is the header Date of the response.
func (p *Provider) errorOf(sent []byte, status int, date string) *model.Error {
	said := reportOf(sent)
	if status == 0 {
		status = said.httpStatus()
	}
	e := p.statusError(status, said.codes, said.words)
	e.MayBeBilled, e.RetryAfter = slices.Contains(timeouts, status), said.waitFor(status, date)
	return e
}

// timeouts are the statuses of gateways, the last one of Cloudflare's, whose endpoint may still work on the request.
var timeouts = []int{http.StatusRequestTimeout, http.StatusGatewayTimeout, 524}

// statusError classifies an error of the endpoint by its status, and by its code if the code is more precise.
func (p *Provider) statusError(status int, code, detail string) *model.Error {
	isTooLong := isOverflow(status, code, detail)
	words := detail
	detail = p.clean(detail)
	as := func(kind model.ErrorKind, format string, args ...any) *model.Error {
		return &model.Error{Kind: kind, Message: fmt.Sprintf(format, args...), RemoteMessage: detail}
	}
	switch {
	case isTooLong:
		return as(model.ContextLength, "the prompt is longer than the model's context window")
	case containsAny(code, "content_filter", "content_policy") || isFiltered(words):
		return as(model.ContentFiltered, "the content filter refused the request")
	case isSpent(status, code, words):
		return as(model.QuotaExceeded, "the account's quota is used up (HTTP %d): check its plan and billing", status)
	case refusesInput(words):
		return as(model.InvalidRequest, "the model does not accept images or files: remove the capability Images or Files from it, "+
			"or use another model")
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusBadRequest && refusesKey(words):
		return as(model.Auth, "the endpoint refused the credentials (HTTP %d): check %s", status, p.credentials())
	case status == http.StatusTooManyRequests, strings.Contains(code, "rate_limit"):
		return as(model.RateLimited, "the endpoint's rate limit is reached (HTTP %d)", http.StatusTooManyRequests)
	case strings.Contains(code, "tool_use_failed"), misreadsCall(words): // the code is of Groq, with status 400
		e := as(model.Malformed, unreadableCall)
		if status != 0 {
			e.Message += fmt.Sprintf(" (HTTP %d)", status)
		}
		return e
	case status == http.StatusNotFound:
		return as(model.InvalidRequest, "the endpoint does not know the model, or serves nothing at this baseURL (HTTP 404)")
	case status == http.StatusRequestTimeout:
		return as(model.Timeout, "the endpoint timed out (HTTP 408)")
	case status == statusCapacity:
		return as(model.Overloaded, "the endpoint has no capacity left (HTTP 498)")
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError:
		return as(model.InvalidRequest, "the endpoint refused the request (HTTP %d)%s", status, outputLimitHint(words))
	case status == statusOverloaded:
		return as(model.Overloaded, "the endpoint is overloaded (HTTP 529)")
	case status == 0:
		return as(model.Overloaded, "the endpoint reported an error in the stream")
	}
	return as(model.Overloaded, "the endpoint failed (HTTP %d)", status)
}

// unreadableCall is the message for a call that the endpoint could not read.
const unreadableCall = "the model called a tool in a form that the endpoint could not read"

// misreadsCall reports whether the words of an error are those of a server that could not read a call of its model.
// Their status is 500, but the server works: it must not count as failed, and the model may call in another form.
func misreadsCall(words string) bool {
	return containsAny(strings.ToLower(words),
		"error parsing tool call", "xml syntax error", // Ollama: github.com/ollama/ollama/issues/17638 and 14834
		"failed to parse input at pos", // llama.cpp: github.com/ggml-org/llama.cpp/issues/20532
	)
}

// spentWords are the words of errors with status 400, 403 or 429 for an account that has used up its quota or its
// credit. All of a row must occur, in lower case.
var spentWords = [][]string{
	{"credit balance is too low"},        // Anthropic, 400
	{"reached your", "api usage limits"}, // Anthropic, 400, for a limit that the account has set
	{"used all available credits"},       // xAI, 403 and 429
	{"monthly spending limit"},           // the same
	{"team", "have any credits"},         // xAI, 403, for a new team
	{"team has no credits"},              // the same in its documentation
	{"run out of credits"},               // xAI, 403
	{"prepayment credits are depleted"},  // Gemini, 429
}

// isSpent reports whether an account has used up its quota or its credit, so that waiting does not help.
func isSpent(status int, code, words string) bool {
	switch {
	case status == http.StatusPaymentRequired, containsAny(code, "insufficient_quota", "exceeded_current_quota", "budget_exceeded"):
		return true // the first two codes are of OpenAI and Moonshot, with a 429
	case status != http.StatusBadRequest && status != http.StatusForbidden && status != http.StatusTooManyRequests:
		return false
	}
	words = strings.ToLower(words)
	return slices.ContainsFunc(spentWords, func(row []string) bool {
		return !slices.ContainsFunc(row, func(part string) bool { return !strings.Contains(words, part) })
	})
}

// isFiltered reports whether the words of an error are those of a content filter. Their status and code are those of a
// request with a mistake, or of a refused key. Then another model would be asked, which must not bypass the filter.
func isFiltered(words string) bool {
	return containsAny(strings.ToLower(words),
		"content exists risk",              // DeepSeek, 400: github.com/666ghj/BettaFish/issues/108
		"content violates usage guideline", // xAI, 403: github.com/UKGovernmentBEIS/inspect_ai/pull/2267
		"content filtering policy",         // Anthropic, 400 and in the stream: github.com/anthropics/claude-code/issues/58367
		"considered high risk",             // Moonshot, also without its code: github.com/MoonshotAI/kimi-code/issues/242
	)
}

// refusesInput reports whether the words of an error refuse images or files because of the model. Their status may be
// that of a failure of the endpoint, or of an unknown model.
func refusesInput(words string) bool {
	return containsAny(strings.ToLower(words),
		"image input is not supported",  // llama.cpp, 500: github.com/ggml-org/llama.cpp/issues/15377 and 13566
		"unsupported content part type", // llama.cpp, 500: github.com/ggml-org/llama.cpp/issues/12947
		"support image input",           // OpenRouter, 404: github.com/aaif-goose/goose/issues/5396; Ollama: ollama/ollama/issues/17301
		"is not a multimodal model",     // vLLM: github.com/vllm-project/vllm/issues/19144
		"model is not multimodal",       // vLLM and SGLang: github.com/BerriAI/litellm/pull/32237
		"unknown variant `image_url`",   // DeepSeek: github.com/1jehuang/jcode/issues/310
	)
}

// refusesKey reports whether the words of an error with status 400 refuse the key, as those of Gemini and xAI do.
func refusesKey(words string) bool {
	words = strings.ToLower(words)
	return strings.Contains(words, "api key") && containsAny(words, "not valid", "incorrect", "invalid")
}

// containsAny reports whether a text contains one of these parts.
func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}

// outputLimitHint returns a hint if the endpoint does not know the parameter that limits the tokens of a reply, and
// otherwise an empty text. words is the text of the error.
func outputLimitHint(words string) string {
	words = strings.ToLower(words)
	if !strings.Contains(words, "max_tokens") && !strings.Contains(words, "max_completion_tokens") {
		return ""
	}
	if !containsAny(words, "unsupported", "not supported", "not permitted", "unrecognized", "unknown") {
		return ""
	}
	return ": set spec.requests.outputLimit of the ModelProvider to the parameter that it accepts"
}

// statusCapacity is the status of Groq if its tier for spare capacity has none.
const statusCapacity = 498

// statusOverloaded is the status of Anthropic for too many requests of all users.
const statusOverloaded = 529

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
