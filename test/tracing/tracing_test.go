// Package tracing_test runs Turns in real processes and checks the spans that arrive at a real collector.
package tracing_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
	"github.com/capstan-dev/capstan/test/otlp"
)

const (
	root = "../.."
	// patience bounds the wait for a condition.
	patience = 2 * time.Minute
	// callerTrace and callerSpan are the trace and the span of the program that runs the Turn.
	callerTrace, callerSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	// parked is the exit code of a Turn that requires approval.
	parked = 3
)

// headers records the header traceparent of each request to a server.
type headers struct {
	mu     sync.Mutex
	values []string
}

// serveProxy serves a proxy of target that records the headers, and returns its URL.
func (h *headers) serveProxy(t *testing.T, target string) string {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: to.Scheme, Host: to.Host})
	proxyURL := harnesstest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.values = append(h.values, r.Header.Get("Traceparent"))
		h.mu.Unlock()
		proxy.ServeHTTP(w, r)
	}))
	return proxyURL + to.Path
}

// spans returns the span IDs in the recorded headers.
func (h *headers) spans(t *testing.T) []string {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var ids []string
	for _, value := range h.values {
		if value == "" {
			continue // the request lists the tools or is a probe
		}
		parts := strings.Split(value, "-")
		if len(parts) != 4 || parts[1] != callerTrace || parts[3] != "01" {
			t.Fatalf("a request has the header %q, want the trace %s", value, callerTrace)
		}
		ids = append(ids, parts[2])
	}
	return ids
}

// world has the servers and the manifests of examples/tools.
type world struct {
	dir, data, program string
	model              *server.Server
	toModel, toTools   headers
	receiver           otlp.Receiver
	// collector and overGRPC are environment variables that make a program send its spans to the collector, over HTTP
	// and over gRPC.
	collector, overGRPC []string
}

// newWorld serves the model and the tools, and writes the manifests with their addresses. If hangs is
// true, the model does not answer the first request after the first tool call.
func newWorld(t *testing.T, hangs bool) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), data: t.TempDir()}
	rules := harnesstest.DemoRules(t, root)
	if hangs {
		hang := server.Rule{Times: new(int64(1)), When: server.When{SystemContains: "You look after the tickets", ToolMessages: new(1)}}
		hang.Fault.Hang = server.HangAfterHeaders
		rules.Rules = slices.Insert(rules.Rules, 0, hang)
	}
	var baseURL string
	w.model, baseURL = harnesstest.Model(t, rules)
	_, tools := harnesstest.Tickets(t)
	addresses := strings.NewReplacer("http://127.0.0.1:8089/v1", w.toModel.serveProxy(t, baseURL),
		"http://127.0.0.1:8090/mcp", w.toTools.serveProxy(t, tools))
	files, err := filepath.Glob(filepath.Join(root, "examples", "tools", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(w.dir, filepath.Base(path)), []byte(addresses.Replace(string(content))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if w.program, err = harness.Build(t.Context(), root, t.TempDir(), "capstan"); err != nil {
		t.Fatal(err)
	}
	return w
}

// start starts `capstan run` with the manifests in a process of its own.
func (w *world) start(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), w.program, append([]string{"run", "-f", w.dir, "--data-dir", w.data}, args...)...)
	cmd.Env = slices.Concat(os.Environ(), w.collector, []string{
		"OTEL_SERVICE_NAME=desk", "OTEL_BSP_SCHEDULE_DELAY=20", "TRACEPARENT=00-" + callerTrace + "-" + callerSpan + "-01",
	})
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// startCollector starts the receiver of the OpenTelemetry collector in a process of its own. Its spans go to
// w.receiver.
func (w *world) startCollector(t *testing.T) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "collector")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join(root, "test", "collector"), "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("failed to build the collector: %v: %s", err, output)
	}
	const attempts = 5
	for range attempts {
		if w.runCollector(t, program) {
			return
		}
	}
	t.Fatalf("the collector has ended before it was ready, %d times", attempts)
}

