package endpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// payload holds the body of a request.
type payload struct {
	// body is nil after apply. The HTTP request then holds the body until it is sent, but not while the endpoint
	// answers, which may take long. If a connection was already closed when the request was sent, again makes the body
	// a second time.
	body  []byte
	again func() ([]byte, error)
	// begun is true once a part of the body was sent. sent is the time at which all of it was sent, or nil.
	begun atomic.Bool
	sent  atomic.Pointer[time.Time]
}

// apply sets the body of a request, whose headers must be set already.
func (s *payload) apply(out *http.Request) {
	out.ContentLength = int64(len(s.body))
	if !mayBeRepeated(out.Header) {
		out.GetBody = func() (io.ReadCloser, error) {
			body, err := s.again()
			return &requestBody{rest: body, payload: s}, err
		}
	}
	out.Body, s.body = &requestBody{rest: s.body, payload: s}, nil
}

// mayBeRepeated reports whether net/http would repeat a request with these headers, and with GetBody, over HTTP/1
// although all of it was sent: see the documentation of http.Transport. The endpoint may bill both requests. Over
// HTTP/2, netpolicy.Bounded prevents this.
func mayBeRepeated(h http.Header) bool {
	_, current := h["Idempotency-Key"]
	_, older := h["X-Idempotency-Key"]
	return current || older
}

// hasBegun reports whether a part of the body was sent, even if a later attempt could not connect.
func (s *payload) hasBegun() bool { return s != nil && s.begun.Load() }

// sinceSent returns the time since the body was sent, and whether it was sent.
func (s *payload) sinceSent() (time.Duration, bool) {
	if s == nil {
		return 0, false
	}
	sentAt := s.sent.Load()
	if sentAt == nil {
		return 0, false
	}
	return time.Since(*sentAt), true
}

// hasWaited reports whether the body was sent so long ago that the endpoint may have worked: see unbilled.
func (s *payload) hasWaited() bool {
	since, _ := s.sinceSent()
	return since > unbilled
}

// requestBody is the body of a request. It drops its bytes once all of them were read, and notes in the payload that it
// was read: net/http begins to read a body after it has made the connection.
type requestBody struct {
	rest    []byte
	payload *payload
}

// Read returns the next bytes.
func (c *requestBody) Read(p []byte) (int, error) {
	n := copy(p, c.rest)
	c.payload.begun.Store(true)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
		c.payload.sent.Store(new(time.Now())) //nolint:forbidigo // because a duration is measured, not a time of day
		return n, io.EOF
	}
	return n, nil
}

// Close does nothing. It may be called during Read.
func (c *requestBody) Close() error { return nil }

// encode returns the body that is sent for a request.
func encode(ctx context.Context, req *model.Request, p Protocol) (*payload, error) {
	body, err := bodyOf(ctx, req, p)
	if err != nil {
		return nil, err
	}
	return &payload{body: body, again: func() ([]byte, error) { return bodyOf(ctx, req, p) }}, nil
}

// bodyOf returns the body of a request with the contents of its attachments.
func bodyOf(ctx context.Context, req *model.Request, p Protocol) ([]byte, error) {
	bytes := 0
	for i := range req.Messages {
		bytes += len(req.Messages[i].Content)
	}
	contents := Contents{request: req}
	done := fairgate.AcquireProcessor(ctx, bytes)
	body, err := p.Body(req, &contents)
	done()
	if err != nil {
		return nil, err
	}
	return contents.insert(ctx, body)
}

// Unsendable returns the failure of a request that no endpoint could read.
func Unsendable(format string, args ...any) *model.Error {
	return &model.Error{Kind: model.InvalidRequest, Unsent: true, Message: "the request cannot be sent: " + fmt.Sprintf(format, args...)}
}

// WithExtra adds the extra fields to a body, in the given order. The body must be a JSON object that is not empty.
func WithExtra(body []byte, extra ...[]model.ExtraField) ([]byte, error) {
	for _, f := range slices.Concat(extra...) {
		if !json.Valid([]byte(f.Value)) {
			return nil, Unsendable("the value of the extra field %q is not JSON: correct it in extraFields", f.Name)
		}
		name, err := json.Marshal(f.Name)
		if err != nil {
			return nil, err
		}
		body = fmt.Appendf(body[:len(body)-1], ",%s:%s}", name, f.Value)
	}
	return body, nil
}

// CheckExtra returns the first extra field of a request that cannot be sent, or nil. The name of an extra field must
// not be that of a field that the configuration of the endpoint adds, or that the adapter sends.
func CheckExtra(fields, ofEndpoint []model.ExtraField, sent ...string) *model.Unsupported {
	for _, f := range fields {
		switch {
		case !json.Valid([]byte(f.Value)):
			return &model.Unsupported{Parameter: "extraFields", Problem: fmt.Sprintf("the value of %q is not JSON: correct it", f.Name)}
		case hasField(ofEndpoint, f.Name):
			return &model.Unsupported{Parameter: "extraFields", Problem: fmt.Sprintf(
				"the ModelProvider sets %q in requests.extraFields: remove one of them", f.Name)}
		case slices.ContainsFunc(sent, func(name string) bool { return strings.EqualFold(name, f.Name) }):
			return &model.Unsupported{Parameter: "extraFields", Problem: fmt.Sprintf(
				"Capstan sends the field %q itself: remove it from extraFields, and use the parameter for it if there is one", f.Name)}
		}
	}
	return nil
}

// CheckField returns why a parameter cannot be sent as a field, or nil. The configuration of the endpoint must not add
// a field with this name.
func CheckField(parameter, field string, ofEndpoint []model.ExtraField) *model.Unsupported {
	if !hasField(ofEndpoint, field) {
		return nil
	}
	return &model.Unsupported{Parameter: parameter, Problem: fmt.Sprintf(
		"the ModelProvider sets %q in requests.extraFields: remove one of them", field)}
}

func hasField(fields []model.ExtraField, name string) bool {
	return slices.ContainsFunc(fields, func(f model.ExtraField) bool { return strings.EqualFold(f.Name, name) })
}
