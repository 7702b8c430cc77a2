package tracing

import (
	"context"
	"encoding/pem"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/capstan-dev/capstan/test/otlp"
)

// collectorKey is the credential that the collector receives in a header.
const collectorKey = "Bearer sk-collector-4711"

// testCollector is a collector that answers some requests as a test wants.
type testCollector struct {
	collector.UnimplementedTraceServiceServer
	receiver otlp.Receiver
	// answer answers the n-th request. If it returns neither an answer nor an error, the receiver takes the spans.
	answer func(ctx context.Context, n int) (*collector.ExportTraceServiceResponse, error)
	mu     sync.Mutex
	n      int
}

// Export receives spans.
func (m *testCollector) Export(
	ctx context.Context, in *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	m.mu.Lock()
	m.n++
	n := m.n
	m.mu.Unlock()
	if m.answer != nil {
		if out, err := m.answer(ctx, n); out != nil || err != nil {
			return out, err
		}
	}
	return m.receiver.Export(ctx, in)
}

// busy returns the error of an overloaded collector. It names the time after which the sender may try again, unless
// retryDelay is negative.
func busy(retryDelay time.Duration) error {
	s := status.New(codes.ResourceExhausted, "too many spans")
	if retryDelay < 0 {
		return s.Err()
	}
	detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
	if err != nil {
		return err
	}
	return detailed.Err()
}

// breaking is a listener that closes its first connections as soon as the client has sent something.
type breaking struct {
	net.Listener
	left int
}

// Accept accepts a connection.
func (b *breaking) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	for ; err == nil && b.left > 0; b.left-- {
		_, _ = c.Read(make([]byte, 1))
		_ = c.Close() // the client must notice it
		c, err = b.Listener.Accept()
	}
	return c, err
}

// lines keeps reported errors.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) add(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, err.Error())
}

func (l *lines) get() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// recordTurn records a Turn with a provider that has this environment. The caller must close the provider.
func recordTurn(t *testing.T, environment map[string]string, log *lines) *Provider {
	t.Helper()
	for name, value := range environment {
		t.Setenv(name, value)
	}
	p, err := FromEnvironment(t.Context(), lookup(environment), func(...string) func(string) string { return strings.Clone }, log.add)
	if err != nil {
		t.Fatal(err)
	}
	p.Of(aTurn()).Observe(aReply())
	p.End(aTurn(), time.Time{})
	return p
}

// TestCollectorsOverGRPC sends spans over gRPC to collectors that work, and to collectors that misbehave.
func TestCollectorsOverGRPC(t *testing.T) {
	web := httptest.NewUnstartedServer(nil)
	web.StartTLS()
	defer web.Close()
	authority := filepath.Join(t.TempDir(), "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	if err := os.WriteFile(authority, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	defer close(over)
	refusing := func(first error, times int) func(context.Context, int) (*collector.ExportTraceServiceResponse, error) {
		return func(_ context.Context, n int) (*collector.ExportTraceServiceResponse, error) {
			if n <= times {
				return nil, first
			}
			return nil, nil //nolint:nilnil // because the receiver answers
		}
	}
	for name, c := range map[string]struct {
		answer func(context.Context, int) (*collector.ExportTraceServiceResponse, error)
		breaks int
		tls    bool
		more   map[string]string
		spans  int
		// logged is a part of the error in the log, or empty if there must be no error.
		logged string
	}{
		"takes all":                 {spans: 2},
		"has a trusted certificate": {tls: true, more: map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": authority}, spans: 2},
		"has an untrusted certificate": {
			// Long enough for a slow machine to see the certificate.
			tls: true, more: map[string]string{"OTEL_EXPORTER_OTLP_TIMEOUT": "5000"}, logged: "certificate",
		},
		"is busy for a moment":      {answer: refusing(busy(10*time.Millisecond), 1), spans: 2},
		"is busy for an hour":       {answer: refusing(busy(time.Hour), 100), logged: "too many spans"},
		"is busy and names no time": {answer: refusing(busy(-1), 100), logged: "too many spans"},
		"closes the connection":     {breaks: 1, spans: 2},
		"repeats the credential, and more": {
			answer: refusing(status.Error(codes.Unauthenticated, collectorKey+" is "+strings.Repeat("wrong ", 10_000)), 100),
			logged: "is wrong",
		},
		"hangs": {answer: func(ctx context.Context, _ int) (*collector.ExportTraceServiceResponse, error) {
			select {
			case <-ctx.Done():
			case <-over:
			}
			return nil, status.Error(codes.Canceled, "over")
		}, more: map[string]string{"OTEL_EXPORTER_OTLP_TIMEOUT": "500"}, logged: "DeadlineExceeded"},
		"takes a part": {answer: func(context.Context, int) (*collector.ExportTraceServiceResponse, error) {
			return &collector.ExportTraceServiceResponse{PartialSuccess: &collector.ExportTracePartialSuccess{
				RejectedSpans: 1, ErrorMessage: "one is too long\nlevel=error for " + collectorKey,
			}}, nil
		}, logged: "one is too long level=error"},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var options []grpc.ServerOption
			scheme := "http://"
			if c.tls {
				scheme, options = "https://", append(options, grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0])))
			}
			m, server := &testCollector{answer: c.answer}, grpc.NewServer(options...)
			collector.RegisterTraceServiceServer(server, m)
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(&breaking{listener, c.breaks}) }()
			defer func() {
				server.Stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()

			all := map[string]string{
				endpointVariable: scheme + listener.Addr().String(), protocolVariable: protocolGRPC,
				headersVariable: "authorization=" + strings.ReplaceAll(collectorKey, " ", "%20"),
			}
			maps.Copy(all, c.more)
			var log lines
			p := recordTurn(t, all, &log)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := p.Close(ctx); err != nil && c.logged == "" {
				t.Errorf("Close: %v", err)
			}
			if got := len(m.receiver.Spans()); got != c.spans {
				t.Errorf("%d spans arrived, want %d", got, c.spans)
			}
			reported := log.get()
			if (len(reported) == 0) != (c.logged == "") {
				t.Errorf("the log is %q, want %q", reported, c.logged)
			}
			for _, line := range reported {
				if !strings.Contains(line, c.logged) {
					t.Errorf("the log has %.600q, want %q", line, c.logged)
				}
				if strings.Contains(line, "4711") || len(line) > 2*maxError || strings.Contains(line, "\n") {
					t.Errorf("an error has %d bytes, want one short line without the credential: %.600q", len(line), line)
				}
			}
		})
	}
}
