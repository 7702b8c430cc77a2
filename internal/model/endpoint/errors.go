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

// classify turns any error of a request into a *model.Error with a message for people that contains no secrets. partial
// is the part of the reply that arrived before the error.
func (x *exchange) classify(ctx context.Context, err error, partial model.Reply) *model.Error {
	e := x.classifyCause(ctx, err, partial)
	e.NotReached = !e.Unsent && x.status == 0 && !x.payload.hasBegun()
	e.Message = fmt.Sprintf("provider %q: %s", x.provider.cfg.Name, e.Message)
	e.RetryAfter = cmp.Or(x.retryAfter, e.RetryAfter, x.limitReset)
	e.Usage, e.Received = partial.Usage, partial.Received
	return e
}

// classifyCause returns the error of classify without the provider's name, the retry delay, and the usage and length of
// the partial reply.
func (x *exchange) classifyCause(ctx context.Context, err error, partial model.Reply) *model.Error {
	p := x.provider
	as := func(kind model.ErrorKind, format string, args ...any) *model.Error {
		return &model.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
	}
	sinceSent, sent := x.payload.sinceSent()
	if errors.Is(err, netpolicy.ErrUnprocessed) {
		sinceSent, sent = 0, false // the endpoint has refused it, and it was not sent again
	}
	if ctx.Err() != nil {
		e := as(model.Cancelled, "the request was cancelled")
		e.MayBeBilled = sent
		return e
	}
	if e, ok := errors.AsType[*model.Error](err); ok {
		return e
	}
	if failed, ok := errors.AsType[*netpolicy.ProxyError](err); ok {
		return proxyFailure(failed)
	}
	if refused, ok := errors.AsType[*netpolicy.Refused](err); ok {
		e := as(model.InvalidRequest, "%s", refused)
		if refused.Temporary {
			e.Kind = model.Network
		}
		e.Unsent, e.Err = true, refused
		return e
	}
	if short, ok := errors.AsType[*netpolicy.Shortage](err); ok {
		e := as(model.Network, "%s", short)
		e.Unsent, e.Err = true, fmt.Errorf("%w: %w", model.ErrOwnShortage, short)
		return e
	}
	if encoded, ok := errors.AsType[*netpolicy.EncodedError](err); ok {
		e := as(model.InvalidRequest, "%s", encoded)
		e.MayBeBilled = sent // the endpoint has accepted the request
		return e
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
		e.MayBeBilled = sent || partial.Received > 0
		return e
	case isLong:
		e := as(model.ReplyTooLong, "%s", long)
		e.MayBeBilled = sent // so much has arrived that the endpoint has worked
		return e
	case errors.Is(err, errRedirect):
		return as(model.InvalidRequest, "the endpoint redirects to another address: set baseURL to the final one")
	case errors.Is(err, io.ErrUnexpectedEOF):
		e := as(model.Network, "the connection broke before the answer was finished")
		e.MayBeBilled = sinceSent > unbilled || partial.Received > 0
		return e
	case isSyntax, isType:
		return as(model.Malformed, "the response does not follow %s%s", p.protocol.Name(), x.contentTypeHint())
	case isNet && netErr.Timeout() && !sent:
		return p.withCause(model.Timeout, fmt.Sprintf("no connection to the %s within %s", remote, p.cfg.ConnectTimeout), err)
	}
	e := p.withCause(model.Network, fmt.Sprintf("the connection to the %s failed", remote), err)
	e.MayBeBilled = sinceSent > unbilled || partial.Received > 0
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

// unbilled is how long after the sending of a request a broken connection is assumed to cost nothing, unless a part of
// the answer has arrived. Later, the endpoint may bill the request: proxies cut connections without traffic after
// minutes, while the model still works.
const unbilled = 5 * time.Second

// withCause returns a failure with its cause. The cause is in the message if Capstan has a text for it, and otherwise
// in RemoteMessage.
func (p *Provider) withCause(kind model.ErrorKind, what string, err error) *model.Error {
	if cause := netpolicy.Cause(err); cause != "" {
		return &model.Error{Kind: kind, Message: what + ": " + p.clean(cause)}
	}
	return &model.Error{Kind: kind, Message: what, RemoteMessage: p.clean(rootCause(err))}
}

// errorOf classifies an error in a response: see Provider.errorOf.
func (x *exchange) errorOf(body []byte, status int) *model.Error {
	return x.provider.errorOf(body, status, x.date)
}

// errorOf classifies an error of the endpoint. For an error within a stream, status is 0, and the codes of the error
// are used instead. date is the header Date of the response.
func (p *Provider) errorOf(body []byte, status int, date string) *model.Error {
	reported := reportOf(body)
	if status == 0 {
		status = reported.httpStatus()
	}
	e := p.statusError(status, reported.codes, reported.message)
	e.MayBeBilled, e.RetryAfter = slices.Contains(timeouts, status), reported.waitFor(status, date)
	return e
}

// timeouts are the statuses after which the endpoint may still work on the request. 524 is Cloudflare's.
var timeouts = []int{http.StatusRequestTimeout, http.StatusGatewayTimeout, 524}

// failures are statuses below 500 for a failure that may be over soon. The client libraries of OpenAI and Anthropic
// repeat a request after a conflict. Bedrock and TGI send 424 if the model failed, and Google sends 499 if it has
// cancelled the request itself: github.com/google-gemini/gemini-cli/issues/20309.
var failures = []int{http.StatusConflict, http.StatusFailedDependency, 499}

// statusError classifies an error of the endpoint by its status, or by its code and message if they are more precise.
// status is 0 if it is not known.
func (p *Provider) statusError(status int, code, message string) *model.Error {
	remote := p.clean(message)
	as := func(kind model.ErrorKind, format string, args ...any) *model.Error {
		return &model.Error{Kind: kind, Message: fmt.Sprintf(format, args...), RemoteMessage: remote}
	}
	switch {
	case isOverflow(status, code, message):
		return as(model.ContextLength, "the prompt is longer than the model's context window")
	case isFiltered(code, message):
		return as(model.ContentFiltered, "the content filter refused the request")
	case isSpent(status, code, message):
		return as(model.QuotaExceeded, "the account's quota is used up%s: check its plan and billing", statusSuffix(status))
	case refusesInput(message):
		return as(model.InvalidRequest, "the model does not accept images or files: remove the capability Images or Files from it, "+
			"or use another model")
	case refusesOrder(message):
		return as(model.InvalidRequest, "the chat template of the model refuses the order of the messages%s: check that "+
			"spec.requests.systemMessages of the ModelProvider is Merged", statusSuffix(status))
	case needsReasoningOff(message):
		return as(model.InvalidRequest, "the model accepts tools only if it does not reason%s: set spec.thinking of the Agent to "+
			`"Off", and add ReasoningOff to the model's capabilities in the ModelProvider`, statusSuffix(status))
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusBadRequest && refusesKey(message):
		return as(model.Auth, "%s", p.credentialsRefused(status))
	case status == http.StatusTooManyRequests, strings.Contains(code, "rate_limit"):
		return as(model.RateLimited, "the endpoint's rate limit is reached%s", statusSuffix(status))
	case strings.Contains(code, "tool_use_failed"), misreadsCall(message): // Groq sends the code with status 400
		return as(model.Malformed, "%s%s", unreadableCall, statusSuffix(status))
	case strings.Contains(code, "json_validate_failed"): // Groq: github.com/langchain-ai/langchain/issues/31459
		return as(model.Malformed, "the model's answer was not JSON that fits the schema%s", statusSuffix(status))
	case status == http.StatusNotFound, message == springNotFound:
		return as(model.InvalidRequest, "the endpoint does not know the model, or serves nothing at this baseURL (HTTP 404)")
	case status == http.StatusRequestTimeout:
		return as(model.Timeout, "the endpoint timed out (HTTP 408)")
	case status == statusCapacity:
		return as(model.Overloaded, "the endpoint has no capacity left (HTTP 498)")
	case slices.Contains(failures, status):
		return as(model.Overloaded, "the endpoint failed (HTTP %d)", status)
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError:
		return as(model.InvalidRequest, "the endpoint refused the request (HTTP %d)%s", status, outputLimitHint(message))
	case status == statusOverloaded:
		return as(model.Overloaded, "the endpoint is overloaded (HTTP 529)")
	case status == 0:
		return as(model.Overloaded, "the endpoint reported an error in the stream")
	}
	e := as(model.Overloaded, "the endpoint failed (HTTP %d)", status)
	e.Internal = status == http.StatusInternalServerError
	return e
}

// springNotFound is the text of the Spring framework for a path that it does not serve. Zhipu and Z.AI send it with the
// code 500, in HTTP 200 or 500, for a wrong baseURL: github.com/Gitlawb/openclaude/issues/214.
const springNotFound = "404 NOT_FOUND"

// statusSuffix returns the status of an error for the end of a message, or an empty text if the status is not known.
func statusSuffix(status int) string {
	if status == 0 {
		return ""
	}
	return fmt.Sprintf(" (HTTP %d)", status)
}

// unreadableCall is the message for a call that the endpoint could not read.
const unreadableCall = "the model called a tool in a form that the endpoint could not read"

// misreadsCall reports whether the message of an error means that a server could not read a call of its model. The
// status is 500, but the server works: it must not count as failed, and the model may call in another form.
func misreadsCall(message string) bool {
	return containsAny(strings.ToLower(message),
		"error parsing tool call", "xml syntax error", // Ollama: github.com/ollama/ollama/issues/17638 and 14834
		"failed to parse input at pos", // llama.cpp: github.com/ggml-org/llama.cpp/issues/20532
	)
}

// spentMessages are parts of the messages of errors with status 400, 403 or 429 for an account that has used up its
// quota or its credit. All parts of a row must occur. They are in lower case.
var spentMessages = [][]string{
	{"credit balance is too low"},        // Anthropic, 400
	{"reached your", "api usage limits"}, // Anthropic, 400, for a limit that the account has set
	{"used all available credits"},       // xAI, 403 and 429
	{"monthly spending limit"},           // the same
	{"team", "have any credits"},         // xAI, 403, for a new team
	{"team has no credits"},              // the same in its documentation
	{"run out of credits"},               // xAI, 403
	{"prepayment credits are depleted"},  // Gemini, 429
	{"account balance is insufficient"},  // SiliconFlow, 403
	{"balance or no resource package"},   // Z.ai, 429: github.com/vercel/ai/issues/9290
	{"余额不足"},                             // Zhipu, 429, for the same
}

// spentCodes are parts of the codes of such errors with any status, in lower case.
var spentCodes = []string{
	"insufficient_quota",                               // OpenAI, 429
	"billing_not_active", "billing_hard_limit_reached", // OpenAI, 429 and 400
	"exceeded_current_quota",                                    // Moonshot, 429
	"budget_exceeded",                                           // LiteLLM, 400 and 429
	"insufficient_user_quota", "pre_consume_token_quota_failed", // new-api, 403
	"accountoverdue", // Volcengine Ark, 403
	"arrearage",      // DashScope, 400: github.com/HKUDS/nanobot/issues/4048
}

// isSpent reports whether an account has used up its quota or its credit, so that waiting does not help.
func isSpent(status int, code, message string) bool {
	switch {
	case status == http.StatusPaymentRequired, containsAny(code, spentCodes...):
		return true
	case strings.Contains(message, "insufficient balance (1008)"):
		return true // MiniMax, also with status 500: github.com/MiniMax-AI/MiniMax-M2/issues/62
	case status != http.StatusBadRequest && status != http.StatusForbidden && status != http.StatusTooManyRequests:
		return false
	}
	message = strings.ToLower(message)
	return slices.ContainsFunc(spentMessages, func(row []string) bool {
		return !slices.ContainsFunc(row, func(part string) bool { return !strings.Contains(message, part) })
	})
}

// filterCodes are parts of the codes of errors of content filters, in lower case. OpenAI's invalid_prompt is none: it
// also stands for requests that do not follow the protocol.
var filterCodes = []string{
	"content_filter", "content_policy", // OpenAI, Azure and most other services
	"cyber_policy",                                   // OpenAI: github.com/UKGovernmentBEIS/inspect_ai/pull/3607
	"data_inspection_failed", "datainspectionfailed", // DashScope: github.com/camel-ai/owl/issues/432
	"sensitive_words_detected", // new-api, 500: github.com/QuantumNous/new-api/issues/4499
}

// filterMessages are parts of the messages of such errors, in lower case. The status and the code are those of an
// invalid request or of a refused key.
var filterMessages = []string{
	"content exists risk",                       // DeepSeek, 400: github.com/666ghj/BettaFish/issues/108
	"content violates usage guideline",          // xAI, 403: github.com/UKGovernmentBEIS/inspect_ai/pull/2267
	"content filtering policy",                  // Anthropic, 400 and in the stream: github.com/anthropics/claude-code/issues/58367
	"considered high risk",                      // Moonshot, also without its code: github.com/MoonshotAI/kimi-code/issues/242
	"flagged as potentially violating",          // OpenAI, 400: github.com/songquanpeng/one-api/issues/2101
	"limited access to this content for safety", // OpenAI, 400: github.com/microsoft/PyRIT/pull/1463
	"high-risk cyber activity",                  // OpenAI, also without its code
	"may contain inappropriate content",         // DashScope, also without its code: github.com/QwenLM/qwen-code/issues/2905
	"sensitive_words_detected",                  // new-api, also without its code
	"new_sensitive",                             // MiniMax, 422 and 500: platform.minimax.io/docs/api-reference/errorcode
	"系统检测到输入或生成内容可能包含不安全或敏感内容", // Zhipu, 400, whose code is only 1301
}

// isFiltered reports whether an error is that of a content filter. After an error of another kind, Capstan would ask
// another model, which would bypass the filter.
func isFiltered(code, message string) bool {
	return containsAny(code, filterCodes...) || containsAny(strings.ToLower(message), filterMessages...)
}

// refusesInput reports whether the message of an error means that the model does not accept images or files. The status
// may be that of a failure of the endpoint, or of an unknown model.
func refusesInput(message string) bool {
	return containsAny(strings.ToLower(message),
		"image input is not supported",  // llama.cpp, 500: github.com/ggml-org/llama.cpp/issues/15377 and 13566
		"unsupported content part type", // llama.cpp, 500: github.com/ggml-org/llama.cpp/issues/12947
		"support image input",           // OpenRouter, 404: github.com/aaif-goose/goose/issues/5396; Ollama: ollama/ollama/issues/17301
		"is not a multimodal model",     // vLLM: github.com/vllm-project/vllm/issues/19144
		"model is not multimodal",       // vLLM and SGLang: github.com/BerriAI/litellm/pull/32237
		"unknown variant `image_url`",   // DeepSeek: github.com/1jehuang/jcode/issues/310
	)
}

// refusesOrder reports whether the message of an error means that the chat template of the model refuses the order of
// the messages. llama.cpp sends it with status 500, but the server works, so it must not count as failed:
// github.com/ggml-org/llama.cpp/issues/19851 and github.com/anomalyco/opencode/issues/5034.
func refusesOrder(message string) bool {
	return strings.Contains(strings.ToLower(message), "conversation roles must alternate")
}

// needsReasoningOff reports whether the message of an error means that the model accepts tools only with the reasoning
// effort none. Models of OpenAI since gpt-5.4 accept tools with any other effort in the Responses API only, and since
// gpt-5.6 they reason by default: github.com/pipecat-ai/pipecat/issues/4043 and github.com/BerriAI/litellm/pull/34569.
func needsReasoningOff(message string) bool {
	return strings.Contains(strings.ToLower(message), "function tools with reasoning_effort are not supported")
}

// refusesKey reports whether the message of an error means that the key is refused. Gemini and xAI send such a message
// with status 400.
func refusesKey(message string) bool {
	message = strings.ToLower(message)
	return strings.Contains(message, "api key") && containsAny(message, "not valid", "incorrect", "invalid")
}

// containsAny reports whether a text contains one of these parts.
func containsAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}

