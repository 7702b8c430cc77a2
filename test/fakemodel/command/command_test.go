package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sashabaranov/go-openai"
	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// execute runs the command with arguments and returns its output.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := New()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestHelpHasAnExample(t *testing.T) {
	out, err := execute(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"--listen", "--rules", "--quiet", "Examples:", "rules.yaml"} {
		if !strings.Contains(out, part) {
			t.Errorf("want %q in the help, have:\n%s", part, out)
		}
	}
}

func TestBadArgumentsEndInAnError(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("rules: [{}, {fault: {status: 42}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"BadRules":    {[]string{"--rules", bad}, []string{"bad.yaml", "rules[1].fault.status"}},
		"NoRulesFile": {[]string{"--rules", bad + ".none"}, []string{"bad.yaml.none"}},
		"BadAddress":  {[]string{"--listen", "nowhere"}, []string{"--listen", "nowhere"}},
		"Argument":    {[]string{"serve"}, []string{"serve"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := execute(t, tc.args...)
			if err == nil {
				t.Fatal("want an error, have none")
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("want %q in the error, have: %v", part, err)
				}
			}
		})
	}
}

// lockedBuffer is a buffer that a logger may write to while a test reads it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
	// written is called after each write. It may be nil.
	written func()
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.written != nil {
		defer b.written()
	}
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestCommandServesUntilItIsStopped(t *testing.T) {
	const rules = "../rules.yaml"
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	config, err := server.ParseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := New()
	cmd.SetArgs([]string{"--listen", "127.0.0.1:0", "--rules", rules})
	logged := lockedBuffer{written: stop} // the first line is logged when the server is ready
	cmd.SetErr(&logged)
	if err := cmd.ExecuteContext(ctx); err != nil {
		t.Errorf("want a clean stop, have: %v", err)
	}
	count := fmt.Sprintf("rules=%d", len(config.Rules))
	if got := logged.String(); !strings.Contains(got, "url=http://127.0.0.1:") || !strings.Contains(got, count) {
		t.Errorf("want the URL with the real port and %s, have: %s", count, got)
	}
}

// TestStopCutsHangs stops a server that has answered one request and hangs in another one.
func TestStopCutsHangs(t *testing.T) {
	cfg, err := server.ParseConfig([]byte(`
rules:
- when: {contains: hang}
  fault: {hang: AfterHeaders}
- reply: {text: "secret {{ .User }}"}
`))
	if err != nil {
		t.Fatal(err)
	}
	var logged lockedBuffer
	fake, err := server.New(cfg, server.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- serve(ctx, listener, fake) }()

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	clientConfig := openai.DefaultConfig("any")
	clientConfig.BaseURL = "http://" + listener.Addr().String() + "/v1"
	clientConfig.HTTPClient = &http.Client{Transport: transport}
	client := openai.NewClientWithConfig(clientConfig)
	request := func(text string) openai.ChatCompletionRequest {
		return openai.ChatCompletionRequest{Model: "m", Messages: []openai.ChatCompletionMessage{{Role: "user", Content: text}}}
	}
	if _, err := client.CreateChatCompletion(t.Context(), request("word")); err != nil {
		t.Fatalf("want an answer while the server runs, have: %v", err)
	}
	hung := make(chan error, 1)
	go func() {
		_, err := client.CreateChatCompletion(t.Context(), request("hang"))
		hung <- err
	}()
	waiting, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := fake.Wait(waiting, func(s server.Stats) bool { return s.InFlight == 1 }); err != nil {
		t.Fatal(err)
	}

	stop()
	if err := <-served; err != nil {
		t.Errorf("want a clean stop, have: %v", err)
	}
	if err := <-hung; err == nil {
		t.Error("a hang must be cut by the stop")
	}
	lines := logged.String()
	if n := strings.Count(lines, "\n"); n != 2 || !strings.Contains(lines, "outcome=answered") ||
		!strings.Contains(lines, "outcome=released") {
		t.Errorf("want one line for each request, have:\n%s", lines)
	}
	if strings.Contains(lines, "secret") || strings.Contains(lines, "word") {
		t.Errorf("prompts and answers must not be logged, have:\n%s", lines)
	}
}

func TestServeFailsIfItsListenerIsClosed(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fake, err := server.New(server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := serve(t.Context(), listener, fake); !errors.Is(err, net.ErrClosed) {
		t.Errorf("want the listener's error, have: %v", err)
	}
}
