package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/capstan-dev/capstan/internal/webserver"
)

// probes serves /healthz and /readyz. Only a client on this machine can read which check fails and why. Other clients
// learn only whether the process is ready.
type probes struct {
	checks map[string]healthz.Checker
	// listener is nil if the probes are not served.
	listener net.Listener
	server   *http.Server
	// current serves the requests. served is closed when the server has ended.
	current atomic.Pointer[http.Handler]
	served  chan struct{}
}

// newProbes returns probes that are already served at address, unless the address is empty or "0". The process is alive
// and not ready until addTo is called. The caller must call Close, even if the manager is never started.
func newProbes(ctx context.Context, address string, log logr.Logger) (*probes, error) {
	p := &probes{checks: map[string]healthz.Checker{}}
	if address == "" || address == "0" {
		return p, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--health-probe-bind-address: %w", err)
	}
	p.listener = webserver.Limit(l, mostConnections)
	p.serve((&probes{checks: map[string]healthz.Checker{
		"start": func(*http.Request) error { return errors.New("the manager is starting") },
	}}).handler())
	p.server = webserver.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*p.current.Load()).ServeHTTP(w, r) }))
	p.server.ReadHeaderTimeout, p.server.MaxHeaderBytes = 5*time.Second, 8<<10
	p.server.ReadTimeout, p.server.WriteTimeout = requestTimeout, requestTimeout
	p.served = make(chan struct{})
	log.V(1).Info("Starting server", "name", "health probe", "addr", l.Addr().String())
	go func() {
		defer close(p.served)
		if err := p.server.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error(err, "Stopped serving the probes") // the kubelet then restarts the process
		}
	}()
	return p, nil
}

// serve lets a handler serve the requests from now on.
func (p *probes) serve(handler http.Handler) { p.current.Store(&handler) }

// Close stops the server. It waits for a second until requests have ended.
func (p *probes) Close() {
	if p.listener == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if p.server.Shutdown(ctx) != nil {
		_ = p.server.Close()
	}
	<-p.served
}

// addTo makes the probes serve their checks. It adds a check that the cache is filled, which also runs if the process
// is not the leader.
func (p *probes) addTo(mgr ctrl.Manager) error {
	var synced atomic.Bool
	p.checks["cache"] = func(*http.Request) error {
		if !synced.Load() {
			return errors.New("the cache is not filled yet")
		}
		return nil
	}
	err := mgr.Add(everywhere{manager.RunnableFunc(func(ctx context.Context) error {
		synced.Store(mgr.GetCache().WaitForCacheSync(ctx))
		return nil
	})})
	if err != nil {
		return err
	}
	p.serve(p.handler())
	return nil
}

func (p *probes) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	details := http.StripPrefix("/readyz", &healthz.Handler{Checks: p.checks})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if isLocal(r) {
			details.ServeHTTP(w, r)
			return
		}
		p.answer(w, r)
	})
	mux.HandleFunc("GET /readyz/{check}", func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r) {
			http.NotFound(w, r)
			return
		}
		details.ServeHTTP(w, r)
	})
	return mux
}

// answer reports only whether the process is ready.
func (p *probes) answer(w http.ResponseWriter, r *http.Request) {
	for _, check := range p.checks {
		if check(r) != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
	}
	_, _ = io.WriteString(w, "ok")
}

// isLocal reports whether a request comes from this machine, or through a forwarded port of this Pod.
func isLocal(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
