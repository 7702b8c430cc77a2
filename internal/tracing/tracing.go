// Package tracing exports the parts of Turns as OpenTelemetry spans over OTLP. The environment variables OTEL_*
// configure it. Without an endpoint, nothing is exported.
//
// The SDK sends spans in the background, in batches, from a bounded queue. If the collector is slow or unreachable,
// spans are dropped. A Turn never waits for the collector.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/span"
)

// ContentVariable is the environment variable that switches on the recording of texts. Other instrumentations for
// generative AI use the same variable.
const ContentVariable = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

// The environment variables that this package reads, besides ContentVariable and those of batchOptions. The SDK and
// its exporter read all other OTEL_* variables. The SDK reads those of the sampler, too, but it would record all traces
// if a value is invalid.
const (
	disabledVariable       = "OTEL_SDK_DISABLED"
	exporterVariable       = "OTEL_TRACES_EXPORTER"
	propagatorsVariable    = "OTEL_PROPAGATORS"
	samplerVariable        = "OTEL_TRACES_SAMPLER"
	samplerArgument        = "OTEL_TRACES_SAMPLER_ARG"
	endpointVariable       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesEndpointVariable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	protocolVariable       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	tracesProtocolVariable = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	headersVariable        = "OTEL_EXPORTER_OTLP_HEADERS"
	tracesHeadersVariable  = "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
)

// headersVariables are the variables with the headers of requests to the collector.
var headersVariables = []string{headersVariable, tracesHeadersVariable}

// The protocols of OTLP.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// settings are the settings of the environment.
type settings struct {
	// on is true if spans are exported. protocol is the protocol of OTLP.
	on       bool
	protocol string
	// content is true if texts are recorded. propagates is true if requests carry the header traceparent.
	content, propagates bool
}

// settingsOf reads the settings. It returns all errors, each with its variable. If spans are not exported, only
// OTEL_SDK_DISABLED is checked, because the other variables may be those of another program.
func settingsOf(lookup func(string) (string, bool)) (settings, error) {
	get := func(names ...string) (name, value string) {
		for _, name = range names {
			if v, _ := lookup(name); strings.TrimSpace(v) != "" {
				return name, strings.TrimSpace(v)
			}
		}
		return "", ""
	}
	boolean := func(name string) (bool, error) {
		_, v := get(name)
		switch strings.ToLower(v) {
		case "true":
			return true, nil
		case "", "false":
			return false, nil
		}
		return false, fmt.Errorf("environment variable %s %q must be true or false", name, v)
	}
	var s settings
	off, err := boolean(disabledVariable)
	content, contentErr := boolean(ContentVariable)
	_, propagators := get(propagatorsVariable)
	_, exporter := get(exporterVariable)
	protocolName, protocol := get(tracesProtocolVariable, protocolVariable)
	endpointName, endpoint := get(tracesEndpointVariable, endpointVariable)
	s.content, s.protocol = content, cmp.Or(protocol, protocolHTTP)
	s.propagates = propagators == "" || slices.Contains(strings.Split(strings.ReplaceAll(propagators, " ", ""), ","), "tracecontext")
	if s.on = endpoint != "" && exporter != "none" && !off; !s.on {
		return s, err
	}
	errs := []error{err, contentErr, checkEndpoint(endpointName, endpoint)}
	if exporter != "" && exporter != "otlp" {
		errs = append(errs, fmt.Errorf("environment variable %s %q must be otlp or none", exporterVariable, exporter))
	}
	if _, v := get(endpointVariable); endpointName != endpointVariable && v != "" {
		// The exporter reads it, too, and would log a value that cannot be parsed.
		if _, err := url.Parse(v); err != nil {
			errs = append(errs, checkEndpoint(endpointVariable, v))
		}
	}
	for _, variable := range headersVariables {
		if _, v := get(variable); v != "" {
			errs = append(errs, checkHeaders(variable, v))
		}
	}
	if s.protocol != protocolGRPC && s.protocol != protocolHTTP {
		errs = append(errs, fmt.Errorf("environment variable %s %q must be %s or %s", protocolName, protocol, protocolHTTP, protocolGRPC))
	}
	_, sampler := get(samplerVariable)
	_, ratio := get(samplerArgument)
	return s, errors.Join(append(errs, checkSampler(sampler, ratio))...)
}

