package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/capstan-dev/capstan/internal/bytebudget"
)

// exchange records the progress and the response of one request.
type exchange struct {
	// whole means that the SDK gets the response, without its large members: see reduce. Otherwise the SDK gets an
	// empty response, because the exchange keeps the real one.
	whole bool
	// cursor is the page that a request for tools asks for: see sendCursor.
	cursor string
	// headers are added to the request.
	headers http.Header
	// sent is true if the request may have reached the server.
	sent atomic.Bool

	mu       sync.Mutex
	response []byte
	// withoutID means that the response is an error without the ID of the request: see envelope.isErrorWithoutID.
	withoutID bool
	// failure is the reason for a missing response, if the SDK does not report it.
	failure error
	// small is the reservation for a small response, and large is the reservation for a large one. ended is true after
	// the caller has released them for good.
	ended bool
	small *bytebudget.Reservation
	large *reservation
}

type exchangeKey struct{}

// withExchange returns a context for a request whose progress and response are recorded in ex. The caller must free ex
// when it no longer needs the response.
func withExchange(ctx context.Context, ex *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, ex)
}

// exchangeOf returns the exchange of a context. For a context without one, it returns a new exchange that passes the
// whole response on to the SDK. This exchange has ended: nothing would release memory, so the response must be small.
func exchangeOf(ctx context.Context) *exchange {
	if ex, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return ex
	}
	return &exchange{whole: true, ended: true}
}

func (ex *exchange) keep(response []byte, withoutID bool) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.response, ex.withoutID = response, withoutID
	if ex.large != nil {
		ex.large.stopChecks()
	}
}

func (ex *exchange) fail(cause error) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.failure = cause
}

// cause returns the reason for a missing response: the recorded one, or else err.
func (ex *exchange) cause(err error) error {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.failure != nil {
		return ex.failure
	}
	return err
}

// decode decodes the result of the response, or returns the error in the response. It fails with errBroken if there
// is no response.
func (ex *exchange) decode(result any) (*jsonrpc.Error, error) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.response == nil {
		return nil, errBroken
	}
	answer := struct {
		Result any             `json:"result"`
		Error  json.RawMessage `json:"error"`
	}{Result: result}
	switch err := json.Unmarshal(ex.response, &answer); {
	case errors.Is(err, errElements):
		return nil, errElements
	case err != nil:
		return nil, errProtocol
	}
	if len(answer.Error) == 0 || string(answer.Error) == "null" {
		return nil, nil //nolint:nilnil // because the response is a result
	}
	reason, _ := readError(answer.Error)
	return reason, nil
}

// hasNoID reports whether the response is an error without the ID of the request.
func (ex *exchange) hasNoID() bool {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	return ex.withoutID
}

// size returns the size of the response in bytes.
func (ex *exchange) size() int {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	return len(ex.response)
}

// stub returns the message that the SDK gets as the response to the request with the ID. m is the envelope of the
// response.
func (ex *exchange) stub(id jsonrpc.ID, m *envelope, response []byte) []byte {
	if ex.whole && m.Error == hasValue {
		if reason, err := ex.decode(nil); err == nil && reason != nil {
			return encoded(&jsonrpc.Response{ID: id, Error: reason}, response)
		}
	}
	if ex.whole {
		reduced := reduce(response)
		if m.id != id { // the SDK accepts only the same ID
			reduced = withID(reduced, id.Raw())
		}
		return reduced
	}
	return encoded(&jsonrpc.Response{ID: id, Result: json.RawMessage(`{"content":[],"tools":[]}`)}, response)
}

// encoded returns a message as JSON, or another text if that fails.
func encoded(message *jsonrpc.Response, otherwise []byte) []byte {
	data, err := jsonrpc.EncodeMessage(message)
	if err != nil {
		return otherwise
	}
	return data
}
