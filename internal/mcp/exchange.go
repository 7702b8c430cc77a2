package mcp

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// exchange is what is noted of one request on its way.
type exchange struct {
	// whole hands the answer on to the SDK as it is; otherwise it gets an empty one, since the answer is kept here.
	whole bool
	// sent is true when the request may have reached the server.
	sent atomic.Bool

	mu       sync.Mutex
	response []byte
	// cut is why there is no response, where the SDK would not say.
	cut error
	// owned says that somebody frees what is held, the room of a large answer, and ended that this was done for good.
	owned, ended bool
	held         *held
}

type exchangeKey struct{}

// withExchange has what becomes of a request be noted. The caller frees the exchange when it is done with the answer.
func withExchange(ctx context.Context, ex *exchange) context.Context {
	ex.owned = true
	return context.WithValue(ctx, exchangeKey{}, ex)
}

func exchangeOf(ctx context.Context) *exchange {
	if ex, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return ex
	}
	return &exchange{whole: true}
}

func (ex *exchange) keep(response []byte) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.response = response
	if ex.held != nil {
		ex.held.arrived()
	}
}

func (ex *exchange) fail(cause error) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.cut = cause
}

// cause is why there is no response: what was noted, else what the SDK says.
func (ex *exchange) cause(err error) error {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.cut != nil {
		return ex.cut
	}
	return err
}

// decode decodes the result of the response, or returns the error that the server has answered with. Without a response
// it fails with errBroken.
func (ex *exchange) decode(result any) (*jsonrpc.Error, error) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.response == nil {
		return nil, errBroken
	}
	answer := struct {
		Result any            `json:"result"`
		Error  *jsonrpc.Error `json:"error"`
	}{Result: result}
	if err := json.Unmarshal(ex.response, &answer); err != nil {
		return nil, errProtocol
	}
	return answer.Error, nil
}

// size of the response, in bytes.
func (ex *exchange) size() int {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	return len(ex.response)
}

// stub is the message that the SDK gets for a response.
func (ex *exchange) stub(id jsonrpc.ID, response []byte) []byte {
	if ex.whole {
		return response
	}
	stub, err := jsonrpc.EncodeMessage(&jsonrpc.Response{ID: id, Result: json.RawMessage(`{"content":[],"tools":[]}`)})
	if err != nil {
		return response
	}
	return stub
}
