package readapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/webserver"
)

const (
	// mostStreams is the maximum number of requests that are served at the same time, and userStreams that of one user.
	// The requests for the data of one namespace have a share: see gate.
	mostStreams, userStreams = 64, 16
	// mostConnections is the maximum number of connections of each listener. HTTP/1.1 has one request on each.
	mostConnections = 2 * mostStreams
	// mostLarge is the maximum number of artifacts in memory at the same time, and userLarge that of one user.
	mostLarge, userLarge = 4, 2
	// largeWait is how long a request waits for memory for an artifact.
	largeWait = 5 * time.Second
	// largeGrace and slowest, in bytes per second, limit how long an artifact stays in memory for a slow reader: see
	// largeTime.
	largeGrace = 10 * time.Second
	slowest    = 64 << 10
	// bodyTimeout is the time limit for reading the body of a request.
	bodyTimeout = 5 * time.Second
	// getTimeout is the time limit of one read of a Turn, or of one search for its record.
	getTimeout = 10 * time.Second
	// stopTimeout is how long the server waits, when it stops, until streams have ended.
	stopTimeout = 5 * time.Second
)

// Options configure a Server. CertFile, KeyFile and the durations may be zero.
type Options struct {
	// Address is the host:port of the server. CheckAddress must allow it.
	Address string
	// TLSAddress is the host:port of a second listener, which uses TLS; Address then serves plain HTTP. If
	// TLSAddress is empty, Address uses TLS if there is a CertFile.
	TLSAddress string
	// CertFile and KeyFile are paths of PEM files, which are read again as webserver.Certificate says. Without them,
	// the server uses plain HTTP.
	CertFile, KeyFile string
	// Journal holds the journals of all Turns.
	Journal journal.Journal
	// Records has the records of Turns. If it is nil, no records are served, and a stream does not learn from a record
	// that a journal will not get its last entry.
	Records store.Records
	// Memories has the memories that were learned from Turns. If it is nil, no memories are served.
	Memories store.Memories
	// Turns reads Turns from the API server, not from a cache.
	Turns client.Reader
	// Access authenticates and authorizes the users.
	Access *access.Guard
	// RolePrefix is the beginning of the names of the ClusterRoles for people. It is empty if there are none.
	RolePrefix string
	// Credentials are the credentials that this process uses, by namespace. They are removed from journals, artifacts
	// and memories before these are sent, and from comments before these are stored and before they are sent. If
	// Credentials is nil, nothing is removed.
	Credentials *redact.Set
	// Now returns the current time, for the times of feedback, for the expiry of memories, and for the age of the
	// certificate.
	Now func() time.Time
	// Log of the server.
	Log logr.Logger
	// Poll is the time between two reads of a journal that is followed. Default 500 ms.
	Poll time.Duration
	// Beat is the time after which a stream without new entries sends an empty line. Default 15 s.
	Beat time.Duration
	// Recheck is the interval at which a stream checks that its Turn exists and that its user may still read it.
	// Default 15 s.
	Recheck time.Duration
	// WriteTimeout is the time limit for each piece that is sent: a client may be slow but must keep reading. Default
	// 30 s.
	WriteTimeout time.Duration
}

// Server serves the read API. It implements manager.Runnable and runs on every replica.
type Server struct {
	o Options
	// listeners are the open listeners. The first one is at Address, unless Address is not set.
	listeners []net.Listener
	http      *http.Server
	// streams and large limit the concurrent requests.
	streams, large *gate
}

// Listen returns a server that already listens at its addresses. Start serves the requests. A caller that does not call
// Start must call Close.
func Listen(ctx context.Context, o Options) (*Server, error) {
	if err := CheckAddress(o.Address, o.TLSAddress, o.CertFile, o.KeyFile); err != nil {
		return nil, err
	}
	o.Poll, o.Beat = cmp.Or(o.Poll, 500*time.Millisecond), cmp.Or(o.Beat, 15*time.Second)
	o.Recheck, o.WriteTimeout = cmp.Or(o.Recheck, 15*time.Second), cmp.Or(o.WriteTimeout, 30*time.Second)
	s := &Server{
		o: o, streams: newGate(mostStreams, userStreams), large: newGate(mostLarge, userLarge),
	}
	s.http = webserver.New(s.handler())
	var certificate *webserver.Certificate
	if o.CertFile != "" {
		var err error
		if certificate, err = webserver.NewCertificate(o.CertFile, o.KeyFile, o.Now, o.Log); err != nil {
			return nil, fmt.Errorf("--read-tls-cert-file and --read-tls-key-file: %w", err)
		}
	}
	for _, endpoint := range []struct {
		flag, address string
		secure        bool
	}{
		{"--read-bind-address", o.Address, o.CertFile != "" && !listens(o.TLSAddress)},
		{"--read-tls-bind-address", o.TLSAddress, true},
	} {
		if !listens(endpoint.address) {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", endpoint.address)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", endpoint.flag, err), s.Close())
		}
		listener = webserver.Limit(listener, mostConnections)
		if endpoint.secure {
			// Without HTTP/2, which would allow hundreds of requests on each connection before their users are known.
			listener = tls.NewListener(listener, &tls.Config{
				GetCertificate: certificate.Get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
			})
		}
		s.listeners = append(s.listeners, listener)
	}
	return s, nil
}

