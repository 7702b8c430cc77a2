package endpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/model/lenient"
)

// maxNesting bounds how deep errors are nested: gateways put the error of their provider into their own.
const maxNesting = 6

// Problem has the members in which servers describe an error. Each may be a text, an object or a list.
type Problem struct {
	Error   json.RawMessage `json:"error"`
	Message json.RawMessage `json:"message"`
	Detail  json.RawMessage `json:"detail"`
	// Msg is sent by Zhipu with the status 200, as in {"code":401,"msg":"token expired or incorrect","success":false}.
	Msg json.RawMessage `json:"msg"`
	// Outcome is sent by MiniMax, mostly with the status 200: see HasFailed.
	Outcome lenient.Maybe[outcome] `json:"base_resp"`
}

// outcome is the outcome of a request to MiniMax, also of a successful one, whose code is 0.
type outcome struct {
	Code lenient.Maybe[lenient.Number] `json:"status_code"`
	Text lenient.Maybe[string]         `json:"status_msg"`
}

// HasText reports whether there is a text about an error. It is an error only in place of an answer, because an answer
// may have these members, too.
func (p *Problem) HasText() bool {
	return IsPresent(p.Message) || IsPresent(p.Detail) || IsPresent(p.Msg)
}

// HasFailed reports whether MiniMax reports the failure of a request in its own form. The text of a successful request
// may be a warning.
func (p *Problem) HasFailed() bool { return p.Outcome.Value.Code.Value != 0 }

// outcomeCodes are the codes of other services for MiniMax's codes: platform.minimax.io/docs/api-reference/errorcode.
var outcomeCodes = map[lenient.Number]string{
	1000: "api_error", 1024: "api_error", 1033: "api_error",
	1001: "timeout_error",
	1002: "rate_limit", 1039: "rate_limit", 1041: "rate_limit", 2045: "rate_limit", 2056: "rate_limit",
	1004: "authentication", 2049: "authentication",
	1008: "insufficient_quota",
	1026: "content_filter", 1027: "content_filter",
	1042: "invalid_request", 2013: "invalid_request",
}

// report is an error as an endpoint describes it.
type report struct {
	// status is an HTTP status that is among the codes, or 0.
	status int
	// codes are all codes and types, in lower case.
	codes string
	// message is the text for people.
	message string
	// wait is how long the endpoint asks to wait before the next request, or 0.
	wait time.Duration
	// headers are headers of the provider behind a gateway, which the gateway puts into the error. It may be nil.
	headers http.Header
}

// reportOf reads an error in any form that servers send: a text, an object that has the text in one of several members
// or in an inner object, a list of such objects, or JSON within a text. Data of any other form becomes the message.
func reportOf(data []byte) report { return nestedReport(data, maxNesting) }

func nestedReport(data []byte, depth int) report {
	data = trimmed(data)
	var text string
	if json.Unmarshal(data, &text) == nil {
		if data = []byte(text); !bytes.HasPrefix(data, []byte("{")) || !json.Valid(data) {
			return report{message: text}
		}
	}
	if list, err := lenient.First[json.RawMessage](data, 1); err == nil && len(list) > 0 {
		data = list[0]
	}
	var object struct {
		Problem
		Code     json.RawMessage `json:"code"`
		Type     json.RawMessage `json:"type"`
		Status   json.RawMessage `json:"status"`
		Metadata lenient.Maybe[struct {
			// Raw is the error of the provider that OpenRouter has asked.
			Raw json.RawMessage `json:"raw"`
			// Flagged is the part of a request that OpenRouter's moderation has refused, with the status 403.
			Flagged json.RawMessage `json:"flagged_input"`
			// Headers are OpenRouter's headers for a limit, which are not among the headers of the response.
			Headers json.RawMessage `json:"headers"`
		}] `json:"metadata"`
		// Details has the wait in errors of Google, whose responses have no header Retry-After.
		Details lenient.Maybe[lenient.List[lenient.Maybe[retryInfo]]] `json:"details"`
	}
	whole := report{message: string(data)}
	if depth == 0 || json.Unmarshal(data, &object) != nil {
		return whole
	}
	if o := &object.Outcome.Value; object.HasFailed() {
		whole.message = cmp.Or(o.Text.Value, whole.message)
		whole.add(outcomeCodes[o.Code.Value])
	}
	inners := []json.RawMessage{object.Error, object.Message, object.Detail}
	if IsPresent(object.Code) { // without a code, other members say more, such as Mistral's place of the error
		inners = append(inners, object.Msg)
	}
	for _, inner := range inners {
		if IsPresent(inner) {
			whole = nestedReport(inner, depth-1)
			break
		}
	}
	if raw := object.Metadata.Value.Raw; IsPresent(raw) {
		cause := nestedReport(raw, depth-1)
		whole.message, whole.codes = whole.message+": "+cause.message, whole.codes+" "+cause.codes
		whole.wait, whole.headers = cmp.Or(whole.wait, cause.wait), cause.headers
	}
	if headers := headersOf(object.Metadata.Value.Headers); headers != nil {
		whole.headers = headers
	}
	for _, detail := range object.Details.Value {
		whole.wait = cmp.Or(whole.wait, detail.Value.wait())
	}
	if IsPresent(object.Metadata.Value.Flagged) {
		whole.add("content_filter")
	}
	for _, code := range []json.RawMessage{object.Code, object.Type, object.Status} {
		whole.add(strings.Trim(string(code), `"`))
	}
	return whole
}

