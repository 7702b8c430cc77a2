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

// startTimeout is how long a server may take to start. Node starts slowly on a busy machine.
const startTimeout = 60 * time.Second

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
	s := &Server{tb: tb, path: entry(tb), port: freePort(tb)}
	s.URL = "http://127.0.0.1:" + strconv.Itoa(s.port) + "/mcp"
	tb.Cleanup(s.Kill)
	s.Resume()
	return s
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

// Resume starts the process. After Kill, it starts the process again at the same address.
func (s *Server) Resume() {
	s.tb.Helper()
	s.out = &output{ready: make(chan struct{}), want: "listening on port"}
	//nolint:noctx,gosec // because it lives as long as the test, and the path is the test's own
	s.cmd = exec.Command("node", s.path, "streamableHttp")
	s.cmd.Env = append(os.Environ(), "PORT="+strconv.Itoa(s.port))
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatalf("failed to start the reference MCP server: %v", err)
	}
	select {
	case <-s.out.ready:
	case <-time.After(startTimeout):
		s.Kill()
		s.tb.Fatalf("the reference MCP server did not start within %s:\n%s", startTimeout, s.out)
	}
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

// output stores the output of a process. It closes ready when the output contains the text want.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	want  string
	ready chan struct{}
	found bool
}

// Write stores a part of the output.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	if !o.found && strings.Contains(o.text.String(), o.want) {
		o.found = true
		close(o.ready)
	}
	return len(p), nil
}

// String returns the whole output.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
