// Package everythingtest runs the reference MCP server, an independent implementation, for tests over streamable
// HTTP.
package everythingtest

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// programVariable is the environment variable with the path of the server's program. If it is not set,
// hack/everything/get.sh downloads the program.
const programVariable = "CAPSTAN_MCP_EVERYTHING"

const (
	// startTimeout is how long a server may take to start. Node starts slowly on a busy machine.
	startTimeout = 60 * time.Second
	// startAttempts is the number of attempts to start a server at a free port. Another process can take the port
	// before the server listens there.
	startAttempts = 5
)

// The output of a server contains started when it accepts requests, and portTaken if another process uses its port.
const started, portTaken = "listening on port", "is already in use"

// Server is a process of the reference server.
type Server struct {
	// URL is the URL of the server's endpoint.
	URL string

	tb   testing.TB
	path string
	port int
	cmd  *exec.Cmd
	out  *output
}

// Start starts a server. It is stopped when the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{tb: tb, path: entry(tb)}
	tb.Cleanup(s.Kill)
	for range startAttempts {
		s.port = freePort(tb)
		s.URL = "http://127.0.0.1:" + strconv.Itoa(s.port) + "/mcp"
		if s.start() {
			return s
		}
	}
	tb.Fatalf("another process took the port of the reference MCP server, %d times", startAttempts)
	return nil
}

// Kill kills the process, which ends all its sessions.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have exited already
	_ = s.cmd.Wait()         // it reports only that the process was killed
	s.cmd = nil
}

// Resume starts the process again at the same address, after Kill.
func (s *Server) Resume() {
	s.tb.Helper()
	if !s.start() {
		s.tb.Fatalf("another process took the port of the reference MCP server:\n%s", s.out)
	}
}

// start starts the process and waits until it accepts requests. It returns false if another process uses its port.
func (s *Server) start() bool {
	s.tb.Helper()
	s.out = &output{found: make(chan string, 1)}
	//nolint:noctx,gosec // because it lives as long as the test, and the path is the test's own
	s.cmd = exec.Command("node", s.path, "streamableHttp")
	s.cmd.Env = append(os.Environ(), "PORT="+strconv.Itoa(s.port))
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatalf("failed to start the reference MCP server: %v", err)
	}
	select {
	case found := <-s.out.found:
		if found == portTaken {
			s.Kill()
		}
		return found == started
	case <-time.After(startTimeout):
		s.Kill()
		s.tb.Fatalf("the reference MCP server did not start within %s:\n%s", startTimeout, s.out)
	}
	return false
}

// entry returns the path of the server's program.
func entry(tb testing.TB) string {
	tb.Helper()
	if path := os.Getenv(programVariable); path != "" {
		return path
	}
	_, here, _, _ := runtime.Caller(0)
	script := filepath.Join(filepath.Dir(here), "..", "..", "..", "hack", "everything", "get.sh")
	cmd := exec.CommandContext(tb.Context(), "bash", script) //nolint:gosec // because the script is the repository's
	cmd.Stderr = os.Stderr
	path, err := cmd.Output()
	if err != nil {
		tb.Fatalf("failed to get the reference MCP server (make everything): %v", err)
	}
	return strings.TrimSpace(string(path))
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // because listening on a local port does not block
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = l.Close() }() // only the port number is needed
	return l.Addr().(*net.TCPAddr).Port
}

// output stores the output of a process.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	// found receives started or portTaken, once the output contains it.
	found chan string
}

// Write stores a part of the output.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	for _, text := range []string{started, portTaken} {
		if strings.Contains(o.text.String(), text) {
			select {
			case o.found <- text:
			default: // only the first one is read
			}
		}
	}
	return len(p), nil
}

// String returns the whole output.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
