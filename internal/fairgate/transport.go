package fairgate

import (
	"net/http"
	"strings"
)

// Writes to the API server that are under way at once. They are few: what is under way takes the API server's processors from what comes
// next. A write takes about 5 to 15 milliseconds, so that a namespace beside others still has hundreds in a second.
const (
	writesAtOnce      = 16
	writesOfNamespace = 3
)

// Writes returns a gate for writes to the API server: see Wrap.
func Writes() *Gate { return New(writesAtOnce, writesOfNamespace) }

// Prepared returns a gate for what is about to be written, which is made only behind it: a write that waits at the gate of Writes has an
// object and its encoding, and that of a Turn takes about 10 KiB. It lets in four times as many as Writes, so that one always waits there.
func Prepared() *Gate { return New(4*writesAtOnce, 4*writesOfNamespace) }

// Wrap returns a transport to the API server, as rest.Config.Wrap wants it, whose writes pass the gate, so that namespaces take turns. They
// wait here and not in the API server, which takes a manager for one user and serves what it sends in the order in which it comes. Reads do
// not wait, nor do Leases, whose holders must not lose them because others are busy, nor what belongs to no namespace.
func (g *Gate) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{next: next, gate: g} }

type transport struct {
	next http.RoundTripper
	gate *Gate
}

// RoundTrip sends a request, a write when it is its namespace's turn. A write is over when the API server has begun to answer.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	namespace := writtenNamespace(r)
	if namespace == "" {
		return t.next.RoundTrip(r)
	}
	if err := t.gate.Enter(r.Context(), namespace); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as RoundTrip must; nothing was read from it
		}
		return nil, err
	}
	defer t.gate.Leave(namespace)
	return t.next.RoundTrip(r)
}

// WrappedRoundTripper lets client-go find the transport within.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// writtenNamespace returns the namespace that a request writes to; empty for a request that need not wait. A path is
// /api/v1/namespaces/NAMESPACE/RESOURCE/… or /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/…
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
