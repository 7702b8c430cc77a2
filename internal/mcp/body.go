package mcp

import (
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
	in := paced{io.LimitReader(resp.Body, MaxResponseBytes+1), s.ex}
	for body, reserved := make([]byte, 0, min(unreservedBytes, size)), false; ; {
		n, err := in.Read(body[len(body):cap(body)])
		switch body = body[:len(body)+n]; {
		case len(body) > MaxResponseBytes:
			return nil, errTooLong
		case err == io.EOF, int64(len(body)) == resp.ContentLength: //nolint:errorlint // because a body returns it unwrapped
			return body, nil
		case err != nil:
			return nil, s.tooSlow(err)
		case len(body) < cap(body):
			continue
		}
		room := 2 * int64(cap(body))
		if room >= size {
			room = size
			if resp.ContentLength <= 0 {
				room++ // the byte that shows that the response is too long
			}
		}
		if !reserved {
			if reserved, err = s.ex.reserve(s.ctx, s.wire, room, size, s.cancel); err != nil {
				return nil, err
			}
		}
		if reserved && resp.ContentLength > 0 {
			room = size
		}
		body = append(make([]byte, 0, room), body...) // append alone could make more room than is reserved
	}
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
	defer fairgate.AcquireProcessor(ctx, len(message))()
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
