package server

import (
	"net/http"
	"strings"
)

const (
	// maxBills bounds the list of bills; the totals in Stats have no bound.
	maxBills = 100_000
	// maxBilledName bounds the names in a bill, in bytes.
	maxBilledName = 256
)

// Bill is the cost of one request. A request is billed after its reply is computed and before any latency, because
// a provider bills the tokens that it has generated. The bill stays if the client disconnects or if the rule cuts the
// response. Errors, hangs and rubbish have no reply and cost nothing.
type Bill struct {
	// ClientRequestID is the first 256 bytes of the header X-Client-Request-Id, or empty if the header is missing.
	ClientRequestID string `json:"clientRequestID"`
	// Model is the first 256 bytes of the requested model's name.
	Model string `json:"model"`
	// InputTokens and OutputTokens are the prompt and completion tokens of the reply's usage.
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
	// Delivered reports whether the whole answer was written to the network while the client was connected.
	Delivered bool `json:"delivered"`
}

// Billing returns the last 100,000 bills since the start or the last reset, in the order in which the replies were
// computed. Bills do not contain the bodies of the requests. Stats holds the totals of all bills.
func (s *Server) Billing() []Bill { return s.recorder.billed() }

// getBilling answers GET /_fake/billing.
func (s *Server) getBilling(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Billing())
}

// bill records the cost of a request. A request that was in flight at a reset is not counted after the reset.
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
		r.bills[0] = nil // frees the bill before append moves the list
		r.bills = r.bills[1:]
	}
	r.notify()
}

// setDelivered records whether the client has the whole answer. The caller must hold the lock.
func (e *entry) setDelivered(delivered bool) {
	e.request.Delivered = delivered
	if e.billed != nil {
		e.billed.Delivered = delivered
	}
}

// setUndelivered marks an answer as not delivered, because its last bytes could not be sent.
func (e *entry) setUndelivered() {
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

// shortName returns a copy of the beginning of a name, so that the whole name can be freed.
func shortName(name string) string { return strings.Clone(name[:min(len(name), maxBilledName)]) }
