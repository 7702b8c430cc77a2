package memory_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// modelEnvironment is the environment variable that makes this program a model server instead of a test, so that the
// server's memory does not count as memory of the Turns.
const modelEnvironment = "CAPSTAN_TEST_SERVE_MODEL"

// waitingTurns is the number of Turns that wait at the same time. It is so large that memory that the Turns share does
// not matter.
const waitingTurns = 400

func TestMain(m *testing.M) {
	if os.Getenv(modelEnvironment) != "" {
		serveModel()
		return
	}
	os.Exit(m.Run())
}

// serveModel answers the first request of each Turn with a tool call, and never answers the second request. It prints
// its URL, then a line for each waiting Turn. It ends when its input ends.
func serveModel() {
	out := bufio.NewWriter(os.Stdout)
	var mu sync.Mutex
	printLine := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintln(out, text) // the test notices the missing line
		_ = out.Flush()
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil:
		case strings.Contains(string(body), "tool_call_id"):
			printLine("waits")
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function",`+
				`"function":{"name":"search","arguments":"{\"query\":\"printer\"}"}}]},"finish_reason":"tool_calls"}]}`+
				"\n\ndata: [DONE]\n\n")
		}
	}))
	printLine(web.URL)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	web.CloseClientConnections()
	web.Close()
}

// startModel starts serveModel in another process. It returns the URL, and a scanner of the further lines.
func startModel(t *testing.T) (string, *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), modelEnvironment+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // the test's context may have killed it
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("the model did not start: %v", lines.Err())
	}
	return lines.Text(), lines
}

// fakeToolbox is a toolbox with two tools.
type fakeToolbox struct{}

func (fakeToolbox) Offers(context.Context) ([]tool.Offer, error) {
	schema := json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","description":"What to ` +
		`look for."},"limit":{"type":"integer","default":5}},"required":["query"]}`)
	return []tool.Offer{{Server: "tickets", Tools: []tool.Tool{
		{Tool: prompt.Tool{Name: "search", Description: "Searches the tickets of the help desk."}, Schema: schema, Effect: tool.ReadOnly},
		{Tool: prompt.Tool{Name: "comment", Description: "Adds a comment to a ticket."}, Schema: schema},
	}}}, nil
}

func (fakeToolbox) Effect(_ context.Context, t tool.Tool) (tool.Effect, error) { return t.Effect, nil }

func (fakeToolbox) Caller(tool.Tool) tool.Caller {
	return tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{Content: "T-1: the printer is on fire"}, nil
	})
}

// inputOf returns the input of a Turn. It is not inlined, because the large value that it makes would then be on the
// stack of each waiting Turn, which is not so in an executor.
//
//go:noinline
func inputOf(i int, p model.Provider) *turn.Input {
	return &turn.Input{
		UID: fmt.Sprintf("uid-%d", i), Epoch: 1, Namespace: "default", Name: fmt.Sprintf("turn-%d", i),
		Timeout: time.Hour, Limit: time.Hour,
		Config: loop.Config{
			Chain:  []loop.Candidate{{ProviderName: "endpoint", Model: "m", Provider: p, Retry: loop.Retry{MaxAttempts: 1}}},
			Limits: loop.Limits{MaxSteps: 6, MaxToolCalls: 25},
		},
		Toolbox: fakeToolbox{}, Selection: tool.Selection{Most: 9},
		Cancel: context.Background(),
		Preparation: func(context.Context) (prepare.Input, error) {
			return prepare.Input{
				Agent: prepare.Agent{Name: "helper"}, Now: time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC),
				Profile: prepare.Profile{
					Name: "support", ID: "support.default", Version: "1.0.0",
					Identity: &turncontext.Identity{SystemPrompt: "Be brief."},
				},
				Turn: prepare.Turn{Name: fmt.Sprintf("turn-%d", i), Message: fmt.Sprintf("What is new of printer %d?", i)},
			}, nil
		},
	}
}

// heldBytes returns the bytes of the live heap and of stacks. It collects garbage several times, because a collection
// halves each stack that is mostly free.
func heldBytes() uint64 {
	var m runtime.MemStats
	for range 5 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// TestMemoryOfAWaitingTurn checks the memory of a Turn that waits for its model, or at the gate of its ModelProvider.
// Thousands of Turns wait at the same time, and the default number of concurrent Turns assumes TurnBytes for each.
func TestMemoryOfAWaitingTurn(t *testing.T) {
	const first = 20 // the number of Turns that first fill the shared caches
	for name, limits := range map[string]pace.Limits{"for its model": {}, "at the gate": {MaxConcurrent: first}} {
		t.Run(name, func(t *testing.T) {
			url, lines := startModel(t)
			journals, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "journal.db"))
			if err != nil {
				t.Fatal(err)
			}
			provider := openai.New(openai.Config{Config: endpoint.Config{
				Name: "endpoint", BaseURL: url + "/v1", ConnectTimeout: time.Minute, IdleTimeout: time.Hour,
				Policy: netpolicy.NewLocalPolicy(),
			}})
			gate, atGate := pace.New("endpoint"), make(chan string, waitingTurns)
			engine := &turn.Engine{Journal: journals, Now: time.Now}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			t.Cleanup(func() {
				cancel()
				all.Wait()
				provider.Close()
				if err := journals.Close(); err != nil {
					t.Error(err)
				}
			})
			start := func(from, to int, waits func(string), waiting func() bool) {
				for i := from; i < to; i++ {
					all.Go(func() {
						in := inputOf(i, gate.Provider(pace.Caller{Namespace: "default", Agent: "helper", Waits: waits}, provider))
						if result, err := engine.Run(ctx, in); ctx.Err() == nil {
							t.Errorf("Turn %d has ended: %+v, %v", i, result, err)
						}
					})
				}
				for i := from; i < to; i++ {
					if !waiting() {
						t.Fatalf("%d Turns wait, want %d: %v", i, to, lines.Err())
					}
				}
			}
			start(0, first, nil, lines.Scan)
			before := heldBytes()
			if gate.SetLimits(limits, nil, 1); limits.MaxConcurrent == 0 {
				start(first, first+waitingTurns, nil, lines.Scan)
			} else {
				start(first, first+waitingTurns, func(provider string) {
					if provider != "" {
						atGate <- provider
					}
				}, func() bool { return <-atGate != "" })
			}
			took := (heldBytes() - before) / waitingTurns
			t.Logf("%d bytes for each of %d Turns", took, waitingTurns)
			if took > uint64(maxInEngine) {
				t.Errorf("a waiting Turn takes %d bytes, want at most %d", took, maxInEngine)
			}
		})
	}
}
