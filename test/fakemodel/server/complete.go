package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"
)

// maxBodyBytes bounds the size of a request; a larger request is rejected with 413.
const maxBodyBytes = 32 << 20

// exchange is one request for a completion or for embeddings while it is served.
type exchange struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	rules  *ruleset
	req    completionRequest
	entry  *entry
	// embeds is the request for embeddings, or nil for any other request.
	embeds *embeddingsRequest
	// rule and view are set after the checks; answer is set when the rule is applied.
	rule   *compiledRule
	view   View
	answer answer
}

// complete answers POST /v1/chat/completions.
func (s *Server) complete(w http.ResponseWriter, r *http.Request) {
	started := s.clock.Now()
	x := &exchange{server: s, w: w, r: r, rules: s.rules.Load()}
	body, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if readErr != nil {
		body = nil // an incomplete body is useless
	}
	decodeErr := json.Unmarshal(body, &x.req)
	x.entry = s.recorder.begin(newRequest(s.clock.Now(), r, body, &x.req, x.rules.authorized(r)))
	defer x.end(r.Context(), started)
	w.Header().Set("X-Request-Id", "req_fake_"+strconv.FormatInt(x.entry.request.Number, 10))

	if x.refuseInvalid(readErr, decodeErr) {
		return
	}
	x.view = newView(x.entry.request.Number, &x.req)
	x.rule = x.rules.match(x.view)
	x.entry.setRule(x.rule.index)
	x.serve()
}

// newRequest returns the record of a request. It leaves out the headers that carry credentials.
func newRequest(now time.Time, r *http.Request, body []byte, req *completionRequest, authorized bool) *Request {
	header := r.Header.Clone()
	header.Del("Authorization")
	header.Del("Proxy-Authorization")
	kept := json.RawMessage(body)
	if !json.Valid(body) {
		kept, _ = json.Marshal(string(body)) // encoding a string cannot fail
	}
	var format ResponseFormat
	if req.ResponseFormat != nil {
		format = req.ResponseFormat.Type
	}
	return &Request{
		Received: now, Authorized: authorized, Header: header, ClientRequestID: header.Get("X-Client-Request-Id"), Body: kept,
		Model: req.Model, Stream: req.Stream, ResponseFormat: format, Rule: -1,
	}
}

// refuseInvalid checks a request in the order of a real server. If the request is invalid, it sends an error and
// returns true; the request then reaches no rule.
func (x *exchange) refuseInvalid(readErr, decodeErr error) bool {
	invalid, tooLong := x.req.invalid(), x.rules.tooLong(&x.req)
	tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](readErr)
	badRequest := wireError{Type: typeInvalidRequest}
	switch {
	case isTooLarge:
		badRequest.Message = "The request is larger than " + strconv.FormatInt(tooLarge.Limit, 10) + " bytes."
		x.fail(OutcomeInvalidRequest, http.StatusRequestEntityTooLarge, badRequest)
	case readErr != nil:
		x.finish(OutcomeCancelled)
	case !x.rules.authorized(x.r):
		x.fail(OutcomeUnauthorized, http.StatusUnauthorized, usualError(http.StatusUnauthorized))
	case decodeErr != nil:
		badRequest.Message = "The body is not a valid request: " + decodeErr.Error() + "."
		x.fail(OutcomeInvalidRequest, http.StatusBadRequest, badRequest)
	case invalid != nil:
		x.fail(OutcomeInvalidRequest, http.StatusBadRequest, *invalid)
	case !x.rules.serves(x.req.Model):
		x.fail(OutcomeUnknownModel, http.StatusNotFound, unknownModel(x.req.Model))
	case tooLong != nil:
		x.fail(OutcomeInvalidRequest, http.StatusBadRequest, *tooLong)
	default:
		return false
	}
	return true
}

// serve applies the rule.
func (x *exchange) serve() {
	fault := x.rule.Fault
	err := x.computeReply() // before the pause, so that a reply is billed even if the client leaves during the pause
	if !x.pause(fault.LatencyMilliseconds) {
		return
	}
	switch {
	case fault.isError():
		x.failWithFault(fault)
		return
	case fault.Hang != "":
		x.hang(fault.Hang)
		return
	case fault.Rubbish != "":
		x.rubbish(fault.Rubbish)
		return
	}
	if err != nil {
		x.fail(OutcomeFailed, http.StatusInternalServerError, wireError{
			Type: typeServer, Message: "The fake model's rule " + strconv.Itoa(x.rule.index) + " failed: " + err.Error() + ".",
		})
		return
	}
	switch {
	case x.embeds != nil:
		x.respondVectors()
	case x.req.Stream:
		x.stream()
	default:
		x.respond()
	}
}

