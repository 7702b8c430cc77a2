package tracing

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/capstan-dev/capstan/test/otlp"
)

// TestBrokenConnectionsOverHTTP checks that a collector that breaks connections receives the same spans again, and that
// an answer is final.
func TestBrokenConnectionsOverHTTP(t *testing.T) {
	for name, c := range map[string]struct {
		// breaks is the number of connections that the collector closes when the client has sent something, and resets
		// the number of requests for which it resets the connection. refuses makes it refuse the spans.
		breaks   int
		resets   int32
		refuses  bool
		requests int32
		spans    int
	}{
		"closes two connections": {breaks: 2, requests: 1, spans: 1},
		"resets two connections": {resets: 2, requests: 3, spans: 1},
		"refuses the spans":      {refuses: true, requests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var receiver otlp.Receiver
			var requests atomic.Int32
			web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n := requests.Add(1)
				switch {
				case c.refuses:
					w.WriteHeader(http.StatusUnauthorized)
				case n <= c.resets:
					reset(t, w)
				default:
					receiver.ServeHTTP(w, r)
				}
			}))
			web.Listener = &breaking{web.Listener, c.breaks}
			web.Start()
			defer web.Close()
			t.Setenv(endpointVariable, web.URL)
			exporter, err := newExporter(t.Context(), protocolHTTP, lookup(map[string]string{timeoutVariable: "60000"}))
			if err != nil {
				t.Fatal(err)
			}
			span := tracetest.SpanStub{
				Name:        "step 1",
				SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}),
			}
			err = exporter.ExportSpans(t.Context(), []sdktrace.ReadOnlySpan{span.Snapshot()})
			if (err != nil) != c.refuses {
				t.Errorf("ExportSpans: %v", err)
			}
			if requests.Load() != c.requests || len(receiver.Spans()) != c.spans {
				t.Errorf("%d requests and %d spans arrived, want %d and %d", requests.Load(), len(receiver.Spans()), c.requests, c.spans)
			}
		})
	}
}

// TestSilentConnectionOverHTTP checks that spans arrive soon although the connection of HTTP/2 to the collector has
// become silent, as after the failure of a machine.
func TestSilentConnectionOverHTTP(t *testing.T) {
	var receiver otlp.Receiver
	web := httptest.NewUnstartedServer(&receiver)
	listener := &silenced{Listener: web.Listener}
	web.Listener = listener
	web.EnableHTTP2 = true
	web.StartTLS()
	defer web.Close()
	defer listener.close()
	certificate := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	if err := os.WriteFile(certificate, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(endpointVariable, web.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", certificate)
	exporter, err := newExporter(t.Context(), protocolHTTP, lookup(map[string]string{timeoutVariable: "2000"}))
	if err != nil {
		t.Fatal(err)
	}
	span := tracetest.SpanStub{
		Name:        "step 1",
		SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}),
	}
	export := func() error { return exporter.ExportSpans(t.Context(), []sdktrace.ReadOnlySpan{span.Snapshot()}) }
	if err := export(); err != nil {
		t.Fatal(err)
	}
	listener.silence()
	if err := export(); err == nil {
		t.Error("spans arrived on a silent connection")
	}
	for range 10 { // a busy machine may need more than one attempt
		if err = export(); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("no spans arrive on a new connection: %v", err)
	}
	if err := exporter.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// silenced is a listener whose connections can become silent: the server then receives nothing on them.
type silenced struct {
	net.Listener

	mu    sync.Mutex
	conns []*silentConn
}

// Accept accepts a connection.
func (s *silenced) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := &silentConn{Conn: c, end: make(chan struct{})}
	s.conns = append(s.conns, conn)
	return conn, nil
}

// silence makes the present connections silent.
func (s *silenced) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.silent.Store(true)
	}
}

// close ends the waits of silent connections.
func (s *silenced) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		close(c.end)
	}
}

type silentConn struct {
	net.Conn

	silent atomic.Bool
	end    chan struct{}
}

// Read reads from the connection. If it is silent, Read waits until the test ends.
func (c *silentConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.silent.Load() {
		<-c.end
		return 0, net.ErrClosed
	}
	return n, err
}

// reset resets the connection of a request.
func reset(t *testing.T, w http.ResponseWriter) {
	t.Helper()
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // closing sends a reset
	}
	_ = connection.Close()
}

// TestTimeoutOfTheExport checks which variable limits the export of a batch.
func TestTimeoutOfTheExport(t *testing.T) {
	for name, c := range map[string]struct {
		given map[string]string
		want  time.Duration
	}{
		"none":    {nil, 10 * time.Second},
		"general": {map[string]string{timeoutVariable: "2000"}, 2 * time.Second},
		"traces":  {map[string]string{timeoutVariable: "2000", tracesTimeoutVariable: "3000"}, 3 * time.Second},
		"invalid": {map[string]string{timeoutVariable: "2000", tracesTimeoutVariable: "3s"}, 2 * time.Second},
	} {
		if got := timeoutOf(lookup(c.given)); got != c.want {
			t.Errorf("%s: the timeout is %s, want %s", name, got, c.want)
		}
	}
}
