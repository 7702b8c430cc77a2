package fairgate

import (
	"net/http"
	"strings"
)

// The bounds for concurrent writes to the API server. They are small, because writes that are under way take the
// API server's processors from the next ones. A write takes about 5 to 15 milliseconds, so a busy namespace beside
// others can still make hundreds of writes in a second. With a busy API server, a write takes 100 milliseconds. Then
// a namespace with a few Turns per second needs more than writesOfNamespace, and the gate lets it have them.
const (
	writesAtOnce      = 16
	writesOfNamespace = 3
)

// NewWriteGate returns a gate for writes to the API server: see Wrap.
func NewWriteGate() *Gate { return New(writesAtOnce, writesOfNamespace) }

// NewPreWriteGate returns a gate for objects that are about to be written. An object must be made only after it has
// passed this gate: a write that waits at the gate of NewWriteGate has its object and the encoding in memory, about 10
// KiB for a Turn. NewPreWriteGate admits four times as many writes as NewWriteGate, so that there is always a write
// that waits there.
func NewPreWriteGate() *Gate { return New(4*writesAtOnce, 4*writesOfNamespace) }

// Wrap returns a transport to the API server, for rest.Config.Wrap, whose writes pass the gate, so that namespaces
// take turns. They wait here because the API server treats a manager as one user and serves its requests in the
// order of their arrival. These requests do not wait: reads; Leases, whose holders must not lose them because
// others are busy; and objects without a namespace.
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

// writtenNamespace returns the namespace that a request writes to, or an empty text if the request need not wait. A
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
