package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// The interval and the timeout of the wait for an Event. Events are written after the status change that they report.
const (
	eventInterval = 50 * time.Millisecond
	eventTimeout  = 5 * time.Second
)

// report prints the Turn as kubectl shows it, then the answer and its record, then the Events.
func (d *demo) report(ctx context.Context, turn *v1alpha1.Turn) error {
	if err := d.show(ctx, "get", "turn", turn.Name, "-o", "wide"); err != nil {
		return err
	}
	d.print("\n%s", summary(turn))
	if err := d.waitForEvent(ctx, turn); err != nil {
		return err
	}
	return d.show(ctx, "events", "--for", "turn/"+turn.Name)
}

// show prints a kubectl command and its output.
func (d *demo) show(ctx context.Context, args ...string) error {
	output, _, err := d.cluster.RunKubectl(ctx, args...)
	if err != nil {
		return err
	}
	d.print("\n$ kubectl %s\n%s", strings.Join(args, " "), output)
	return nil
}

// waitForEvent waits until an Event about the Turn exists.
func (d *demo) waitForEvent(ctx context.Context, turn *v1alpha1.Turn) error {
	var events corev1.EventList
	err := wait.PollUntilContextTimeout(ctx, eventInterval, eventTimeout, true, func(ctx context.Context) (bool, error) {
		err := d.api.List(ctx, &events, client.InNamespace(turn.Namespace), client.MatchingFields{"involvedObject.uid": string(turn.UID)})
		return len(events.Items) > 0, err
	})
	if err != nil {
		return fmt.Errorf("failed to find an Event about Turn %q: %w", turn.Name, err)
	}
	return nil
}

// summary returns the most important part of a finished Turn's status.
func summary(turn *v1alpha1.Turn) string {
	var text strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&text, "%-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	s := turn.Status
	if s.Result != nil {
		fmt.Fprintf(&text, "Answer\n%s\n", indent(wrap(s.Result.Text, 96), 2))
		if c := s.Result.Citations; c != nil && len(c.Local) > 0 {
			line("Sources", "%s", strings.Join(c.Local, ", "))
		}
	}
	for i, c := range s.ToolCalls {
		name := "Calls"
		if i > 0 {
			name = ""
		}
		line(name, "%s", describeCall(c))
	}
	if s.DurationMilliseconds != nil {
		line("Time", "%.1f s", float64(*s.DurationMilliseconds)/1000)
	}
	if u := s.Usage; u != nil {
		line("Usage", "%d tokens (%d in, %d out)", u.TotalTokens, u.InputTokens, u.OutputTokens)
		if u.Cost != nil {
			line("Cost", "%s %s", u.Cost.Amount, u.Cost.Currency)
		}
	}
	if u := s.SubAgentUsage; u != nil {
		cost := ""
		if u.Cost != nil {
			cost = fmt.Sprintf(", %s %s", u.Cost.Amount, u.Cost.Currency)
		}
		line("Sub-agent", "%d tokens%s", u.TotalTokens, cost)
	}
	if p := s.Preparation; p != nil {
		line("Prompt", "%s %s for %s, render hash %.12s", p.PromptProfile.ID, p.PromptProfile.Version, p.Model, p.PromptRenderHash)
	}
	if s.Decision != nil {
		line("Decision", "%s, %s", s.Decision.Key, s.Decision.Strategy)
	}
	return text.String()
}

// describeCall describes a tool call on one line: its step, its name, its outcome, and who decided about it.
func describeCall(c v1alpha1.ToolCallRecord) string {
	text := fmt.Sprintf("step %d  %-15s %-9s %5d ms", c.Step, c.Name, c.Outcome, c.DurationMilliseconds)
	if c.Turn != "" {
		text += "  turn/" + c.Turn
	}
	if c.DecidedBy != "" {
		text += "  decided by " + c.DecidedBy
	}
	return text
}

// wrap breaks lines between words if they are longer than width.
func wrap(text string, width int) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		current := ""
		for word := range strings.FieldsSeq(line) {
			if current != "" && len([]rune(current))+1+len([]rune(word)) > width {
				lines = append(lines, current)
				current = ""
			}
			current = strings.TrimPrefix(current+" "+word, " ")
		}
		lines = append(lines, current)
	}
	return strings.Join(lines, "\n")
}

// printNextSteps prints what a user can do after the demo.
func (d *demo) printNextSteps() {
	d.print(`
Next
  make demo KEEP=1                              keep all of this running and look around
  %-45s see the exact prompt: no cluster, no model
  README.md, docs/                              your own agent on your own cluster

`, d.capstan+" render -f "+d.manifests)
}

// printUsage prints how to use a demo that keeps running.
func (d *demo) printUsage() {
	path := ""
	if _, err := exec.LookPath("kubectl"); err != nil {
		path = "\n  export PATH=\"$PATH:" + filepath.Dir(d.cluster.Kubectl) + "\""
	}
	d.print(`
It keeps running. In this shell:

  export KUBECONFIG=%s%s
  kubectl get capstan
  kubectl describe turn %s
  kubectl explain turn.status

  %s run -f %s      the same Turn without a cluster, on the same fake model
  %s logs %s --token "$(kubectl create token %s)"      each step of the Turn with tools

Logs       %s
To stop    make demo-stop
`, d.cluster.Kubeconfig, path, d.turn, d.capstan, d.manifests, d.capstan, d.toolsTurn, approver, d.workspace.path("logs"))
}