// URL returns the URL of the listener at Address, or at TLSAddress if Address is not set.
func (s *Server) URL() string {
	scheme := "http://"
	if s.o.CertFile != "" && (!listens(s.o.TLSAddress) || !listens(s.o.Address)) {
		scheme = "https://"
	}
	return scheme + s.listeners[0].Addr().String()
}

// TLSURL returns the URL of the listener at TLSAddress, or an empty text if there is none.
func (s *Server) TLSURL() string {
	if !listens(s.o.TLSAddress) {
		return ""
	}
	return "https://" + s.listeners[len(s.listeners)-1].Addr().String()
}

// Close closes the listeners of a server that was not started.
func (s *Server) Close() error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// NeedLeaderElection returns false: every replica with a store serves.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends. It then interrupts all streams, so that clients that follow a Turn connect to another
// server.
func (s *Server) Start(ctx context.Context) error {
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	s.o.Log.Info("Serving journals", "address", s.URL(), "tls", s.TLSURL())
	ended := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() { ended <- s.http.Serve(l) }()
	}
	select {
	case err := <-ended:
		return fmt.Errorf("failed to serve journals: %w", errors.Join(err, s.http.Close()))
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := s.http.Shutdown(bounded); err != nil {
		s.o.Log.Info("Closing connections that still read a journal", "cause", err.Error())
		if err := s.http.Close(); err != nil {
			return fmt.Errorf("failed to stop serving journals: %w", err)
		}
	}
	for range s.listeners {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("failed to serve journals: %w", err)
		}
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	const turns = "GET /v1/namespaces/{namespace}/turns/{name}/"
	mux.HandleFunc(turns+"journal", s.granted(s.serveJournal))
	mux.HandleFunc(turns+"artifacts/{sha256}", s.granted(s.serveArtifact))
	for _, prefix := range []string{"/v1/", "/v1/namespaces/{namespace}/"} {
		mux.HandleFunc("GET "+prefix+"records", s.authorized(s.keptRecords(), "list", s.serveRecords))
		mux.HandleFunc("GET "+prefix+"usage", s.authorized(s.keptRecords(), "list", s.serveUsage))
		mux.HandleFunc("GET "+prefix+"memories", s.authorized(s.keptMemories(), "list", s.serveMemories))
	}
	mux.HandleFunc("DELETE /v1/namespaces/{namespace}/memories", s.authorized(s.keptMemories(), "delete", s.deleteMemories))
	mux.HandleFunc("POST /v1/namespaces/{namespace}/turns/{name}/feedback", s.serveFeedback)
	mux.HandleFunc("DELETE /v1/namespaces/{namespace}/records", s.authorized(s.keptRecords(), "delete", s.deleteRecords))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, r, refuse(http.StatusNotFound,
			"this API has no such path: it serves /v1/namespaces/NAMESPACE/turns/NAME/journal, .../artifacts/SHA256 and "+
				".../feedback, and /v1/namespaces/NAMESPACE/records, .../usage and .../memories"))
	})
	return s.refuseBodies(mux)
}

// refuseBodies refuses requests with a body before they are authenticated, except feedback. Otherwise the server would
// wait after its answer for the rest of the body, which may never arrive.
func (s *Server) refuseBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.SetWriteDeadline(time.Time{}); err != nil { // reset the last request's deadline
			panic(http.ErrAbortHandler)
		}
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		if isFeedback(r) {
			if err := control.SetReadDeadline(deadlineIn(bodyTimeout)); err != nil {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
			return
		}
		if err := control.SetReadDeadline(deadlineIn(bodyTimeout)); err != nil {
			panic(http.ErrAbortHandler)
		}
		s.answer(w, r, refuse(http.StatusBadRequest, "this request must not have a body"))
	})
}

