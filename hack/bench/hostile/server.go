// Package hostile serves HTTP endpoints that misbehave on purpose: models and MCP servers of a tenant who tries to get
// more than a fair share of a manager. The benchmark attacks a manager with these endpoints. They generate their data
// only once, so that they use much less CPU and memory than the manager under attack.
package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Server serves all endpoints of this package on free ports of 127.0.0.1. It is safe for concurrent use.
type Server struct {
	Endpoints

	web       *http.Server
	tarpit    net.Listener
	done      sync.WaitGroup
	requests  atomic.Int64
	sent      atomic.Int64
	replies   atomic.Int64 // makes each long reply different
	random    []byte
	listing   func() []byte
	bomb      func() []byte
	mu        sync.Mutex
	connected []net.Conn // connections of the tarpit
}

// sendBuffer is the size of the send buffer of a connection, in bytes.
const sendBuffer = 256 << 10

// limitSendBuffer limits the send buffers of the connections of a listener. By default, the kernel would hold several
// megabytes for each connection before the manager reads them. A real attacker's server uses the memory and the
// processors of another machine for that; here, it would delay the victim's connections.
func limitSendBuffer(_, _ string, socket syscall.RawConn) error {
	var failed error
	err := socket.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	})
	return errors.Join(err, failed)
}

// New starts a server. The caller must call Close.
func New(ctx context.Context) (*Server, error) {
	// The process soon has the lowest priority. On a busy machine, it would then take a minute to make the random text,
	// and the first reply would wait for it.
	s := &Server{random: randomText(), listing: sync.OnceValue(listing), bomb: sync.OnceValue(bomb)}
	listener, err := (&net.ListenConfig{Control: limitSendBuffer}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("failed to start the hostile server: %w", err)
	}
	if s.tarpit, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to start the tarpit: %w", err), listener.Close())
	}
	s.Endpoints = Endpoints{URL: "http://" + listener.Addr().String(), TarpitURL: "http://" + s.tarpit.Addr().String()}
	s.web = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	s.done.Go(func() { _ = s.web.Serve(listener) }) // always http.ErrServerClosed
	s.done.Go(s.serveTarpit)
	return s, nil
}

// Close stops the server and aborts all requests.
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

// Stats returns the number of requests so far, including connections to the tarpit, and the number of bytes in the
// bodies of the responses.
func (s *Server) Stats() (requests, sentBytes int64) { return s.requests.Load(), s.sent.Load() }

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	models := map[string]http.HandlerFunc{
		"/answering/{milliseconds}": s.answer, "/talking": s.talk, "/writing": s.write, "/commenting": s.comment,
		"/bombing": s.sendBomb, "/flooding": s.flood, "/breaking": s.abort,
		"/calling": s.call, "/refusing": refuse,
	}
	for path, complete := range models {
		mux.HandleFunc("POST "+path+"/v1/chat/completions", complete)
		mux.HandleFunc("GET "+path+"/v1/models", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"object":"list","data":[]}`) // an error means that the client has disconnected
		})
	}
	oneTool := func() []byte { return []byte(noteListing) }
	mux.HandleFunc("POST /listing/{number}", s.mcp(s.listing, writeResult))
	mux.HandleFunc("POST /noting", s.mcp(oneTool, writeResult))
	mux.HandleFunc("POST /stalling", s.mcp(oneTool, stall))
	mux.HandleFunc("POST /notifying", notifyInsteadOfResults(s.mcp(oneTool, writeResult)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == statsPath {
			_ = json.NewEncoder(w).Encode(stats{s.requests.Load(), s.sent.Load()}) // a disconnected client needs no numbers
			return
		}
		s.requests.Add(1)
		mux.ServeHTTP(&countingWriter{ResponseWriter: w, sent: &s.sent}, r)
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

// countingWriter counts the bytes that are written to a response.
type countingWriter struct {
	http.ResponseWriter
	sent *atomic.Int64
}

// Write implements http.ResponseWriter.
func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// Unwrap returns the wrapped writer. http.ResponseController needs it.
func (c *countingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
