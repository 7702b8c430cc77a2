// Package otlp is a receiver of OTLP for tests: it serves the collector's protocol over HTTP and gRPC, and keeps the
// spans.
package otlp

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// maxBody bounds a request, in bytes.
const maxBody = 16 << 20

// Span is a span that arrived.
type Span struct {
	TraceID, ID, Parent, Name string
	// Start and End are in nanoseconds since 1970.
	Start, End uint64
	// Attributes are the span's attributes, and Resource the attributes of the sender, all as text.
	Attributes, Resource map[string]string
}

// Receiver keeps the spans that it receives. The zero value is ready for use. It is safe for concurrent use.
type Receiver struct {
	collector.UnimplementedTraceServiceServer

	mu    sync.Mutex
	spans []Span
	// arrived is closed when the next spans arrive. It is nil if no goroutine waits.
	arrived chan struct{}
}

// Wait waits until done returns true for the spans that have arrived. It returns an error if ctx ends first. done must
// not call the Receiver.
func (r *Receiver) Wait(ctx context.Context, done func([]Span) bool) error {
	for {
		r.mu.Lock()
		ok := done(r.spans)
		if r.arrived == nil {
			r.arrived = make(chan struct{})
		}
		arrived, have := r.arrived, len(r.spans)
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return fmt.Errorf("waited for spans, %d have arrived: %w", have, context.Cause(ctx))
		}
	}
}

// Spans returns the spans that have arrived.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// Export receives spans over gRPC.
func (r *Receiver) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range in.GetResourceSpans() {
		resource := attributes(from.GetResource().GetAttributes())
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, Span{
					TraceID: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()), Name: s.GetName(), Start: s.GetStartTimeUnixNano(),
					End: s.GetEndTimeUnixNano(), Attributes: attributes(s.GetAttributes()), Resource: resource,
				})
			}
		}
	}
	if r.arrived != nil {
		close(r.arrived)
		r.arrived = nil
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// attributes returns the values of attributes as text, by name.
func attributes(all []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range all {
		out[a.GetKey()] = textOf(a.GetValue())
	}
	return out
}

// textOf returns a value as text.
func textOf(v *common.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return fmt.Sprint(v.IntValue)
	case *common.AnyValue_DoubleValue:
		return fmt.Sprint(v.DoubleValue)
	case *common.AnyValue_BoolValue:
		return fmt.Sprint(v.BoolValue)
	case *common.AnyValue_ArrayValue:
		var items []string
		for _, item := range v.ArrayValue.GetValues() {
			items = append(items, textOf(item))
		}
		return fmt.Sprint(items)
	}
	return v.String()
}

// ServeHTTP receives spans over HTTP, at the path /v1/traces.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost || req.URL.Path != "/v1/traces" || req.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "POST /v1/traces with application/x-protobuf", http.StatusNotFound)
		return
	}
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	data, err := io.ReadAll(io.LimitReader(body, maxBody))
	var in collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &in)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, _ := r.Export(req.Context(), &in)
	data, err = proto.Marshal(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(data) // ignore that the sender has disconnected
}
