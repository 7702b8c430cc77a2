package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// freeBytes of an answer are read without asking for room.
const freeBytes = 256 << 10

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
	if err := s.ex.hold(s.ctx, s.wire.share, s.wire.memory, size, s.cancel); err != nil {
		return nil, err
	}
	if resp.ContentLength > 0 {
		body.Grow(int(size) - body.Len() + bytes.MinRead)
	}
	if _, err := body.ReadFrom(paced{io.LimitReader(resp.Body, MaxResponseBytes+1-freeBytes), s.ex}); err != nil {
		return nil, s.tooSlow(err)
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

// isResponse says whether a message is the response to a request, when it is the turn of the context's namespace to find out.
func isResponse(ctx context.Context, message []byte, call jsonrpc.ID) bool {
	defer fairgate.Large(ctx, len(message))()
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
