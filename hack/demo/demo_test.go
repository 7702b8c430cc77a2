package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness"
)

// TestMain lets the test's own executable act as a running demo: "hold DIRECTORY" holds the lock of the directory until
// SIGTERM.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "hold" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		release, err := workspace{dir: os.Args[2]}.claim()
		fmt.Println(err)
		if err == nil {
			<-ctx.Done()
			release()
		}
		stop()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestStopEndsTheRunningDemo(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := workspace{dir: t.TempDir()}
	held := exec.CommandContext(t.Context(), self, "hold", w.dir)
	printed, err := held.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("<nil>\n"))
	if _, err := printed.Read(line); err != nil || string(line) != "<nil>\n" {
		t.Fatalf("the other demo printed %q, error %v; want <nil> after it has locked the directory", line, err)
	}
	if _, err := w.claim(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", held.Process.Pid)) {
		t.Errorf("claiming a directory in use: %v, want an error that names the process", err)
	}

	for _, want := range []string{"The demo has stopped.\n", "No demo is running.\n"} {
		var out bytes.Buffer
		if err := w.stop(t.Context(), &out); err != nil {
			t.Fatalf("stop: %v", err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("output of stop (-want +got):\n%s", diff)
		}
	}
	if err := held.Wait(); err != nil {
		t.Errorf("the other demo ended with %v", err)
	}
}

func TestSecondDemoReportsTheKeptOne(t *testing.T) {
	w := workspace{dir: t.TempDir()}
	release, err := w.claim()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(state{PID: os.Getpid(), Kept: true, Kubeconfig: "/somewhere/kubeconfig"}); err != nil {
		t.Fatal(err)
	}
	for name, second := range map[string]func() error{
		"plain": func() error { _, err := w.claim(); return err },
		"kept":  func() error { return w.runInBackground(t.Context(), nil, t.Output()) },
	} {
		err := second()
		for _, want := range []string{"running already", "export KUBECONFIG=/somewhere/kubeconfig", "make demo-stop"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want one with %q", name, err, want)
			}
		}
	}
	release()
	if release, err = w.claim(); err != nil {
		t.Fatalf("want no lock on the directory after the demo has ended, have %v", err)
	}
	release()
}