// outputLimitHint returns a hint if the message of an error means that the endpoint does not support the parameter that
// limits the tokens of a reply, and otherwise an empty text.
func outputLimitHint(message string) string {
	message = strings.ToLower(message)
	if !strings.Contains(message, "max_tokens") && !strings.Contains(message, "max_completion_tokens") {
		return ""
	}
	if !containsAny(message, "unsupported", "not supported", "not permitted", "unrecognized", "unknown") {
		return ""
	}
	return ": set spec.requests.outputLimit of the ModelProvider to the parameter that it accepts"
}

// statusCapacity is the status that Groq returns if its flex tier has no capacity left.
const statusCapacity = 498

// statusOverloaded is the status that Anthropic returns if it is overloaded.
const statusOverloaded = 529

// credentialsRefused returns the message for a request whose credentials the endpoint refused.
func (p *Provider) credentialsRefused(status int) string {
	switch {
	case p.cfg.CredentialsFrom != "":
		return fmt.Sprintf("the endpoint refused the credentials (HTTP %d): check %s", status, p.cfg.CredentialsFrom)
	case len(p.cfg.Secrets()) > 0:
		return fmt.Sprintf("the endpoint refused the credentials (HTTP %d): check the values of spec.headers of the ModelProvider", status)
	}
	return fmt.Sprintf("the endpoint refused a request without credentials (HTTP %d): set spec.credentialsRef of the ModelProvider "+
		"if the endpoint needs a key", status)
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
