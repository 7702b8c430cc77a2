package tracing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
)

// The variables that limit the time for the export of a batch, in milliseconds.
const (
	timeoutVariable       = "OTEL_EXPORTER_OTLP_TIMEOUT"
	tracesTimeoutVariable = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"
)

// defaultTimeout is the limit of OpenTelemetry's specification if no variable sets one.
const defaultTimeout = 10 * time.Second

// timeoutOf returns the maximum time for the export of a batch. It ignores an invalid value, as the exporter does.
func timeoutOf(lookup func(string) (string, bool)) time.Duration {
	for _, name := range []string{tracesTimeoutVariable, timeoutVariable} {
		v, _ := lookup(name)
		if milliseconds, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
			return time.Duration(milliseconds) * time.Millisecond
		}
	}
	return defaultTimeout
}

// The first and the longest wait before spans are sent again after a connection broke.
const (
	firstRepeat   = 100 * time.Millisecond
	longestRepeat = 5 * time.Second
)

// repeating sends spans again if the connection to the collector breaks before the collector has answered. The client
// for OTLP over HTTP repeats only requests that the collector has refused because it is busy. After a batch whose time
// is over, repeating connects again. With HTTP/2, a connection is used again although nothing answers on it, and all
// spans would be lost for about 15 minutes, during which Linux retransmits data.
type repeating struct {
	// newClient returns a client with connections of its own.
	newClient func() otlptrace.Client
	// timeout limits the time for all attempts. 0 or less means no limit.
	timeout time.Duration

	mu     sync.Mutex
	client otlptrace.Client // nil before Start
}

// Start makes the client ready. It does not connect.
func (r *repeating) Start(ctx context.Context) error {
	client := r.newClient()
	if err := client.Start(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.client = client
	return nil
}

// Stop ends the client.
func (r *repeating) Stop(ctx context.Context) error { return r.current().Stop(ctx) }

func (r *repeating) current() otlptrace.Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.client
}

// UploadTraces sends spans to the collector.
func (r *repeating) UploadTraces(ctx context.Context, spans []*tracev1.ResourceSpans) error {
	client := r.current()
	bounded := ctx
	if r.timeout > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = firstRepeat, longestRepeat
	var last error
	_, err := backoff.Retry(bounded, func() (struct{}, error) {
		if last = client.UploadTraces(bounded, spans); last != nil && !isBroken(last) {
			return struct{}{}, backoff.Permanent(last)
		}
		return struct{}{}, last
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	if err != nil && !errors.Is(last, err) {
		err = fmt.Errorf("%w: %w", err, last) // report the cause besides the end of ctx
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		if failure := r.Start(ctx); failure != nil {
			return errors.Join(err, failure)
		}
	}
	return err
}

// isBroken reports whether an error means that a connection broke after it was made. Other failures of a connection,
// such as a wrong address or a certificate that is not trusted, are reported immediately.
func isBroken(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || ok && (op.Op == "read" || op.Op == "write")
}
