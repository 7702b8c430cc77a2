package fairgate

import (
	"net/http"
	"strings"
)

// The bounds for concurrent writes to the API server. They are small, because concurrent writes compete for the API
// server's processors. A write takes about 5 to 15 milliseconds, so a busy namespace that shares the gate with others
// can still make hundreds of writes per second. If the API server is busy and a write takes 100 milliseconds, even a
// namespace with a few Turns per second needs more than writesOfNamespace writes at a time, and the gate admits them:
// see New.
const (
	writesAtOnce      = 16
	writesOfNamespace = 3
)

// NewWriteGate returns a gate for writes to the API server: see Wrap.
func NewWriteGate() *Gate { return New(writesAtOnce, writesOfNamespace) }

// NewPreWriteGate returns a gate that a goroutine must enter before it creates an object to write. This limits memory,
// because a write that waits at the gate of NewWriteGate holds its object and the encoding, about 10 KiB for a Turn.
// NewPreWriteGate admits four times as many writes as NewWriteGate, so that the write gate always has a next write.
func NewPreWriteGate() *Gate { return New(4*writesAtOnce, 4*writesOfNamespace) }

// Wrap returns a transport to the API server, for rest.Config.Wrap, whose writes pass the gate, so that namespaces take
// turns. The writes wait here because the API server treats a manager as one user and serves its requests in the order
// of their arrival. Three kinds of requests do not wait: reads, writes of objects without a namespace, and writes of
// Leases, because a busy namespace must not cause the loss of a Lease.
func (g *Gate) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{next: next, gate: g} }

type transport struct {
	next http.RoundTripper
	gate *Gate
}

// RoundTrip sends a request; a write first passes the gate. A write ends when the API server begins to answer.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	namespace := writtenNamespace(r)
	if namespace == "" {
		return t.next.RoundTrip(r)
	}
	if err := t.gate.Enter(r.Context(), namespace); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // required of RoundTrip; nothing was read from it
		}
		return nil, err
	}
	defer t.gate.Leave(namespace)
	return t.next.RoundTrip(r)
}

// WrappedRoundTripper returns the wrapped transport, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// writtenNamespace returns the namespace that a request writes to, or an empty string if the request need not wait. A
// path is /api/v1/namespaces/NAMESPACE/RESOURCE/… or /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/…
func writtenNamespace(r *http.Request) string {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return ""
	}
	_, path, ok := strings.Cut(r.URL.Path, "/namespaces/")
	if !ok {
		return ""
	}
	namespace, resource, ok := strings.Cut(path, "/")
	if !ok || resource == "leases" || strings.HasPrefix(resource, "leases/") {
		return ""
	}
	return namespace
}
