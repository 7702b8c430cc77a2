package mcp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// unreservedBytes is how many bytes of a response are read without a memory reservation.
const unreservedBytes = 4 << 10

// readAll reads the body of a response. The error is errTooLong, errSlow, an error of reading, or an error of reserving
// memory.
func (s *stream) readAll(resp *http.Response) ([]byte, error) {
	size := int64(MaxResponseBytes)
	if resp.ContentLength > size {
		return nil, errTooLong
	}
	if resp.ContentLength > 0 {
		size = resp.ContentLength
	}
	in := paced{io.LimitReader(fairgate.Pace(s.ctx, resp.Body), MaxResponseBytes+1), s.ex}
	for body, reserved := make([]byte, 0, min(unreservedBytes, size)), false; ; {
		n, err := in.Read(body[len(body):cap(body)])
		switch body = body[:len(body)+n]; {
		case len(body) > MaxResponseBytes:
			return nil, errTooLong
		case err == io.EOF, int64(len(body)) == resp.ContentLength: //nolint:errorlint // because a body returns it unwrapped
			return body, nil
		case err != nil:
			return nil, s.readError(err)
		case len(body) < cap(body):
			continue
		}
		capacity := 2 * int64(cap(body))
		if capacity >= size {
			capacity = size
			if resp.ContentLength <= 0 {
				capacity++ // for the byte that shows that the response is too long
			}
		}
		if !reserved {
			if reserved, err = s.ex.reserve(s.ctx, s.wire, capacity, size, s.cancel); err != nil {
				return nil, err
			}
		}
		if reserved && resp.ContentLength > 0 {
			capacity = size
		}
		body = append(make([]byte, 0, capacity), body...) // append alone could allocate more than is reserved
	}
}

// presence says whether a JSON message has a member, and whether the member is null. Its value is not copied.
type presence int

const (
	isAbsent presence = iota
	isNull
	hasValue
)

// UnmarshalJSON implements json.Unmarshaler.
func (p *presence) UnmarshalJSON(data []byte) error {
	if *p = hasValue; string(data) == "null" {
		*p = isNull
	}
	return nil
}

// envelope is the part of a JSON-RPC message that says what the message is.
type envelope struct {
	Version string    `json:"jsonrpc"`
	RawID   messageID `json:"id"`
	Method  string    `json:"method"`
	Result  presence  `json:"result"`
	Error   presence  `json:"error"`

	id jsonrpc.ID
}

// decodeEnvelope decodes the envelope of a message. The messages of one namespace must not occupy all processors. So
// for a large message, decodeEnvelope first waits until it is the turn of the namespace. The error is errProtocol.
func decodeEnvelope(ctx context.Context, message []byte) (m envelope, err error) {
	defer fairgate.AcquireProcessor(ctx, len(message))()
	if err = json.Unmarshal(message, &m); err != nil || m.Version != "2.0" {
		return m, errProtocol
	}
	if m.id, err = jsonrpc.MakeID(m.RawID.value); err != nil || m.Method == "" && !m.id.IsValid() && !m.isErrorWithoutID() {
		return m, errProtocol
	}
	return m, nil
}

// isErrorWithoutID reports whether the message is an error without the ID of a request. JSON-RPC requires that for a
// request that the server could not read. Some servers leave the ID out of all errors (helidon-io/helidon-mcp#65).
func (m *envelope) isErrorWithoutID() bool {
	return m.Method == "" && !m.id.IsValid() && m.Error == hasValue && m.Result != hasValue
}

// isMeantFor reports whether a message that does not follow the protocol seems to be the response to a request.
func (m *envelope) isMeantFor(call jsonrpc.ID) bool {
	id, err := jsonrpc.MakeID(m.RawID.value)
	return err == nil && isSameID(id, call) && m.Method == "" && (m.Result != isAbsent || m.Error != isAbsent)
}

// isSameID reports whether the ID of a message from a server is that of a request. It may be the number of the request
// as a text: some servers send that (modelcontextprotocol/python-sdk#1720). No other request can be meant, because the
// IDs of a session's requests for which it waits are different numbers.
func isSameID(id, call jsonrpc.ID) bool {
	if id == call {
		return true
	}
	number, isNumber := call.Raw().(int64)
	return isNumber && id.Raw() == strconv.FormatInt(number, 10)
}

// answers reports whether the message, which arrived in answer to a request, is the response to it: it has a result,
// which may be null, or an error. Some servers send both members, and null for the one that does not apply. An error
// without an ID is the response, too, because the HTTP request contained only this request.
func (m *envelope) answers(call jsonrpc.ID) bool {
	if m.isErrorWithoutID() {
		return true
	}
	if m.Method != "" || !isSameID(m.id, call) {
		return false
	}
	if m.Error == hasValue {
		return m.Result != hasValue
	}
	return m.Result != isAbsent
}
