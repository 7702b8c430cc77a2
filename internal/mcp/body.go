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

// unreservedBytes is the number of bytes of a response that are read without a memory reservation.
const unreservedBytes = 4 << 10

// readAll reads the body of a response. It returns errTooLong, errSlow or the error of reading.
func (s *stream) readAll(resp *http.Response) ([]byte, error) {
	size := int64(MaxResponseBytes)
	if resp.ContentLength > size {
		return nil, errTooLong
	}
	if resp.ContentLength > 0 {
		size = resp.ContentLength
	}
	var body bytes.Buffer
	in := paced{io.LimitReader(resp.Body, MaxResponseBytes+1), s.ex}
	for known, all := int64(unreservedBytes), false; !all; {
		_, err := io.CopyN(&body, in, known-int64(body.Len()))
		if err == io.EOF { //nolint:errorlint // because io.CopyN returns it unwrapped
			return body.Bytes(), nil
		}
		if err != nil {
			return nil, s.tooSlow(err)
		}
		if int64(body.Len()) == resp.ContentLength {
			return body.Bytes(), nil
		}
		known = min(2*known, max(size, known+1))
		if all, err = s.ex.reserve(s.ctx, s.wire, known, size, s.cancel); err != nil {
			return nil, err
		}
	}
	if resp.ContentLength > 0 {
		body.Grow(max(int(size)-body.Len(), 0) + bytes.MinRead)
	}
	if _, err := body.ReadFrom(in); err != nil {
		return nil, s.tooSlow(err)
	}
	if body.Len() > MaxResponseBytes {
		return nil, errTooLong
	}
	return body.Bytes(), nil
}

// present is a member of a JSON message of which only the presence matters. Its value is not copied.
type present bool

// UnmarshalJSON sets p to true.
func (p *present) UnmarshalJSON([]byte) error {
	*p = true
	return nil
}

// isResponse reports whether a message is the response to a request. It decodes a large message when it is the turn
// of the context's namespace.
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
