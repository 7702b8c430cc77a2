package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"golang.org/x/sync/semaphore"
)

const (
	// freeBytes of an answer are read without asking; of what is longer, largeBytes may be read at a time in the process.
	freeBytes  = 256 << 10
	largeBytes = 32 << 20
	// largeTimeout bounds the time in which a large answer comes in: others wait for its room.
	largeTimeout = time.Minute
)

// large are the bytes of large answers that are being read and decoded in this process.
var large = semaphore.NewWeighted(largeBytes)

// hold waits for room for an answer of at most so many bytes. It is given back by free, which the owner of the exchange calls when
// the answer is decoded. What comes in too slowly is cut off.
func (ex *exchange) hold(ctx context.Context, size int64, cut context.CancelCauseFunc) error {
	ex.mu.Lock()
	held := ex.held > 0 || !ex.owned
	ex.mu.Unlock()
	if held {
		return nil
	}
	if err := large.Acquire(ctx, size); err != nil {
		return err
	}
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.held = size
	ex.slow = time.AfterFunc(largeTimeout, func() { cut(errBroken) })
	return nil
}

// free gives the room back.
func (ex *exchange) free() {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.held > 0 {
		ex.slow.Stop()
		large.Release(ex.held)
		ex.held = 0
	}
}

// readAll reads the body of an answer. Its error is errTooLong, or that of reading.
func (s *stream) readAll(resp *http.Response) ([]byte, error) {
	var body bytes.Buffer
	_, err := io.CopyN(&body, resp.Body, freeBytes)
	if err == io.EOF { //nolint:errorlint // because io.CopyN returns it as it is
		return body.Bytes(), nil
	}
	if err != nil {
		return nil, err
	}
	size := int64(MaxResponseBytes)
	if resp.ContentLength > size {
		return nil, errTooLong
	}
	if resp.ContentLength > 0 {
		size = resp.ContentLength
	}
	if err := s.ex.hold(s.ctx, size, s.cancel); err != nil {
		return nil, err
	}
	if resp.ContentLength > 0 {
		body.Grow(int(size) - body.Len() + bytes.MinRead)
	}
	if _, err := body.ReadFrom(io.LimitReader(resp.Body, MaxResponseBytes+1-freeBytes)); err != nil {
		return nil, err
	}
	if body.Len() > MaxResponseBytes {
		return nil, errTooLong
	}
	return body.Bytes(), nil
}

// present is a member of a message that is there, whatever it says: it is not copied.
type present bool

// UnmarshalJSON takes note of it.
func (p *present) UnmarshalJSON([]byte) error {
	*p = true
	return nil
}

// isResponse says whether a message is the response to a request.
func isResponse(message []byte, call jsonrpc.ID) bool {
	var m struct {
		Version string  `json:"jsonrpc"`
		ID      any     `json:"id"`
		Method  present `json:"method"`
		Result  present `json:"result"`
		Error   present `json:"error"`
	}
	if err := json.Unmarshal(message, &m); err != nil || m.Version != "2.0" || bool(m.Method) || m.Result == m.Error {
		return false
	}
	id, err := jsonrpc.MakeID(m.ID)
	return err == nil && id == call
}