// visit has the user of a request, who may read the Turn, and the Turn as it was at the start of the request.
type visit struct {
	user string
	turn *v1alpha1.Turn
}

// granted calls serve for requests of users who may read the Turn. It reads the Turn only after that check, so that
// other users do not learn whether the Turn exists.
func (s *Server) granted(serve func(http.ResponseWriter, *http.Request, visit) *Error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
		if len(validation.IsDNS1123Label(key.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(key.Name)) > 0 {
			s.answer(w, r, refuse(http.StatusBadRequest,
				"the namespace and the name of the Turn must be valid names of Kubernetes objects"))
			return
		}
		user, refused := s.check(r.Context(), r, key)
		if refused != nil {
			s.answer(w, r, refused)
			return
		}
		leave, refused := s.enter(r, key.Namespace, user)
		if refused != nil {
			s.answer(w, r, refused)
			return
		}
		defer leave()
		turn, refused := s.turn(r.Context(), key)
		if refused == nil {
			refused = serve(w, r, visit{user, turn})
		}
		if refused != nil {
			s.answer(w, r, refused)
		}
	}
}

// enter takes a slot for a request of a user for data of a namespace, which is empty for all namespaces. The caller
// must call leave if refused is nil.
func (s *Server) enter(r *http.Request, namespace, user string) (leave func(), refused *Error) {
	leave, ok := s.streams.enter(r.Context(), namespace, user, 0)
	if ok {
		return leave, nil
	}
	return nil, refuse(http.StatusServiceUnavailable, "too many journals are read at the same time, at most %d in total, %d by "+
		"user %q, and the share of namespace %q: try again in a moment", mostStreams, userStreams, user, namespace)
}

// hold waits until there is memory for an artifact of a Turn in this namespace, for this user. The caller must call
// release if refused is nil.
func (s *Server) hold(ctx context.Context, namespace, user string) (release func(), refused *Error) {
	leave, ok := s.large.enter(ctx, namespace, user, largeWait)
	switch {
	case ok:
		return leave, nil
	case ctx.Err() != nil:
		panic(http.ErrAbortHandler)
	}
	return nil, refuse(http.StatusServiceUnavailable,
		"too many artifacts are read at the same time, at most %d in total, %d by user %q, and the share of namespace %q: try "+
			"again in a moment", mostLarge, userLarge, user, namespace)
}

// largeTime returns how long an artifact of this size may stay in memory for a reader.
func largeTime(bytes int) time.Duration {
	return largeGrace + time.Duration(bytes)*time.Second/slowest
}

// turn gets a Turn from the API server.
func (s *Server) turn(ctx context.Context, key types.NamespacedName) (*v1alpha1.Turn, *Error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	var t v1alpha1.Turn
	err := s.o.Turns.Get(ctx, key, &t)
	switch {
	case apierrors.IsNotFound(err):
		return nil, refuse(http.StatusNotFound, "there is no Turn %q in namespace %q", key.Name, key.Namespace)
	case err != nil:
		return nil, refuse(http.StatusServiceUnavailable, "the manager cannot get the Turn from the API server: %s", err)
	}
	return &t, nil
}

// answer sends an error.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, e *Error) {
	s.logInternal(r, e)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	switch e.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "2")
	}
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(e) // the client may be gone
}

// logInternal logs an internal error, because only the operator of the manager can remove its cause.
func (s *Server) logInternal(r *http.Request, e *Error) {
	if e.Status != http.StatusInternalServerError {
		return
	}
	values := []any{"path", r.URL.Path}
	if name := r.PathValue("name"); name != "" {
		values = append(values, "turn", types.NamespacedName{Namespace: r.PathValue("namespace"), Name: name})
	}
	s.o.Log.Error(e, "Failed to serve stored data", values...)
}

// failureOf returns the error that a client receives if the store fails. Clients try again after the status 503, so a
// failure that another read does not remove has another status.
func failureOf(err error) *Error {
	if errors.Is(err, journal.ErrNewer) || errors.Is(err, journal.ErrDamaged) {
		return refuse(http.StatusInternalServerError, "%s", err)
	}
	return refuse(http.StatusServiceUnavailable, "the store of the journal failed: %s", err)
}