// checkSampler returns an error if the SDK does not have a sampler, or its argument is invalid.
func checkSampler(sampler, ratio string) error {
	switch sampler {
	case "", "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
		return nil
	case "traceidratio", "parentbased_traceidratio":
		if share, err := strconv.ParseFloat(cmp.Or(ratio, "1"), 64); err != nil || math.IsNaN(share) || share < 0 || share > 1 {
			return fmt.Errorf("environment variable %s %q must be a number from 0 to 1, such as 0.1", samplerArgument, ratio)
		}
		return nil
	}
	return fmt.Errorf("environment variable %s %q must be always_on, always_off, traceidratio, parentbased_always_on, "+
		"parentbased_always_off or parentbased_traceidratio", samplerVariable, sampler)
}

// checkEndpoint returns an error unless a value is the URL of a collector. The error does not contain the value, which
// may have a password.
func checkEndpoint(variable, value string) error {
	if u, err := url.Parse(value); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("environment variable %s must be a URL that begins with http:// or https://, such as "+
			"http://collector.observability:4318", variable)
	}
	return nil
}

// checkHeaders returns an error if a list of headers has an entry that the exporter does not accept. The error contains
// no part of the list, because any part may be a credential.
func checkHeaders(variable, list string) error {
	number := 0
	for entry := range strings.SplitSeq(list, ",") {
		if number++; strings.TrimSpace(entry) == "" {
			continue // a comma at the end of the list, which the exporter ignores
		}
		name, value, found := strings.Cut(entry, "=")
		_, err := url.PathUnescape(value)
		var problem string
		switch {
		case !found:
			problem = "has no ="
		case !httpguts.ValidHeaderFieldName(strings.TrimSpace(name)):
			problem = "has no valid name of a header before its ="
		case err != nil:
			problem = "has a % that does not begin an escape"
		default:
			continue
		}
		return fmt.Errorf("environment variable %s: entry %d %s: write NAME=VALUE for each header, with commas between the entries; "+
			"in a value, write %%2C for a comma and %%25 for a percent sign", variable, number, problem)
	}
	return nil
}

// Provider exports the spans of Turns. A nil Provider exports nothing. It is safe for concurrent use.
type Provider struct {
	settings settings
	// sdk is nil if spans are not exported.
	sdk    *sdktrace.TracerProvider
	tracer trace.Tracer
	redact func(namespaces ...string) func(string) string
}

// maxBatchDelay is the longest time until a span is sent, so that a process that is killed loses few spans. The
// variable OTEL_BSP_SCHEDULE_DELAY overrides it.
const maxBatchDelay = time.Second

// The numbers of spans that wait, and of spans in one request to the collector, if spans have texts. A span then has up
// to 2*maxContent bytes of texts. With the SDK's defaults of 2048 and 512, the queue could take 32 MiB, and a batch
// could exceed the 4 MiB that a collector accepts over gRPC by default: it would refuse all spans of the batch. The
// variables OTEL_BSP_MAX_QUEUE_SIZE and OTEL_BSP_MAX_EXPORT_BATCH_SIZE override the numbers.
const (
	maxQueuedWithTexts = 512
	maxBatchWithTexts  = 128
)

// batchOptions returns the options of the queue and the batches of spans. The SDK reads the variables that are set.
func batchOptions(s settings, lookup func(string) (string, bool)) []sdktrace.BatchSpanProcessorOption {
	var all []sdktrace.BatchSpanProcessorOption
	add := func(variable string, option sdktrace.BatchSpanProcessorOption) {
		if value, _ := lookup(variable); value == "" {
			all = append(all, option)
		}
	}
	add("OTEL_BSP_SCHEDULE_DELAY", sdktrace.WithBatchTimeout(maxBatchDelay))
	if s.content {
		add("OTEL_BSP_MAX_QUEUE_SIZE", sdktrace.WithMaxQueueSize(maxQueuedWithTexts))
		add("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", sdktrace.WithMaxExportBatchSize(maxBatchWithTexts))
	}
	return all
}

// defaultService is the name of the service if OTEL_SERVICE_NAME does not set it.
const defaultService = "capstan"

