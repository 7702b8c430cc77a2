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

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// probes serves /healthz and /readyz. A client on this machine is told which check fails, and why, below /readyz/; any other client
// learns only whether all is well.
type probes struct {
	checks map[string]healthz.Checker
	// listener is nil if nothing is served.
	listener net.Listener
}

// newProbes listens at an address already, unless it is "0". Close ends that, also where the manager is never started.
func newProbes(ctx context.Context, address string) (*probes, error) {
	p := &probes{checks: map[string]healthz.Checker{}}
	if address == "" || address == "0" {
		return p, nil
	}
	var err error
	if p.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address); err != nil {
		return nil, fmt.Errorf("--health-probe-bind-address: %w", err)
	}
	return p, nil
}

// Close ends the probes.
func (p *probes) Close() {
	if p.listener != nil {
		_ = p.listener.Close() // closed already, where it has served
	}
}

// addTo has a manager serve the probes. It adds a check of its own: the cache must be filled, whether the process leads or not.
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
	if err != nil || p.listener == nil {
		return err
	}
	return mgr.Add(&manager.Server{
		Name: "health probe", Listener: p.listener, ShutdownTimeout: new(time.Second),
		Server: &http.Server{Handler: p.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10},
	})
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

// answer says whether all is well, and nothing else.
func (p *probes) answer(w http.ResponseWriter, r *http.Request) {
	for _, check := range p.checks {
		if check(r) != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
	}
	_, _ = io.WriteString(w, "ok")
}

// isLocal reports whether a request comes from this machine, or through a forwarded port of this pod.
func isLocal(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}
