package server

import (
	"net/http"
	"strings"
)

const (
	// maxBills bounds the list of bills; the totals of Stats go on.
	maxBills = 100_000
	// maxBilledName bounds, in bytes, the names that a bill keeps of a request.
	maxBilledName = 256
)

// Bill is what one request cost. A request is billed once its reply is decided, before any latency, as a provider bills what it
// generated: also where the client then goes away or a rule cuts the response. Errors, hangs and rubbish have no reply and
// cost nothing.
type Bill struct {
	// ClientRequestID is the request's X-Client-Request-Id, of which at most 256 bytes are kept; empty without one.
	ClientRequestID string `json:"clientRequestID"`
	// Model is the model asked for, of which at most 256 bytes are kept.
	Model string `json:"model"`
	// InputTokens and OutputTokens are the prompt and completion tokens of the reply's usage.
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
	// Delivered says whether the whole answer was handed to the network while the client was still there. It is false until
	// then.
	Delivered bool `json:"delivered"`
}

// Billing returns the bills since the start or the last reset, in the order in which the replies were decided: the last 100,000
// of them, without the bodies of the requests. Stats has the totals of all.
func (s *Server) Billing() []Bill { return s.recorder.billed() }

// getBilling answers GET /_fake/billing.
func (s *Server) getBilling(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Billing())
}

// bill notes what a request costs. What was in flight at a reset is not counted after it.
func (e *entry) bill(usage wireUsage) {
	r := e.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	input, output := int64(usage.PromptTokens), int64(usage.CompletionTokens)
	e.request.Billed, e.request.InputTokens, e.request.OutputTokens = true, input, output
	if e.generation != r.generation {
		return
	}
	r.stats.Billed++
	r.stats.BilledInputTokens += input
	r.stats.BilledOutputTokens += output
	e.billed = &Bill{
		ClientRequestID: shortName(e.request.ClientRequestID), Model: shortName(e.request.Model),
		InputTokens: input, OutputTokens: output,
	}
	r.bills = append(r.bills, e.billed)
	if len(r.bills) > maxBills {
		r.bills[0] = nil // lets go of it before append moves the list
		r.bills = r.bills[1:]
	}
	r.notify()
}

// setDelivered notes whether the client has the whole answer. The caller holds the lock.
func (e *entry) setDelivered(delivered bool) {
	e.request.Delivered = delivered
	if e.billed != nil {
		e.billed.Delivered = delivered
	}
}

// lost takes back that an answer was delivered: its last bytes could not be sent.
func (e *entry) lost() {
	e.recorder.mu.Lock()
	defer e.recorder.mu.Unlock()
	e.setDelivered(false)
	e.recorder.notify()
}

func (r *recorder) billed() []Bill {
	r.mu.Lock()
	defer r.mu.Unlock()
	bills := make([]Bill, 0, len(r.bills))
	for _, b := range r.bills {
		bills = append(bills, *b)
	}
	return bills
}

// shortName is a copy of the beginning of a name, so that the rest is let go.
func shortName(name string) string { return strings.Clone(name[:min(len(name), maxBilledName)]) }