// retryInfo is google.rpc.RetryInfo.
type retryInfo struct {
	// Delay is a number of seconds with a unit, such as 34.5s.
	Delay lenient.Maybe[string] `json:"retryDelay"`
}

// wait returns the wait, or 0 if there is none. It has the same bounds as the wait in a header.
func (r *retryInfo) wait() time.Duration {
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(r.Delay.Value, "s"), 64)
	if err != nil {
		return 0
	}
	return boundedWait(seconds)
}

// maxHeaders bounds the headers that are read from an error.
const maxHeaders = 64

// headersOf returns the headers in a JSON object, or nil if there are none.
func headersOf(data []byte) http.Header {
	members := lenient.Members(data, maxHeaders)
	if len(members) == 0 {
		return nil
	}
	h := http.Header{}
	for name, value := range members {
		h.Set(name, strings.Trim(string(value), `"`))
	}
	return h
}

// waitFor returns the wait that the error asks for, or 0. status is the status of the error, and date is the header
// Date of the response.
func (r *report) waitFor(status int, date string) time.Duration {
	if r.wait != 0 || r.headers == nil {
		return r.wait
	}
	r.headers.Set("Date", date)
	wait := retryAfter(r.headers)
	if wait == 0 && status == http.StatusTooManyRequests {
		wait = limitReset(statedLimits(r.headers))
	}
	return wait
}

// add adds a code.
func (r *report) add(code string) {
	if status, err := strconv.Atoi(code); err == nil && r.status == 0 && status >= http.StatusBadRequest && status < 600 {
		r.status = status
	}
	r.codes += " " + strings.ToLower(code)
}

// IsPresent reports whether a member is present and not empty. Some servers send an empty member if there is no error.
func IsPresent(member json.RawMessage) bool {
	switch string(member) {
	case "", "null", `""`, "{}", "[]", "false":
		return false
	}
	return true
}

// codeStatuses are the HTTP statuses for the codes of errors within a stream, which have no status of their own.
var codeStatuses = []struct {
	code   string
	status int
}{
	{"rate_limit", http.StatusTooManyRequests},
	{"resource_exhausted", http.StatusTooManyRequests},
	{"authentication", http.StatusUnauthorized},
	{"invalid_api_key", http.StatusUnauthorized},
	{"permission", http.StatusForbidden},
	{"invalid_request", http.StatusBadRequest},
	{"invalid_argument", http.StatusBadRequest},
	{"badrequest", http.StatusBadRequest},
	{"not_found_error", http.StatusNotFound},
	{"billing_error", http.StatusPaymentRequired},
	{"overloaded_error", statusOverloaded},
	{"timeout_error", http.StatusGatewayTimeout},
	{"api_error", http.StatusInternalServerError},
}

// httpStatus returns the HTTP status among the codes, or the status for one of the codes, or 0.
func (r *report) httpStatus() int {
	for _, c := range codeStatuses {
		if r.status == 0 && strings.Contains(r.codes, c.code) {
			return c.status
		}
	}
	return r.status
}
