package server

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// defaultKept is the default number of kept requests.
const defaultKept = 100

// Server is the fake model as an http.Handler. It is safe for concurrent use.
type Server struct {
	mux      *http.ServeMux
	rules    atomic.Pointer[ruleset]
	recorder *recorder
	clock    clock.Clock
	log      *slog.Logger
	// created is the reported creation time of every model.
	created time.Time
	// closed is closed by Close.
	closed    chan struct{}
	closeOnce sync.Once
}

// Option changes a Server's defaults.
type Option func(*options)

type options struct {
	clock clock.Clock
	log   *slog.Logger
	kept  int
}

// WithClock sets the clock for latencies, delays and recorded times. The default is the system clock.
func WithClock(c clock.Clock) Option { return func(o *options) { o.clock = c } }

// WithLogger sets the logger for one line per request. The lines never contain prompts, answers or keys. By default
// nothing is logged.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithKeptRequests sets the number of requests that are kept for Requests, 0 or more. The default is 100. The
// server never keeps more than 64 MiB of bodies.
func WithKeptRequests(n int) Option { return func(o *options) { o.kept = max(n, 0) } }

// New returns a Server. The error of an invalid configuration names the index of the rule and the field.
func New(cfg Config, opts ...Option) (*Server, error) {
	o := options{clock: clock.RealClock{}, log: slog.New(slog.DiscardHandler), kept: defaultKept}
	for _, opt := range opts {
		opt(&o)
	}
	s := &Server{
		mux: http.NewServeMux(), recorder: newRecorder(o.kept), clock: o.clock, log: o.log,
		created: o.clock.Now(), closed: make(chan struct{}),
	}
	if err := s.SetConfig(cfg); err != nil {
		return nil, err
	}
	s.mux.HandleFunc("POST /v1/chat/completions", s.complete)
	s.mux.HandleFunc("POST /v1/embeddings", s.embed)
	s.mux.HandleFunc("GET /v1/models", s.listModels)
	s.mux.HandleFunc("GET /v1/models/{model...}", s.getModel)
	s.mux.HandleFunc("GET /_fake/stats", s.getStats)
	s.mux.HandleFunc("GET /_fake/requests", s.getRequests)
	s.mux.HandleFunc("GET /_fake/billing", s.getBilling)
	s.mux.HandleFunc("PUT /_fake/rules", s.putRules)
	s.mux.HandleFunc("POST /_fake/reset", s.postReset)
	s.mux.HandleFunc("/", unknownURL)
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// SetConfig replaces the whole configuration: keys, models and rules. Requests in flight finish with the old
// configuration. If cfg is invalid, SetConfig changes nothing and returns the same error as New.
func (s *Server) SetConfig(cfg Config) error {
	rules, err := compile(cfg)
	if err != nil {
		return err
	}
	s.rules.Store(rules)
	return nil
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	stats, _ := s.recorder.snapshot()
	return stats
}

// Requests returns the last requests for completions and embeddings, oldest first.
func (s *Server) Requests() []Request { return s.recorder.kept() }

// Wait returns nil as soon as done reports true. It returns an error if ctx ends first.
func (s *Server) Wait(ctx context.Context, done func(Stats) bool) error {
	return s.recorder.wait(ctx, done)
}

// Reset clears the counts, the requests and the bills, and sets the match counts of all rules to 0. The number
// of requests in flight does not change.
func (s *Server) Reset() {
	s.rules.Load().reset()
	s.recorder.clear()
}

// Close ends hangs and delays immediately by closing their connections, so that the HTTP server that uses this handler
// can stop. It may be called more than once.
func (s *Server) Close() { s.closeOnce.Do(func() { close(s.closed) }) }

// authorized reports whether the request has one of the keys, or no key is required.
func (s *ruleset) authorized(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return len(s.cfg.APIKeys) == 0 || strings.EqualFold(scheme, "Bearer") && slices.Contains(s.cfg.APIKeys, token)
}