// FromEnvironment returns a Provider with the settings of the environment. clean returns a function that removes the
// credentials of these namespaces from a text. report receives every error of the exporter, without the credentials for
// the collector and with at most maxError characters: if the collector is unreachable, one for each batch. report must
// be safe for concurrent use.
func FromEnvironment(
	ctx context.Context, lookup func(string) (string, bool), clean func(namespaces ...string) func(string) string, report func(error),
) (*Provider, error) {
	s, err := settingsOf(lookup)
	if err != nil {
		return nil, err
	}
	p := &Provider{settings: s, redact: clean}
	if !s.on {
		return p, nil
	}
	errorHandler := &errorReporter{report: report, redactor: redact.New(headerValues(lookup)...)}
	otel.SetErrorHandler(errorHandler)
	// The exporter logs errors about its variables, such as a certificate that cannot be read, with their values. So
	// both must be set before the exporter is created.
	otel.SetLogger(funcr.New(func(_, line string) { errorHandler.Handle(errors.New(line)) }, funcr.Options{}))
	exporter, err := newExporter(ctx, s.protocol, lookup)
	if err != nil {
		return nil, fmt.Errorf("failed to create the exporter of traces: %w", err)
	}
	res, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", defaultService)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("environment variable OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	p.sdk = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter, batchOptions(s, lookup)...), sdktrace.WithResource(res),
		sdktrace.WithIDGenerator(knownIDs{}))
	p.tracer = p.sdk.Tracer("github.com/capstan-dev/capstan")
	return p, nil
}

// keepAlive ends a connection to a collector whose machine acknowledges nothing for 15 seconds, because gRPC then also
// sets TCP_USER_TIMEOUT. Without it, all spans are lost for about 15 minutes, during which Linux retransmits data. The
// pings come seldom, because many servers end a connection with more than one ping in 5 minutes.
var keepAlive = keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 15 * time.Second}

// newExporter returns the exporter for a protocol. It does not connect.
func newExporter(ctx context.Context, protocol string, lookup func(string) (string, bool)) (*otlptrace.Exporter, error) {
	if protocol == protocolGRPC {
		return otlptracegrpc.New(ctx, otlptracegrpc.WithDialOption(grpc.WithKeepaliveParams(keepAlive)))
	}
	newClient := func() otlptrace.Client {
		// All clients share their connections, unless an option needs a transport of its own. This one is the default.
		return otlptracehttp.NewClient(otlptracehttp.WithProxy(http.ProxyFromEnvironment))
	}
	return otlptrace.New(ctx, &repeating{newClient: newClient, timeout: timeoutOf(lookup)})
}

// On reports whether spans are exported.
func (p *Provider) On() bool { return p != nil && p.sdk != nil }

// Close sends the remaining spans, until ctx ends.
func (p *Provider) Close(ctx context.Context) error {
	if !p.On() {
		return nil
	}
	if err := p.sdk.Shutdown(ctx); err != nil {
		return fmt.Errorf("failed to send the last spans: %w", err)
	}
	return nil
}

// headerValues returns the values of the headers of requests to the collector, which are often credentials.
func headerValues(lookup func(string) (string, bool)) []string {
	var all []string
	for _, name := range headersVariables {
		list, _ := lookup(name)
		for header := range strings.SplitSeq(list, ",") {
			_, value, _ := strings.Cut(header, "=")
			if value = strings.TrimSpace(value); value == "" {
				continue
			}
			all = append(all, value)
			if decoded, err := url.PathUnescape(value); err == nil && decoded != value {
				all = append(all, decoded)
			}
		}
	}
	return all
}

// maxError is the maximum length of a reported error, in characters. The collector may have written its text.
const maxError = 500

// errorReporter reports the errors of the SDK.
type errorReporter struct {
	report func(error)
	// redactor removes the credentials for the collector.
	redactor *redact.Redactor
}

// Handle reports an error.
func (r *errorReporter) Handle(err error) {
	r.report(errors.New(r.redactor.Line(err.Error(), maxError)))
}

// knownIDs gives spans the IDs that their contexts carry.
type knownIDs struct{}

type idKey struct{}

// withID returns a context for the start of one span with known IDs.
func withID(ctx context.Context, c span.Context) context.Context {
	return context.WithValue(ctx, idKey{}, c)
}

// NewIDs returns the IDs for a span without a parent.
func (knownIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	c, _ := ctx.Value(idKey{}).(span.Context)
	return trace.TraceID(c.TraceID), trace.SpanID(c.SpanID)
}

// NewSpanID returns the ID for a span with a parent.
func (knownIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	c, _ := ctx.Value(idKey{}).(span.Context)
	return trace.SpanID(c.SpanID)
}