func TestClearRemovesFilesOfAnEarlierDemoAndAddsGitignore(t *testing.T) {
	w := workspace{dir: t.TempDir()}
	for _, dir := range []string{"logs", "data/kubectl"} {
		if err := os.MkdirAll(w.path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.path(dir), "old"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.clear(); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, pattern := range []string{"*", "*/*", "*/*/*"} {
		found, err := filepath.Glob(w.path(pattern))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	if diff := cmp.Diff([]string{w.path(".gitignore"), w.path("data")}, left); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if content, err := os.ReadFile(w.path(".gitignore")); err != nil || string(content) != "*\n" {
		t.Errorf(".gitignore is %q, error %v; want *", content, err)
	}
}

func TestFailedDemoReportsTheReasonAndStops(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	var out bytes.Buffer
	o, err := parse(nil, &out)
	if err != nil {
		t.Fatal(err)
	}
	err = newDemo(o, workspace{dir: t.TempDir()}, &out).run(t.Context())
	if _, ok := errors.AsType[shownError](err); !ok {
		t.Errorf("error %v, want a shownError", err)
	}
	for _, want := range []string{"Failed: failed to find etcd", "All logs are in", "Stopping everything"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}

func TestFailureShowsTheEndOfEachLogOnce(t *testing.T) {
	w := workspace{dir: t.TempDir()}
	if err := os.MkdirAll(w.path("logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etcd", "fakemodel", "toolserver", "manager"} {
		if err := os.WriteFile(w.path("logs/"+name+".log"), []byte("last words of "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	d := newDemo(options{}, w, &out)
	d.harness = harness.New(w.dir, nil)
	d.explain(fmt.Errorf("manager ended; the end of %s: last words of manager", w.path("logs/manager.log")))
	for words, want := range map[string]int{
		"last words of manager": 1, "last words of fakemodel": 1,
		"last words of toolserver": 1, "last words of etcd": 0,
	} {
		if got := strings.Count(out.String(), words); got != want {
			t.Errorf("%q is shown %d times, want %d:\n%s", words, got, want, out.String())
		}
	}
}

func TestDescribeState(t *testing.T) {
	for name, tc := range map[string]struct {
		conditions []metav1.Condition
		want       string
	}{
		"not reconciled": {nil, ""},
		"waits": {
			[]metav1.Condition{{
				Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionUnknown,
				Reason: v1alpha1.TurnReasonWaitingForAgent, Message: "no Agent",
			}},
			"WaitingForAgent: no Agent",
		},
		"runs": {
			[]metav1.Condition{{
				Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionUnknown,
				Reason: v1alpha1.TurnReasonRunning, Message: "on demo",
			}},
			"Running",
		},
		"succeeded": {
			[]metav1.Condition{{
				Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionTrue,
				Reason: v1alpha1.TurnReasonCompleted, Message: "answered",
			}},
			"Completed",
		},
		"failed": {
			[]metav1.Condition{{
				Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionFalse,
				Reason: v1alpha1.TurnReasonModelFailed, Message: "401",
			}},
			"ModelFailed: 401",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := describeState(&v1alpha1.Turn{Status: v1alpha1.TurnStatus{Conditions: tc.conditions}}); got != tc.want {
				t.Errorf("state %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSummaryShowsTheStatus(t *testing.T) {
	duration := int64(1249)
	turn := &v1alpha1.Turn{Status: v1alpha1.TurnStatus{
		DurationMilliseconds: &duration,
		Result: &v1alpha1.TurnResult{
			Text:      "Two things.\n\nShall we?",
			Citations: &v1alpha1.Citations{Local: []string{"a.md", "b.md"}},
		},
		Usage: &v1alpha1.Usage{
			InputTokens: 7, OutputTokens: 3, TotalTokens: 10,
			Cost: &v1alpha1.Cost{Amount: "0.01", Currency: "USD"},
		},
	}}
	want := `Answer
  Two things.
  
  Shall we?

Sources   a.md, b.md
Time      1.2 s
Usage     10 tokens (7 in, 3 out)
Cost      0.01 USD
`
	if diff := cmp.Diff(want, summary(turn)); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	if got := summary(&v1alpha1.Turn{}); got != "" {
		t.Errorf("summary of a Turn without a status: %q, want nothing", got)
	}
}

func TestSummaryShowsCallsAndSubAgents(t *testing.T) {
	turn := &v1alpha1.Turn{Status: v1alpha1.TurnStatus{
		ToolCalls: []v1alpha1.ToolCallRecord{
			{Step: 1, Name: "search_tickets", Outcome: v1alpha1.ToolCallSucceeded, DurationMilliseconds: 3},
			{Step: 2, Name: "researcher", Outcome: v1alpha1.ToolCallSucceeded, DurationMilliseconds: 1200, Turn: "child"},
			{Step: 3, Name: "close_ticket", Outcome: v1alpha1.ToolCallRefused, DecidedBy: "grace"},
		},
		Usage:         &v1alpha1.Usage{InputTokens: 7, OutputTokens: 3, TotalTokens: 10},
		SubAgentUsage: &v1alpha1.Usage{TotalTokens: 5, Cost: &v1alpha1.Cost{Amount: "0.01", Currency: "USD"}},
		Decision:      &v1alpha1.Decision{Key: "desk", Strategy: v1alpha1.StrategyToolAssisted},
	}}
	want := `Calls     step 1  search_tickets  Succeeded     3 ms
          step 2  researcher      Succeeded  1200 ms  turn/child
          step 3  close_ticket    Refused       0 ms  decided by grace
Usage     10 tokens (7 in, 3 out)
Sub-agent 5 tokens, 0.01 USD
Decision  desk, ToolAssisted
`
	if diff := cmp.Diff(want, summary(turn)); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}

func TestActsAreTheQuickstartAndThenTheTools(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"all":      {nil, []string{"examples/quickstart open-loops", "examples/tools printer-works"}},
		"no tools": {[]string{"--tools", ""}, []string{"examples/quickstart open-loops"}},
	} {
		o, err := parse(tc.args, t.Output())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range newDemo(o, workspace{}, t.Output()).acts() {
			got = append(got, a.manifests+" "+a.turn)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: acts (-want +got):\n%s", name, diff)
		}
	}
}

func TestStatesArePrintedOnceEach(t *testing.T) {
	var out bytes.Buffer
	d := newDemo(options{}, workspace{}, &out)
	turn := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	for _, reason := range []string{
		"", v1alpha1.TurnReasonRunning, v1alpha1.TurnReasonRunning,
		v1alpha1.TurnReasonWaitingForSubAgent, v1alpha1.TurnReasonRunning,
	} {
		turn.Status.Conditions = nil
		if reason != "" {
			turn.Status.Conditions = []metav1.Condition{
				{Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionUnknown, Reason: reason},
			}
		}
		if err := d.follow(t.Context(), turn); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		_, state, _ := strings.Cut(strings.TrimSpace(line), "turn/x  ")
		got = append(got, state)
	}
	if diff := cmp.Diff([]string{"Running", "WaitingForSubAgent", "Running"}, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

func TestWrapBreaksBetweenWords(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"empty":          {"", ""},
		"fits":           {"one two", "one two"},
		"breaks":         {"one two three four", "one two\nthree four"},
		"a long word":    {"a incomprehensible b", "a\nincomprehensible\nb"},
		"keeps lines":    {"one\n\ntwo", "one\n\ntwo"},
		"counts runes":   {"ööööö ööööö", "ööööö\nööööö"},
		"runes that fit": {"öööö ööööö", "öööö ööööö"},
		"several spaces": {"one   two", "one two"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, wrap(tc.text, 10)); diff != "" {
				t.Errorf("wrapped (-want +got):\n%s", diff)
			}
		})
	}
}
