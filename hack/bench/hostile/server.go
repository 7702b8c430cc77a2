// Package hostile serves HTTP endpoints that misbehave on purpose: models and MCP servers of a tenant who wants
// more than a fair share of a manager. The benchmark attacks a manager with them. They produce their data once, so
// that they cost the machine much less than they cost the manager.
package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Server serves all endpoints of this package on free ports of 127.0.0.1. It is safe for concurrent use.
type Server struct {
	url       string
	web       *http.Server
	tarpit    net.Listener
	done      sync.WaitGroup
	requests  atomic.Int64
	sent      atomic.Int64
	replies   atomic.Int64 // makes each long reply different
	random    func() []byte
	listing   func() []byte
	bomb      func() []byte
	mu        sync.Mutex
	connected []net.Conn // connections of the tarpit
}

// New starts a server. Close stops it.
func New(ctx context.Context) (*Server, error) {
	s := &Server{random: sync.OnceValue(randomText), listing: sync.OnceValue(listing), bomb: sync.OnceValue(bomb)}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("failed to start the hostile server: %w", err)
	}
	if s.tarpit, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to start the tarpit: %w", err), listener.Close())
	}
	s.url = "http://" + listener.Addr().String()
	s.web = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	s.done.Go(func() { _ = s.web.Serve(listener) }) // always http.ErrServerClosed
	s.done.Go(s.serveTarpit)
	return s, nil
}

// Close stops the server and breaks off all requests.
func (s *Server) Close() error {
	err := errors.Join(s.web.Close(), s.tarpit.Close())
	s.done.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.connected {
		_ = c.Close() // nothing was written to it
	}
	return err
}

// Stats returns the number of requests so far (for the tarpit: of connections) and the number of bytes in the
// bodies of the responses.
func (s *Server) Stats() (requests, sentBytes int64) { return s.requests.Load(), s.sent.Load() }

// The endpoints for models. Each is the base URL of a ModelProvider.

// Answering returns the URL of a model that answers with a short text after a latency.
func (s *Server) Answering(latency time.Duration) string {
	return fmt.Sprintf("%s/answering/%d/v1", s.url, latency.Milliseconds())
}

// Talking returns the URL of a model whose replies are close to 1 MiB of random text and call the tool "note", so
// that the conversation continues.
func (s *Server) Talking() string { return s.url + "/talking/v1" }

// Writing returns the URL of a model whose answers are close to 1 MiB of random text.
func (s *Server) Writing() string { return s.url + "/writing/v1" }

// Commenting returns the URL of a model that sends an SSE comment each second and never answers.
func (s *Server) Commenting() string { return s.url + "/commenting/v1" }

// Bombing returns the URL of a model that sends 256 MiB of tiny events, compressed to less than 1 MiB.
func (s *Server) Bombing() string { return s.url + "/bombing/v1" }

// Flooding returns the URL of a model that sends 256 MiB of tiny events without compression.
func (s *Server) Flooding() string { return s.url + "/flooding/v1" }

// Breaking returns the URL of a model that breaks off each reply after some tokens, except for models whose names
// begin with WholeReplyPrefix.
func (s *Server) Breaking() string { return s.url + "/breaking/v1" }

// Calling returns the URL of a model whose replies call the tool "note" eight times at once.
func (s *Server) Calling() string { return s.url + "/calling/v1" }

// Refusing returns the URL of a model that refuses each request with an error of 1 MiB.
func (s *Server) Refusing() string { return s.url + "/refusing/v1" }

// The endpoints for tools. Each is the URL of an MCP server.

// Listing returns the URL of the MCP server with this number. Its listing has close to 4 MiB.
func (s *Server) Listing(number int) string { return fmt.Sprintf("%s/listing/%d", s.url, number) }

// Noting returns the URL of an MCP server with one tool, "note".
func (s *Server) Noting() string { return s.url + "/noting" }

// Stalling returns the URL of an MCP server with one tool, "note", whose results stop after 250 KiB.
func (s *Server) Stalling() string { return s.url + "/stalling" }

// Notifying returns the URL of an MCP server with one tool, "note". In place of results it sends notices of 1 MiB
// without end.
func (s *Server) Notifying() string { return s.url + "/notifying" }

// Tarpit returns the URL of the endpoint with this number, which accepts connections and never sends a byte.
func (s *Server) Tarpit(number int) string {
	return fmt.Sprintf("http://%s/%d", s.tarpit.Addr(), number)
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	models := map[string]http.HandlerFunc{
		"/answering/{milliseconds}": s.answer, "/talking": s.talk, "/writing": s.write, "/commenting": s.comment,
		"/bombing": s.sendBomb, "/flooding": s.flood, "/breaking": s.breakOff,
		"/calling": s.call, "/refusing": refuse,
	}
	for path, complete := range models {
		mux.HandleFunc("POST "+path+"/v1/chat/completions", complete)
		mux.HandleFunc("GET "+path+"/v1/models", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"object":"list","data":[]}`) // a client that is gone needs no body
		})
	}
	one := func() []byte { return []byte(noteListing) }
	mux.HandleFunc("POST /listing/{number}", s.mcp(s.listing, noted))
	mux.HandleFunc("POST /noting", s.mcp(one, noted))
	mux.HandleFunc("POST /stalling", s.mcp(one, stall))
	mux.HandleFunc("POST /notifying", notifying(s.mcp(one, noted)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		mux.ServeHTTP(&counted{ResponseWriter: w, sent: &s.sent}, r)
	})
}

// serveTarpit accepts connections until the listener is closed.
func (s *Server) serveTarpit() {
	for {
		c, err := s.tarpit.Accept()
		if err != nil {
			return
		}
		s.requests.Add(1)
		s.mu.Lock()
		s.connected = append(s.connected, c)
		s.mu.Unlock()
	}
}

// counted counts the bytes of a response.
type counted struct {
	http.ResponseWriter
	sent *atomic.Int64
}

// Write implements http.ResponseWriter.
func (c *counted) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// Unwrap returns the writer for http.ResponseController.
func (c *counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }
