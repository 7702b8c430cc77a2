package server

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
)

// failWithFault answers with the error that the rule's fault describes.
func (x *exchange) failWithFault(f Fault) {
	status := cmp.Or(f.Status, http.StatusUnauthorized)
	e := usualError(status)
	e.Message = cmp.Or(f.Message, e.Message)
	if f.Code != "" {
		e.Code = &f.Code
	}
	if f.EchoAuthorization {
		e.Message += " The request was sent with Authorization: " + x.r.Header.Get("Authorization")
	}
	if f.RetryAfterSeconds != nil {
		x.w.Header().Set("Retry-After", strconv.Itoa(*f.RetryAfterSeconds))
	}
	x.fail(OutcomeError, status, e)
}

// hang sends at most the headers. It then waits until the client disconnects or the server is closed.
func (x *exchange) hang(at Hang) {
	if at == HangAfterHeaders {
		if x.req.Stream {
			x.startEvents()
		} else {
			x.w.Header().Set("Content-Type", "application/json")
		}
		x.w.WriteHeader(http.StatusOK)
		// If the client has already disconnected, the select below ends immediately.
		_ = http.NewResponseController(x.w).Flush()
	}
	select {
	case <-x.r.Context().Done():
		x.finish(OutcomeCancelled)
	case <-x.server.closed:
		x.finish(OutcomeReleased)
		panic(http.ErrAbortHandler)
	}
}

// rubbish sends a 200 response that no client can parse as an answer.
func (x *exchange) rubbish(kind Rubbish) {
	const (
		brokenJSON = `{"id":"chatcmpl-fake","object":"chat.completion","choices":[{"index":0,`
		prose      = "The quick brown fox jumps over the lazy dog.\nIt does so every day.\n\n"
		page       = "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body><h1>Sign in to the network</h1></body></html>\n"
	)
	body := prose
	if x.req.Stream {
		x.startEvents()
	} else {
		x.w.Header().Set("Content-Type", "application/json")
	}
	switch kind {
	case RubbishNotJSON:
		body = brokenJSON + "\n"
		if x.req.Stream {
			body = "data: " + brokenJSON + "\n\n"
		}
	case RubbishHTML:
		x.w.Header().Set("Content-Type", "text/html; charset=utf-8")
		body = page
	case RubbishNotSSE: // body and the content type are set above
	}
	x.finish(OutcomeRubbish)
	_, _ = x.w.Write([]byte(body))
}

// cut sends everything written so far and closes the connection in the middle of the response.
func (x *exchange) cut() {
	_ = http.NewResponseController(x.w).Flush() // the exchange ends in any case
	x.finish(OutcomeCut)
	panic(http.ErrAbortHandler)
}

// cutBody sends the first half of a response without a stream and then closes the connection.
func (x *exchange) cutBody(body completion) {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err) // the package's own types always encode
	}
	x.w.Header().Set("Content-Type", "application/json")
	x.w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = x.w.Write(data[:len(data)/2])
	x.cut()
}