// computeReply computes the answer and bills it. It does nothing if the rule's fault replaces the reply.
func (x *exchange) computeReply() error {
	if !x.rule.Fault.hasReply() {
		return nil
	}
	if x.embeds != nil {
		x.answer.usage.PromptTokens = x.req.promptTokens()
		x.entry.bill(x.answer.usage)
		return nil
	}
	var err error
	if x.answer, err = x.rule.answer(x.view, &x.req); err != nil {
		return err
	}
	x.entry.bill(x.answer.usage)
	return nil
}

// respond sends the whole answer in one JSON body.
func (x *exchange) respond() {
	fault, finish := x.rule.Fault, &x.answer.finish
	if fault.EndWithoutFinish {
		finish = nil
	}
	body := x.envelope("chat.completion")
	message := &replyMessage{Role: "assistant", Content: x.answer.text, Annotations: []struct{}{}, ToolCalls: x.answer.calls}
	message.setReasoning(x.rule.Reply.ReasoningField, x.answer.reasoning)
	body.Choices = []wireChoice{{Message: message, FinishReason: finish}}
	body.Usage = x.answer.usage.raw()
	switch {
	case fault.CutAfterChunks != nil:
		x.cutBody(body)
	case x.r.Context().Err() != nil:
		x.finish(OutcomeCancelled)
	case fault.EndWithoutFinish:
		x.finish(OutcomeUnfinished)
		writeJSON(x.w, http.StatusOK, body)
	default:
		x.finish(OutcomeAnswered)
		if err := sendJSON(x.w, http.StatusOK, body); err != nil {
			x.entry.setUndelivered()
		}
	}
}

// envelope returns the fields that all responses and chunks of one request share.
func (x *exchange) envelope(object string) completion {
	return completion{
		ID: "chatcmpl-fake-" + strconv.FormatInt(x.entry.request.Number, 10), Object: object,
		Created: x.entry.request.Received.Unix(), Model: x.req.Model,
		ServiceTier: "default", SystemFingerprint: "fp_fakemodel", Choices: []wireChoice{},
	}
}

// fail ends the request with an error body.
func (x *exchange) fail(outcome Outcome, status int, e wireError) {
	x.finish(outcome)
	writeError(x.w, status, e)
}

// pause waits this long and reports whether the exchange continues. If the client disconnects, pause finishes the
// request and returns false. If the server is closed, pause finishes the request and aborts the response.
func (x *exchange) pause(milliseconds int) bool {
	if milliseconds == 0 {
		return true
	}
	timer := x.server.clock.NewTimer(time.Duration(milliseconds) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-x.r.Context().Done():
		x.finish(OutcomeCancelled)
		return false
	case <-x.server.closed:
		x.finish(OutcomeReleased)
		panic(http.ErrAbortHandler)
	}
}

func (x *exchange) finish(outcome Outcome) { x.entry.finish(outcome, x.answer.usage) }

// end logs one line for the request, with sizes and names but without texts. If the request has no outcome because
// its handler has panicked, end records OutcomeFailed.
func (x *exchange) end(ctx context.Context, started time.Time) {
	x.finish(OutcomeFailed) // changes nothing if the request has an outcome
	request := x.entry.request
	x.server.log.LogAttrs(ctx, slog.LevelInfo, "Served completion",
		slog.Int64("request", request.Number),
		slog.String("model", request.Model),
		slog.Bool("stream", request.Stream),
		slog.Int("rule", request.Rule),
		slog.String("outcome", string(request.Outcome)),
		slog.Int("promptTokens", x.answer.usage.PromptTokens),
		slog.Int("completionTokens", x.answer.usage.CompletionTokens),
		slog.Duration("took", x.server.clock.Since(started)),
	)
}

// estimateTokens counts four characters as one token, rounded up.
func estimateTokens(texts ...string) int {
	chars := 0
	for _, text := range texts {
		chars += utf8.RuneCountInString(text)
	}
	return (chars + charsPerToken - 1) / charsPerToken
}
