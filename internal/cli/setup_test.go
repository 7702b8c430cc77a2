package cli_test

import (
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// key is the credential of the tests. No output may contain it.
const key = "sk-very-secret-4711"

// noon is a fixed time for tests.
const noon = "2026-04-09T12:00:00Z"

// Manifests of one Turn. BASEURL is replaced by the URL of the model server.
const (
	agentYAML = `apiVersion: capstan.dev/v1alpha1
kind: Agent
metadata: {name: support}
spec:
  description: Answers questions.
  promptProfileRef: {name: support}
  models:
  - providerRef: {name: demo}
    model: small
  limits: {timeoutSeconds: 30}
`
	profileYAML = `apiVersion: capstan.dev/v1alpha1
kind: PromptProfile
metadata: {name: support}
spec:
  id: helpdesk.support
  version: 1.0.0
  variables:
  - {name: product, default: the helpdesk, trust: Trusted}
  identity: {assistantName: Ada}
  instructions: Answer questions about {{ .product }}.
  overrides: {behavior: Be brief.}
`
	providerYAML = `apiVersion: capstan.dev/v1alpha1
kind: ModelProvider
metadata: {name: demo}
spec:
  type: OpenAI
  baseURL: BASEURL
  credentialsRef: {name: model-key, key: apiKey}
  models:
  - name: small
    pricing: {currency: USD, inputPerMillion: "1", outputPerMillion: "2"}
  retry: {maxAttempts: 1}
`
	secretYAML = `apiVersion: v1
kind: Secret
metadata: {name: model-key}
stringData: {apiKey: ` + key + `}
`
	notesYAML = `apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data: {today: The shop is closed., refunds: Pay back within a week.}
binaryData: {logo: AP8=}
`
	turnYAML = `apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {name: first}
spec:
  agentRef: {name: support}
  message: What is up?
  context:
    facts:
    - {id: f1, text: Nothing much., source: notes/a.md}
`
)

// skillOf returns a field of a PromptProfile with the skill refunds, whose content is in a ConfigMap.
func skillOf(configMap, key string) string {
	return "  skills: [{key: refunds, name: Refunds, contentFrom: {configMapKeyRef: {name: " + configMap + ", key: " + key + "}}}]\n"
}

// files maps the names of files to manifests.
type files map[string]string

// complete returns all manifests that a run needs.
func complete() files {
	return files{
		"agent.yaml": agentYAML, "profile.yaml": profileYAML, "provider.yaml": providerYAML,
		"secret.yaml": secretYAML, "turn.yaml": turnYAML,
	}
}

// with replaces a text of one file, and returns the files.
func (f files) with(t *testing.T, name, old, replacement string) files {
	t.Helper()
	if !strings.Contains(f[name], old) {
		t.Fatalf("%s must contain %q", name, old)
	}
	f[name] = strings.Replace(f[name], old, replacement, 1)
	return f
}

// written writes the files into a new directory and returns its path.
func (f files) written(t *testing.T, baseURL string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range f {
		text = strings.ReplaceAll(text, "BASEURL", baseURL)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// nowhere is a base URL for tests that send no request to a model.
const nowhere = "http://127.0.0.1:1/v1"

// fake starts a fake model with rules, and returns it with its base URL.
func fake(t *testing.T, rules string) (model *server.Server, baseURL string) {
	t.Helper()
	cfg, err := server.ParseConfig([]byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	if model, err = server.New(cfg); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(model)
	t.Cleanup(web.Close)
	t.Cleanup(model.Close) // runs before web.Close, which would wait for requests that hang
	return model, web.URL + "/v1"
}

// output is the result of a command line.
type output struct {
	code     int
	out, err string
}

// call is a command line with its environment.
type call struct {
	stdin    string
	in       io.Reader // used instead of stdin if it is not nil
	env      map[string]string
	terminal bool
	program  string
	// onError is called before each write to standard error. It may be nil.
	onError func(text string)
}

// notifying is a writer that calls a function before each write.
type notifying struct {
	io.Writer
	notify func(text string)
}

// Write writes a text.
func (n notifying) Write(text []byte) (int, error) {
	n.notify(string(text))
	return n.Writer.Write(text)
}

// run executes the command line until it ends.
func (c call) run(ctx context.Context, args ...string) output {
	var out, errOut bytes.Buffer
	if c.in == nil {
		c.in = strings.NewReader(c.stdin)
	}
	var toErr io.Writer = &errOut
	if c.onError != nil {
		toErr = notifying{toErr, c.onError}
	}
	code := cli.Execute(ctx, terminal.Environment{
		Program: c.program, Version: "v1.2.3", In: c.in, Out: &out, Err: toErr,
		InIsTerminal: c.terminal, OutIsTerminal: c.terminal, ErrIsTerminal: c.terminal,
		LookupEnv: func(name string) (string, bool) { value, ok := c.env[name]; return value, ok },
		Now:       ticking(),
	}, args)
	return output{code, out.String(), errOut.String()}
}

// ticking returns a clock. Each call adds half a second.
func ticking() func() time.Time {
	var mu sync.Mutex
	now := time.Date(2026, 4, 9, 12, 0, 0, 0, time.UTC)
	return func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(500 * time.Millisecond)
		return now
	}
}

// capstan runs a command line without input.
func capstan(t *testing.T, args ...string) output {
	t.Helper()
	return call{}.run(t.Context(), args...)
}

// mustSay fails the test unless the text contains all parts.
func mustSay(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("want %q in the output, have:\n%s", part, text)
		}
	}
}

// mustEnd fails the test unless the exit code is code.
func (o output) mustEnd(t *testing.T, code int) output {
	t.Helper()
	if o.code != code {
		t.Fatalf("want exit code %d, have %d; stdout:\n%s\nstderr:\n%s", code, o.code, o.out, o.err)
	}
	return o
}
