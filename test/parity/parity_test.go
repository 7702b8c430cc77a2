// Package parity_test runs each example in a cluster and without one. It compares the outcomes and the model
// requests.
package parity_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// outcome is the part of a Turn's status that must be the same with and without a cluster. It leaves out times, names
// of executors and people, IDs that the model generates, and hashes of these values.
type outcome struct {
	Reason     string
	StopReason v1alpha1.StopReason
	Result     *v1alpha1.TurnResult
	Usage      *v1alpha1.Usage
	Decision   *v1alpha1.Decision
	Steps      *v1alpha1.StepCounts
	ToolCalls  []v1alpha1.ToolCallRecord
	SubAgents  *v1alpha1.Usage
	Prepared   v1alpha1.Preparation
}

func outcomeOf(t *v1alpha1.Turn) outcome {
	o := outcome{
		Reason: t.StateReason(), StopReason: t.Status.StopReason, Result: t.Status.Result, Usage: t.Status.Usage,
		Decision: t.Status.Decision, Steps: t.Status.Steps, SubAgents: t.Status.SubAgentUsage,
	}
	for _, c := range t.Status.ToolCalls {
		c.CallID, c.DurationMilliseconds = "", 0
		if c.Turn != "" {
			c.Turn = "a child"
		}
		if c.DecidedBy != "" {
			c.DecidedBy = "approver"
		}
		o.ToolCalls = append(o.ToolCalls, c)
	}
	if p := t.Status.Preparation; p != nil {
		o.Prepared = *p
		o.Prepared.PromptHash = ""              // the hash depends on the time of day
		o.Prepared.PromptProfile.Generation = 0 // without a cluster there is no generation
	}
	return o
}

func TestExamplesHaveTheSameOutcomeWithAndWithoutACluster(t *testing.T) {
	_, modelURL := harnesstest.Model(t, harnesstest.DemoRules(t, root))
	c := startCluster(t)
	for _, directory := range directories(t) {
		name, err := filepath.Rel(examples, directory)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			// Each run has its own tickets, because a ticket can be closed only once.
			dir := copyOf(t, directory, modelURL, toolsURL(t))
			namespace := strings.ReplaceAll(name, string(filepath.Separator), "-")
			turn := c.run(t, namespace, dir)
			without := outcomeOf(runWithoutCluster(t, copyOf(t, directory, modelURL, toolsURL(t))))
			with := outcomeOf(turn)
			if diff := cmp.Diff(with, without); diff != "" {
				t.Errorf("the outcome of the same manifests differs: -cluster +capstan run:\n%s", diff)
			}
			if with.Prepared.PromptRenderHash == "" {
				t.Error("the Turn has no promptRenderHash")
			}
			c.expectPromptOfRender(t, turn, namespace, dir)
			if name == "tools" {
				expectTools(t, with)
			}
		})
	}
}

// expectTools fails unless a Turn has used every feature of tools. Otherwise the comparison would prove nothing.
func expectTools(t *testing.T, o outcome) {
	t.Helper()
	var approved, delegated, before bool
	for _, c := range o.ToolCalls {
		approved, delegated, before = approved || c.DecidedBy != "", delegated || c.Turn != "", before || c.Step == 0
	}
	if !approved || !delegated || !before || o.SubAgents == nil || o.Decision == nil || len(o.Decision.ToolsUsed) == 0 {
		t.Errorf("want calls before the first request to the model, of a sub-agent, and with approval, have %+v", o)
	}
}

// toolsURL serves the tools of examples/tools and returns their URL.
func toolsURL(t *testing.T) string {
	t.Helper()
	_, url := harnesstest.Tickets(t)
	return url
}

// root is the root directory of the repository, and examples the directory of all examples.
const root, examples = "../..", "../../examples"

// directories returns the directories of examples that have a turn.yaml, at any depth.
func directories(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(examples, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) == "turn.yaml" {
			all = append(all, filepath.Dir(path))
		}
		return err
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	return all
}

// The addresses of the examples' servers: on this machine, or Services of a cluster.
var (
	modelAddress = regexp.MustCompile(`http://(127\.0\.0\.1:8089|example-model[a-z.:0-9-]*)/v1\b`)
	toolsAddress = regexp.MustCompile(`http://(127\.0\.0\.1:8090|example-tickets[a-z.:0-9-]*)/mcp\b`)
)

// copyOf copies manifests into a new directory and replaces the addresses of the model server and of the tool server.
func copyOf(t *testing.T, directory, baseURL, toolsURL string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests in %s: %v", directory, err)
	}
	dir := t.TempDir()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := modelAddress.ReplaceAllLiteralString(string(data), baseURL)
		text = toolsAddress.ReplaceAllLiteralString(text, toolsURL)
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runWithoutCluster runs the only Turn of a directory with the command line, at a terminal that approves each call.
// The Turn waits for the approval as in a cluster.
func runWithoutCluster(t *testing.T, dir string) *v1alpha1.Turn {
	t.Helper()
	return read[v1alpha1.Turn](t, typed(t, "y\n", "run", "-f", dir, "-o", "json"))
}

// capstan runs a command and returns its output.
func capstan(t *testing.T, args ...string) []byte {
	t.Helper()
	return typed(t, "", args...)
}

// typed is like capstan, but types text at a terminal. If text is empty, there is no terminal.
func typed(t *testing.T, text string, args ...string) []byte {
	t.Helper()
	var out, errOut bytes.Buffer
	code := cli.Execute(t.Context(), terminal.Environment{
		Program: "capstan", In: strings.NewReader(text), Out: &out, Err: &errOut, LookupEnv: os.LookupEnv, Now: time.Now,
		InIsTerminal: text != "", ErrIsTerminal: text != "",
	}, args)
	if code != 0 {
		t.Fatalf("capstan %s exited with %d:\n%s", strings.Join(args, " "), code, &errOut)
	}
	return out.Bytes()
}

// read decodes JSON.
func read[T any](t *testing.T, data []byte) *T {
	t.Helper()
	var value T
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return &value
}
