// Package span identifies the parts of a Turn in distributed traces, in the form of the W3C Trace Context. The IDs of
// spans follow from the UID of the Turn, so each run and each executor finds the same IDs, and nothing must be stored
// to connect the parts of a Turn that was interrupted. The ID of the trace follows from an annotation or the UID. On
// the command line, a random seed in the journal takes the place of the UID, because Turns may have the same UID there.
package span

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Header is the name of the HTTP header that carries a Context.
const Header = "traceparent"

// Annotation is the annotation of a Turn that carries the Context of its caller, in the form of the header.
const Annotation = "capstan.dev/traceparent"

// TraceID is the ID of a trace. The zero value is invalid.
type TraceID [16]byte

// ID is the ID of a span. The zero value is invalid.
type ID [8]byte

// String returns the 32 hexadecimal digits of the ID.
func (t TraceID) String() string { return hex.EncodeToString(t[:]) }

// String returns the 16 hexadecimal digits of the ID.
func (s ID) String() string { return hex.EncodeToString(s[:]) }

// Context identifies one span. The zero value is invalid.
type Context struct {
	TraceID TraceID
	SpanID  ID
	// Sampled is true if the span is recorded.
	Sampled bool
}

// IsValid reports whether both IDs are valid.
func (c Context) IsValid() bool { return c.TraceID != TraceID{} && c.SpanID != ID{} }

// String returns the value of the header.
func (c Context) String() string {
	flags := "-00"
	if c.Sampled {
		flags = "-01"
	}
	return "00-" + c.TraceID.String() + "-" + c.SpanID.String() + flags
}

// The lengths of the parts of a header, in characters.
const (
	traceDigits = 32
	spanDigits  = 16
	// headerLength is the length of a header of version 00, and the minimum of later versions.
	headerLength = 2 + 1 + traceDigits + 1 + spanDigits + 1 + 2
	// maxHeader is the maximum length of a header of a later version.
	maxHeader = 128
)

// Parse returns the Context in the value of a header. ok is false if the value is not valid: the W3C Trace Context
// requires that such a value is ignored. A value of a later version may have further parts, which are ignored.
func Parse(value string) (c Context, ok bool) {
	if len(value) < headerLength || len(value) > maxHeader ||
		len(value) > headerLength && (value[headerLength] != '-' || value[:2] == "00") {
		return Context{}, false
	}
	parts := strings.Split(value[:headerLength], "-")
	if len(parts) != 4 || parts[0] == "ff" {
		return Context{}, false
	}
	var version, flags [1]byte
	for i, into := range [][]byte{version[:], c.TraceID[:], c.SpanID[:], flags[:]} {
		if len(parts[i]) != 2*len(into) || strings.ToLower(parts[i]) != parts[i] {
			return Context{}, false
		}
		if _, err := hex.Decode(into, []byte(parts[i])); err != nil {
			return Context{}, false
		}
	}
	c.Sampled = flags[0]&1 == 1
	return c, c.IsValid()
}

// ParseTraceID returns the ID with these 32 hexadecimal digits. ok is false if the text is not a valid ID.
func ParseTraceID(text string) (id TraceID, ok bool) {
	if len(text) != traceDigits {
		return TraceID{}, false
	}
	if _, err := hex.Decode(id[:], []byte(text)); err != nil {
		return TraceID{}, false
	}
	return id, id != TraceID{}
}

// TraceIDOf returns the ID of the trace of a Turn that has no caller. Turns with the same UID have the same ID.
func TraceIDOf(uid string) (id TraceID) {
	sum := sha256.Sum256([]byte("trace\x00" + uid))
	copy(id[:], sum[:])
	return id
}

// TraceOf returns the ID of the trace of a Turn: the one in its annotation, or TraceIDOf(uid) if the annotation is
// invalid or empty.
func TraceOf(annotation, uid string) TraceID {
	if c, ok := Parse(annotation); ok {
		return c.TraceID
	}
	return TraceIDOf(uid)
}

// Kept returns the annotation of a Turn that carries a valid Context, or nil if there is none.
func Kept(annotations map[string]string) map[string]string {
	value := annotations[Annotation]
	if _, ok := Parse(value); !ok {
		return nil
	}
	return map[string]string{Annotation: value}
}

// IDOf returns the ID of a part of a Turn. seed is the UID of the Turn, or the text that takes its place. key
// identifies the part within the Turn; the key of the Turn itself is empty.
func IDOf(seed, key string) (id ID) {
	sum := sha256.Sum256([]byte("span\x00" + seed + "\x00" + key))
	copy(id[:], sum[:])
	return id
}

type contextKey struct{}

// With returns a context for a request or a call that belongs to a span. Adapters send the header that HeaderOf
// returns.
func With(ctx context.Context, c Context) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// HeaderOf returns the value of the header for a request. It is empty if the request belongs to no span.
func HeaderOf(ctx context.Context) string {
	if c, ok := ctx.Value(contextKey{}).(Context); ok && c.IsValid() {
		return c.String()
	}
	return ""
}
