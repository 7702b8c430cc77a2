package tracing

import (
	"net"
	"net/http"
	"net/http/httptest"
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
