package tracing

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/test/otlp"
)

// lookup returns a function that looks up these variables.
func lookup(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}

// TestSettings checks which variables switch traces on, and that an error names the variable with an invalid value.
func TestSettings(t *testing.T) {
	const at = "http://collector:4318"
	off := settings{protocol: protocolHTTP, propagates: true}
	on := settings{on: true, protocol: protocolHTTP, propagates: true}
	overGRPC := settings{on: true, protocol: protocolGRPC, propagates: true}
	alone := settings{on: true, protocol: "http/protobuf"}
	texts := settings{protocol: "http/protobuf", propagates: true, content: true}
	for name, c := range map[string]struct {
		given   map[string]string
		want    settings
		invalid string // the variable that the error must name
	}{
		"nothing":          {nil, off, ""},
		"an endpoint":      {map[string]string{endpointVariable: at}, on, ""},
		"traces endpoint":  {map[string]string{tracesEndpointVariable: at}, on, ""},
		"gRPC":             {map[string]string{endpointVariable: at, protocolVariable: "grpc"}, overGRPC, ""},
		"disabled":         {map[string]string{endpointVariable: at, disabledVariable: "true"}, off, ""},
		"no exporter":      {map[string]string{endpointVariable: at, exporterVariable: "none"}, off, ""},
		"no propagation":   {map[string]string{endpointVariable: at, propagatorsVariable: "baggage"}, alone, ""},
		"texts":            {map[string]string{ContentVariable: "true"}, texts, ""},
		"no URL":           {given: map[string]string{endpointVariable: "collector:4318"}, invalid: endpointVariable},
		"another protocol": {given: map[string]string{endpointVariable: at, protocolVariable: "http/json"}, invalid: protocolVariable},
		"another exporter": {given: map[string]string{endpointVariable: at, exporterVariable: "zipkin"}, invalid: exporterVariable},
		"a sampler": {
			map[string]string{endpointVariable: at, samplerVariable: "parentbased_traceidratio", samplerArgument: "0.1"}, on, "",
		},
		"no ratio given":  {map[string]string{endpointVariable: at, samplerVariable: "traceidratio"}, on, ""},
		"another sampler": {given: map[string]string{endpointVariable: at, samplerVariable: "sometimes"}, invalid: samplerVariable},
		"an invalid ratio": {
			given:   map[string]string{endpointVariable: at, samplerVariable: "traceidratio", samplerArgument: "10%"},
			invalid: samplerArgument,
		},
		"a ratio above 1": {
			given:   map[string]string{endpointVariable: at, samplerVariable: "traceidratio", samplerArgument: "10"},
			invalid: samplerArgument,
		},
		"headers": {
			map[string]string{
				endpointVariable: at, headersVariable: " api-key = sk-1%2C2%3D , x-tenant=a=b", tracesHeadersVariable: "a=",
			}, on, "",
		},
		"another endpoint": {
			given: map[string]string{tracesEndpointVariable: at, endpointVariable: "http://u:sk-secret@["}, invalid: endpointVariable,
		},
		"an endpoint of other signals": {map[string]string{tracesEndpointVariable: at, endpointVariable: "collector:4317"}, on, ""},
		"a header with :": {
			given: map[string]string{endpointVariable: at, headersVariable: "api-key: sk-secret"}, invalid: headersVariable,
		},
		"a name with :": {
			given:   map[string]string{endpointVariable: at, tracesHeadersVariable: "a=b,api-key: sk-secret="},
			invalid: tracesHeadersVariable,
		},
		"an invalid escape": {
			given: map[string]string{endpointVariable: at, headersVariable: "api-key=sk-secret%zz"}, invalid: headersVariable,
		},
		"a comma at the end": {map[string]string{endpointVariable: at, headersVariable: "a=b,", tracesHeadersVariable: "a=b"}, on, ""},
		"variables of another program": {
			map[string]string{disabledVariable: "true", endpointVariable: "collector:4318", headersVariable: "api-key: sk-secret"}, off, "",
		},
		"variables of another program, without an endpoint": {
			map[string]string{
				exporterVariable: "console", samplerVariable: "jaeger_remote", ContentVariable: "SPAN_ONLY", headersVariable: "api-key: x",
			}, off, "",
		},
		"the protocol of another program, without an endpoint": {
			map[string]string{protocolVariable: "http/json"}, settings{protocol: "http/json", propagates: true}, "",
		},
		"not a boolean": {
			given: map[string]string{endpointVariable: at, ContentVariable: "perhaps"}, invalid: ContentVariable,
		},
		"not a boolean, without an endpoint": {given: map[string]string{disabledVariable: "perhaps"}, invalid: disabledVariable},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := settingsOf(lookup(c.given))
			if c.invalid != "" {
				if err == nil || !strings.Contains(err.Error(), c.invalid) || strings.Contains(err.Error(), "sk-") {
					t.Errorf("the error is %v, want one about %s without its value", err, c.invalid)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("the settings are %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

// TestErrorsOfTheExporter checks that the SDK's own logger, which writes to standard error by default, receives no
// error of an exporter that is created: the error is in the log, without the values of headers.
func TestErrorsOfTheExporter(t *testing.T) {
	var sdk, log []string
	report := func(err error) { log = append(log, err.Error()) }
	redact := func(...string) func(string) string { return strings.Clone }
	for name, c := range map[string]struct {
		given   map[string]string
		invalid bool
	}{
		"headers": {map[string]string{headersVariable: "api-key: sk-secret"}, true},
		"a file":  {map[string]string{headersVariable: "api-key=sk-secret", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/missing/sk-secret"}, false},
	} {
		otel.SetLogger(funcr.New(func(_, line string) { sdk = append(sdk, line) }, funcr.Options{}))
		all := map[string]string{endpointVariable: "http://127.0.0.1:1"}
		maps.Copy(all, c.given)
		for name, value := range all {
			t.Setenv(name, value)
		}
		sdk, log = nil, nil
		p, err := FromEnvironment(t.Context(), lookup(all), redact, report)
		if (err != nil) != c.invalid {
			t.Errorf("%s: the error is %v", name, err)
		}
		text := strings.Join(log, "\n")
		if len(sdk) > 0 || strings.Contains(text, "sk-secret") || !c.invalid && !strings.Contains(text, "no such file") {
			t.Errorf("%s: the SDK's logger has %q and the log %q; want the errors in the log, without the header", name, sdk, log)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// at is the start of the Turn in these tests.
var at = time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC)

// aTurn returns a Turn that has ended.
func aTurn() *v1alpha1.Turn {
	start, end := metav1.NewMicroTime(at), metav1.NewMicroTime(at.Add(time.Second))
	return &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "first", UID: "7f"},
		Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: "support"}},
		Status:     v1alpha1.TurnStatus{StartTime: &start, CompletionTime: &end, StopReason: v1alpha1.StopCompleted},
	}
}

// provider returns a Provider that sends to a receiver.
func provider(t *testing.T, r *otlp.Receiver, more map[string]string) *Provider {
	t.Helper()
	web := httptest.NewServer(r)
	t.Cleanup(web.Close)
	all := map[string]string{endpointVariable: web.URL}
	maps.Copy(all, more)
	for name, value := range all {
		t.Setenv(name, value)
	}
	redact := func(...string) func(string) string {
		return func(text string) string { return strings.ReplaceAll(text, "sk-secret", "[redacted]") }
	}
	p, err := FromEnvironment(t.Context(), lookup(all), redact, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// aReply returns the part of a request with a text in its reply.
func aReply() *turn.Span {
	return &turn.Span{
		Kind: turn.SpanRequest, Key: turn.RequestKey("7f/5"), Parent: turn.StepKey(1), Start: at, End: at.Add(time.Second), Step: 1,
		Request: &loop.Request{Step: 1, Provider: "main", Model: "small", Attempt: 1, ID: "7f/5"},
		Candidate: &loop.Candidate{
			ProviderName: "main", Model: "small", Endpoint: "models.example.com:8443", Protocol: "Anthropic",
		},
		Reply: &loop.Step{
			Model: "small", ResponseModel: "small-2026", FirstEventMS: 250,
			Reply: model.Reply{
				Text: "My key is sk-secret" + strings.Repeat("é", maxContent), FinishReason: model.FinishStop,
				Usage: model.Usage{InputTokens: 10, OutputTokens: 5, CacheReadTokens: 3},
			},
		},
	}
}

// TestRequestSpan checks the attributes of a request, and that texts are recorded only if that is switched on, without
// credentials and with at most maxContent bytes.
func TestRequestSpan(t *testing.T) {
	for name, content := range map[string]string{"without texts": "", "with texts": "true"} {
		t.Run(name, func(t *testing.T) {
			var r otlp.Receiver
			p := provider(t, &r, map[string]string{ContentVariable: content})
			p.Of(aTurn()).Observe(aReply())
			p.End(aTurn(), time.Time{})
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			spans := r.Spans()
			if len(spans) != 2 || spans[0].Name != "chat small" || spans[1].Name != "invoke_agent support" {
				t.Fatalf("the spans are %+v, want those of the request and of the Turn", spans)
			}
			if spans[0].TraceID != span.TraceIDOf("7f").String() || spans[1].Parent != "" || spans[1].ID != span.IDOf("7f", "").String() {
				t.Errorf("the IDs are %+v, want those of the UID", spans)
			}
			got := spans[0].Attributes
			output := got["gen_ai.output.messages"]
			delete(got, "gen_ai.output.messages")
			want := map[string]string{
				"k8s.namespace.name": "helpdesk", "capstan.turn.name": "first", "capstan.turn.uid": "7f", "gen_ai.agent.name": "support",
				"capstan.step": "1", "gen_ai.operation.name": "chat", "gen_ai.request.model": "small", "capstan.model_provider": "main",
				"capstan.attempt": "1", "gen_ai.provider.name": "anthropic", "server.address": "models.example.com", "server.port": "8443",
				"gen_ai.response.finish_reasons": "[stop]", "gen_ai.response.model": "small-2026",
				"gen_ai.response.time_to_first_chunk": "0.25", "gen_ai.usage.input_tokens": "10", "gen_ai.usage.output_tokens": "5",
				"gen_ai.usage.cache_read.input_tokens": "3",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the attributes (-want +got):\n%s", diff)
			}
			switch {
			case content == "" && output != "":
				t.Errorf("the text %.60q is recorded", output)
			case content != "" && (!strings.Contains(output, "My key is [redacted]") || len(output) > maxContent ||
				!json.Valid([]byte(output))):
				t.Errorf("the text is %.60q of %d bytes, want JSON without the key of at most %d bytes", output, len(output), maxContent)
			}
		})
	}
}

// TestOutputOf checks that the recorded messages of a reply are JSON within their bound, whatever the reply has.
func TestOutputOf(t *testing.T) {
	call := func(id, arguments string) model.ToolCall {
		return model.ToolCall{ID: id, Name: "find", Arguments: arguments}
	}
	many := make([]model.ToolCall, maxContent)
	for i := range many {
		many[i] = call(strconv.Itoa(i), "{}")
	}
	for name, r := range map[string]model.Reply{
		"nothing":             {},
		"a long text":         {Text: strings.Repeat("é", maxContent)},
		"a text that expands": {Text: strings.Repeat("<", maxContent)},
		"long arguments":      {Text: "I look.", ToolCalls: []model.ToolCall{call("a", strings.Repeat("x", maxContent)), call("b", "{}")}},
		"a long ID":           {ToolCalls: []model.ToolCall{call(strings.Repeat("x", 2*maxContent), "{}")}},
		"many calls":          {ToolCalls: many},
	} {
		output := (&Turn{redact: func(s string) string { return s }}).outputOf(&r)
		if len(output) > maxContent || !json.Valid([]byte(output)) || !strings.Contains(output, `"role":"assistant"`) {
			t.Errorf("%s: %.60q of %d bytes, want JSON of at most %d bytes", name, output, len(output), maxContent)
		}
	}
}

// TestTextsShareNoMemory checks that the texts of a span, which may wait in the queue, do not keep the whole arguments
// and the whole result of a call in memory.
func TestTextsShareNoMemory(t *testing.T) {
	for name, size := range map[string]int{"short": 10, "long": 1 << 20} {
		long := strings.Repeat("x", size)
		var given []string // the texts that a recorded text could share its memory with
		r := &Turn{
			provider: &Provider{settings: settings{content: true}},
			redact: func(text string) string {
				given = append(given, text)
				return text
			},
		}
		recorded := 0
		for _, a := range r.callAttributes(&turn.Span{
			Result: &loop.CallResult{Name: "find", CallID: "a", Content: long}, Intent: &loop.Intent{Arguments: []byte(long)},
		}) {
			if a.Key != "gen_ai.tool.call.arguments" && a.Key != "gen_ai.tool.call.result" {
				continue
			}
			recorded++
			text := a.Value.AsString()
			if text != long[:min(size, maxContent)] {
				t.Errorf("%s: %s has %d bytes, want the beginning of the text", name, a.Key, len(text))
			}
			for _, g := range given {
				if unsafe.StringData(text) == unsafe.StringData(g) {
					t.Errorf("%s: %s shares the memory of a text of %d bytes", name, a.Key, len(g))
				}
			}
		}
		if recorded != 2 || len(given) != 2 {
			t.Errorf("%s: %d texts are recorded and %d redacted, want 2 and 2", name, recorded, len(given))
		}
	}
}

// TestBatchOptions checks that fewer spans wait, and that a request has fewer, if spans have texts, unless the
// environment has other numbers.
func TestBatchOptions(t *testing.T) {
	sdk := sdktrace.BatchSpanProcessorOptions{BatchTimeout: time.Hour, MaxQueueSize: 1, MaxExportBatchSize: 2} // the SDK's values
	for name, c := range map[string]struct {
		content      bool
		given        map[string]string
		delay        time.Duration
		queue, batch int
	}{
		"without texts": {delay: maxBatchDelay, queue: 1, batch: 2},
		"with texts":    {content: true, delay: maxBatchDelay, queue: maxQueuedWithTexts, batch: maxBatchWithTexts},
		"a queue is set": {
			content: true, given: map[string]string{"OTEL_BSP_MAX_QUEUE_SIZE": "7"},
			delay: maxBatchDelay, queue: 1, batch: maxBatchWithTexts,
		},
		"a batch and a delay are set": {
			content: true, given: map[string]string{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "7", "OTEL_BSP_SCHEDULE_DELAY": "7"},
			delay: time.Hour, queue: maxQueuedWithTexts, batch: 2,
		},
	} {
		got := sdk
		for _, option := range batchOptions(settings{content: c.content}, lookup(c.given)) {
			option(&got)
		}
		if got.BatchTimeout != c.delay || got.MaxQueueSize != c.queue || got.MaxExportBatchSize != c.batch {
			t.Errorf("%s: the options are %+v, want the delay %s, a queue of %d and batches of %d", name, got, c.delay, c.queue, c.batch)
		}
	}
	// A span has some KiB beside its texts.
	if size := maxBatchWithTexts * (2*maxContent + 8<<10); size > 4<<20 {
		t.Errorf("a batch may have %d bytes, want at most 4 MiB", size)
	}
}

// TestSampling checks that the sampling decision of the caller applies, and that all spans of a Turn or none are
// exported.
func TestSampling(t *testing.T) {
	caller := span.Context{TraceID: span.TraceIDOf("caller"), SpanID: span.IDOf("caller", "x")}
	recorded := caller
	recorded.Sampled = true
	for name, c := range map[string]struct {
		annotation string
		sampler    string
		want       int
	}{
		"by default":                     {"", "", 2},
		"never":                          {"", "always_off", 0},
		"the caller is not recorded":     {caller.String(), "", 0},
		"the caller is recorded":         {recorded.String(), "", 2},
		"the annotation is not a trace":  {"what", "", 2},
		"always, with a recorded caller": {recorded.String(), "always_on", 2},
	} {
		t.Run(name, func(t *testing.T) {
			var r otlp.Receiver
			p := provider(t, &r, map[string]string{"OTEL_TRACES_SAMPLER": c.sampler})
			o := aTurn()
			o.Annotations = map[string]string{span.Annotation: c.annotation}
			p.Of(o).Observe(aReply())
			p.End(o, time.Time{})
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := len(r.Spans()); got != c.want {
				t.Errorf("%d spans arrived, want %d", got, c.want)
			}
		})
	}
}

// TestPropagation checks which header a request carries.
func TestPropagation(t *testing.T) {
	given := span.Context{TraceID: span.TraceIDOf("caller"), SpanID: span.IDOf("caller", "x"), Sampled: true}
	key := turn.RequestKey("7f/5")
	own := span.Context{TraceID: given.TraceID, SpanID: span.IDOf("7f", key), Sampled: true}
	var r otlp.Receiver
	on, quiet := provider(t, &r, nil), provider(t, &r, map[string]string{propagatorsVariable: "none"})
	for name, c := range map[string]struct {
		provider *Provider
		called   bool
		want     string
	}{
		"on, with a caller":     {on, true, own.String()},
		"off, with a caller":    {nil, true, given.String()},
		"off, without a caller": {nil, false, ""},
		"turned off":            {quiet, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := aTurn()
			if c.called {
				o.Annotations = map[string]string{span.Annotation: given.String()}
			}
			if got := span.HeaderOf(c.provider.Of(o).Within(t.Context(), key)); got != c.want {
				t.Errorf("the header is %q, want %q", got, c.want)
			}
		})
	}
	bound := aTurn()
	bound.Status.TraceID, bound.Annotations = own.TraceID.String(), map[string]string{span.Annotation: own.String()}
	bound.Annotations[span.Annotation] = span.Context{TraceID: span.TraceIDOf("another"), SpanID: own.SpanID}.String()
	if got := on.Of(bound); got.TraceID() != own.TraceID.String() || got.parent.IsValid() {
		t.Errorf("a changed annotation moves the Turn to the trace %s", got.TraceID())
	}
	for _, p := range []*Provider{on, quiet} {
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeadCollector checks that spans are dropped without a wait if the collector does not answer.
func TestDeadCollector(t *testing.T) {
	release := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer web.Close()
	defer close(release)
	all := map[string]string{endpointVariable: web.URL}
	t.Setenv(endpointVariable, web.URL)
	p, err := FromEnvironment(t.Context(), lookup(all), func(...string) func(string) string { return strings.Clone }, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	o := p.Of(aTurn())
	for range 10_000 { // five times the queue
		o.Observe(aReply())
	}
}