// runCollector runs the program of the collector at free addresses until the test ends. It returns false if the
// collector ends before it is ready, because another process may take an address before the collector listens there.
func (w *world) runCollector(t *testing.T, program string) bool {
	t.Helper()
	var addresses [2]string
	for i := range addresses {
		var err error
		if addresses[i], err = harness.FreeAddress(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "-http", addresses[0], "-grpc", addresses[1])
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	if errors.Is(err, io.EOF) {
		t.Logf("the collector has ended before it was ready: %v", cmd.Wait())
		return false
	}
	if err != nil || line != "ready\n" {
		t.Fatalf("the collector prints %q, error %v; want ready", line, err)
	}
	received := make(chan error, 1)
	go func() { received <- w.receive(lines) }()
	t.Cleanup(func() {
		_ = stdin.Close() // so that the collector exits
		if err := errors.Join(<-received, cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	w.collector = []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + addresses[0], "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_EXPORTER_OTLP_COMPRESSION=gzip",
	}
	w.overGRPC = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + addresses[1], "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}
	return true
}

// receive reads the spans that the collector prints until its output ends.
func (w *world) receive(lines *bufio.Reader) error {
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err != nil {
			return err
		}
		var batch collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(data, &batch); err != nil {
			return err
		}
		if _, err := w.receiver.Export(context.Background(), &batch); err != nil {
			return err
		}
	}
}

// exitCode waits for a process and returns its exit code.
func exitCode(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	err := cmd.Wait()
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return ended.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0
}

// TestOneTrace runs a Turn with tools, a sub-agent and an approval in three processes. The first process is killed
// during a request, the second exits because the Turn requires approval, and the third completes the Turn. The second
// process sends its spans over gRPC, the other two over HTTP. All spans must be one connected trace below the span of
// the caller, and no span may contain a text of the conversation.
func TestOneTrace(t *testing.T) {
	w := newWorld(t, true)
	w.startCollector(t)
	killed := w.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.model.Wait(ctx, func(s server.Stats) bool { return s.Requests == 2 && s.InFlight == 1 }); err != nil {
		t.Fatal(err)
	}
	called := func(all []otlp.Span) bool {
		return slices.ContainsFunc(all, func(s otlp.Span) bool { return s.Name == "execute_tool search_tickets" })
	}
	if err := w.receiver.Wait(ctx, called); err != nil { // the parent of this span arrives with the third run
		t.Fatal(err)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait() // it was killed
	overHTTP := w.collector
	w.collector = w.overGRPC
	if code := exitCode(t, w.start(t)); code != parked {
		t.Fatalf("the second run exits with %d, want %d: an approval is required", code, parked)
	}
	w.collector = overHTTP
	if code := exitCode(t, w.start(t, "--approve=all")); code != 0 {
		t.Fatalf("the third run exits with %d, want 0", code)
	}

	spans := w.receiver.Spans()
	byID, problems := otlp.Tree(spans, callerSpan)
	for _, problem := range problems {
		t.Error(problem)
	}
	if len(byID) != len(spans) {
		t.Errorf("%d spans arrived, with %d IDs: some arrived twice", len(spans), len(byID))
	}
	names := map[string][]otlp.Span{}
	for _, s := range spans {
		names[s.Name] = append(names[s.Name], s)
		switch {
		case s.TraceID != callerTrace:
			t.Errorf("the span %q is in the trace %s, want the caller's trace", s.Name, s.TraceID)
		case s.Resource["service.name"] != "desk":
			t.Errorf("the span %q is of the service %q, want desk", s.Name, s.Resource["service.name"])
		}
		for name := range s.Attributes {
			if strings.HasSuffix(name, "messages") || strings.HasSuffix(name, ".arguments") || strings.HasSuffix(name, ".result") {
				t.Errorf("the span %q has the text %s", s.Name, name)
			}
		}
	}
	for name, want := range map[string]int{
		"invoke_agent helpdesk": 1, "invoke_agent researcher": 1, "execute_tool researcher": 1, "execute_tool close_ticket": 1,
		"approval close_ticket": 1, "execute_tool ticket_context": 1, "step 1": 2, "prepare": 2, "finalize": 2,
	} {
		if got := len(names[name]); want == 1 && got != 1 {
			t.Errorf("%d spans %q arrived, want exactly 1", got, name)
		} else if got < want {
			t.Errorf("%d spans %q arrived, want at least %d", got, name, want)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	child := names["invoke_agent researcher"][0]
	if call := names["execute_tool researcher"][0]; child.Parent != call.ID {
		t.Errorf("the Turn of the sub-agent is below %q, want its call", byID[child.Parent].Name)
	}
	whole := names["invoke_agent helpdesk"][0]
	for name, want := range map[string]string{
		"gen_ai.operation.name": "invoke_agent", "capstan.prompt.id": "helpdesk.tickets", "capstan.prompt.version": "1.0.0",
		"k8s.namespace.name": "default", "capstan.resumes": "1", "capstan.turn.stop_reason": "Completed",
	} {
		if got := whole.Attributes[name]; got != want {
			t.Errorf("the span of the Turn has %s %q, want %q", name, got, want)
		}
	}
	interrupted := 0
	for _, s := range names["chat demo-small"] {
		if s.Attributes["error.type"] == "Interrupted" {
			interrupted++
			continue
		}
		if s.Attributes["gen_ai.usage.input_tokens"] == "" || s.Attributes["gen_ai.provider.name"] != "openai" {
			t.Errorf("a request has the attributes %v", s.Attributes)
		}
	}
	if interrupted != 1 {
		t.Errorf("%d requests were interrupted, want 1", interrupted)
	}
	for _, id := range w.toModel.spans(t) {
		if !strings.HasPrefix(byID[id].Name, "chat ") {
			t.Errorf("the model received the span %s (%q), want the span of a request", id, byID[id].Name)
		}
	}
	atTools := w.toTools.spans(t)
	if len(atTools) == 0 {
		t.Error("no tool call had the header")
	}
	for _, id := range atTools {
		if !strings.HasPrefix(byID[id].Name, "execute_tool ") {
			t.Errorf("the tool server received the span %s (%q), want the span of a call", id, byID[id].Name)
		}
	}
}

// TestTurnCompletesWithADeadCollector checks that a Turn completes if the collector accepts connections and never
// answers.
func TestTurnCompletesWithADeadCollector(t *testing.T) {
	w := newWorld(t, false)
	dead := make(chan struct{})
	defer close(dead)
	collectorURL := harnesstest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-dead:
		case <-r.Context().Done():
		}
	}))
	w.collector = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collectorURL}
	if code := exitCode(t, w.start(t, "--approve=all")); code != 0 {
		t.Errorf("the run exits with %d, want 0", code)
	}
}
