package cli_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// aimockFixtures are the answers of aimock. aimock uses the first one that matches the last message of the user.
const aimockFixtures = `{"fixtures": [
{"match": {"userMessage": "Close 1042", "hasToolResult": false}, "response": {"reasoning": "I look.", "content": "I look and close.",
  "toolCalls": [{"name": "get_ticket", "arguments": {"id": "1042"}}, {"name": "close_ticket", "arguments": {"id": "1042"}}]}},
{"match": {"userMessage": "Close 1042", "hasToolResult": true}, "response": {"content": "Done.",
  "usage": {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}}},
{"match": {"userMessage": "Say it again", "toolName": "give_final_answer"},
  "response": {"toolCalls": [{"name": "give_final_answer", "arguments": {"id": 1042}}]}},
{"match": {"userMessage": "Say it again"}, "response": {"content": "{\"id\": 1042}"}},
{"match": {"userMessage": "Too many?"}, "response": {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429}},
{"match": {"userMessage": "Too long?"}, "response": {"error": {"message": "prompt is too long: 9 tokens > 8 maximum",
  "type": "invalid_request_error"}, "status": 400}},
{"match": {"userMessage": "Break off"}, "response": {"content": "This answer is long enough for several events."},
  "truncateAfterChunks": 2}
]}`

// aimockTimeout limits the start of aimock. Node starts slowly on a busy machine.
const aimockTimeout = time.Minute

// urlLog collects the output of a process, and sends the first URL in it to the channel url.
type urlLog struct {
	mu   sync.Mutex
	text bytes.Buffer
	url  chan string
}

var urlPattern = regexp.MustCompile(`http://127\.0\.0\.1:[0-9]+\n`)

// Write implements io.Writer.
func (l *urlLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if url := urlPattern.FindString(l.text.String()); url != "" {
		select {
		case l.url <- strings.TrimSpace(url):
		default: // the URL was sent before
		}
	}
	return len(p), nil
}

// startAimock starts aimock, which speaks the protocols of many services, and returns its URL.
func startAimock(t *testing.T) string {
	t.Helper()
	program := os.Getenv("CAPSTAN_AIMOCK")
	if program == "" {
		get := exec.CommandContext(t.Context(), "bash", filepath.Join("..", "..", "hack", "aimock", "get.sh"))
		get.Stderr = os.Stderr
		path, err := get.Output()
		if err != nil {
			t.Fatalf("failed to get aimock (make aimock): %v", err)
		}
		program = strings.TrimSpace(string(path))
	}
	fixtures := filepath.Join(t.TempDir(), "fixtures.json")
	if err := os.WriteFile(fixtures, []byte(aimockFixtures), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", program, "--port", "0", "--fixtures", fixtures, "--strict")
	out := &urlLog{url: make(chan string, 1)}
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "AIMOCK_API_KEYS="+key), out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()         // the error is the signal
	})
	select {
	case url := <-out.url:
		return url
	case <-time.After(aimockTimeout):
		t.Fatalf("aimock did not start within %s", aimockTimeout)
		return ""
	}
}

// aimockPaths holds the path of the base URL by dialect, if it is not /v1.
var aimockPaths = map[string]string{
	"AzureOpenAI": "/openai/v1", "OpenRouter": "/api/v1", "Groq": "/openai/v1", "Gemini": "/v1beta/openai",
	"Cohere": "/compatibility/v1", "Bedrock": "/openai/v1", "DeepSeek": "/beta",
}

// TestAimock runs two Turns, with tools and a structured answer, on a third-party mock: for each dialect, for Azure's
// deployment-based API, and for Anthropic's Messages API. Except with thinking, the Turns belong to one Session.
// TestAimock also checks errors and a connection that breaks.
func TestAimock(t *testing.T) {
	t.Parallel()
	url := startAimock(t)
	cases := map[string]func(t *testing.T, tools string) files{
		"deployments": func(t *testing.T, tools string) files {
			t.Helper()
			return conversation(t, tools, "AzureOpenAI").with(t, "provider.yaml", "  baseURL: BASEURL",
				"  baseURL: BASEURL/openai\n  requests: {apiVersion: \"2024-10-21\"}")
		},
		"Anthropic": func(t *testing.T, tools string) files {
			t.Helper()
			return onAnthropic(t, tools).with(t, "provider.yaml", "BASEURL", "BASEURL/v1").with(t, "agent.yaml", "  thinking: Low\n", "")
		},
		// With thinking, aimock also requires the thinking of earlier Turns. Anthropic itself requires only the
		// thinking of the last calls: github.com/deepset-ai/haystack-core-integrations/issues/2146. So these Turns
		// have no Session.
		"Anthropic with thinking": func(t *testing.T, tools string) files {
			t.Helper()
			f := onAnthropic(t, tools).with(t, "provider.yaml", "BASEURL", "BASEURL/v1")
			return f.with(t, "turn.yaml", "  sessionRef: {name: chat}\n", "").with(t, "second.yaml", "  sessionRef: {name: chat}\n", "")
		},
	}
	for dialect := range strictServers {
		cases[dialect] = func(t *testing.T, tools string) files {
			t.Helper()
			return conversation(t, tools, dialect).with(t, "provider.yaml", "BASEURL", "BASEURL"+cmp.Or(aimockPaths[dialect], "/v1"))
		}
	}
	for name, manifests := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tools := serveTools(t, "")
			f := manifests(t, tools.url)
			dir, data := f.written(t, url), t.TempDir()
			run := func(name string) *v1alpha1.Turn {
				t.Helper()
				return turnOf(t, capstan(t, "run", "-f", dir, "--turn", name, "--data-dir", data, "-o", "json").mustEnd(t, exit.OK).out)
			}
			first := run("first")
			if first.Status.Result.Text != "Done." || tools.closedTickets() != "1042" || first.Status.Steps.ToolCalls != 2 {
				t.Errorf("want two calls and the answer, have %q, %q and %+v", tools.closedTickets(), first.Status.Result.Text,
					first.Status.Steps)
			}
			var answer struct{ ID int }
			if got := run("second").Status.Result.Data; got == nil || json.Unmarshal(got.Raw, &answer) != nil || answer.ID != 1042 {
				t.Errorf("the structured answer is %v, want the ticket", got)
			}
			for message, want := range map[string]string{
				"Too many?": "the endpoint's rate limit is reached (HTTP 429)",
				"Too long?": "the prompt is longer than the model's context window",
				"Break off": `ModelFailed: provider "demo": the connection `,
			} {
				dir := f.with(t, "turn.yaml", "message: Close 1042.", "message: "+message).written(t, url)
				f.with(t, "turn.yaml", "message: "+message, "message: Close 1042.") // undo the change for the next message
				mustSay(t, capstan(t, "run", "-f", dir, "--turn", "first").mustEnd(t, exit.Failed).err, want)
			}
		})
	}
}
