// Package undo undoes the tool calls of a Turn, in a cluster or with the journal of a directory.
package undo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/localrun"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/transcript"
)

// longestReason is the maximum number of characters shown of a reason.
const longestReason = 1024

// Options holds the flags of capstan undo.
type Options struct {
	journals.Source
	// Local has the flags for a journal of --data-dir: the manifests, and the decision about the compensations.
	Local *localrun.Options
	// Calls are the IDs of the calls to undo. If it is empty, all calls are undone.
	Calls []string
	// DryRun only shows what can be undone.
	DryRun bool
	// Yes undoes without confirmation.
	Yes bool
	// WaitSeconds is the time to wait for the end of the new Turn, in seconds, at most an hour. 0 means not to wait.
	WaitSeconds int
	// Output is text, json or yaml.
	Output output.Format
}

// Run undoes the calls of a Turn, given as NAME or NAMESPACE/NAME.
func (o *Options) Run(ctx context.Context, name string) error {
	if err := cluster.CheckWaitSeconds(o.WaitSeconds); err != nil {
		return err
	}
	if o.DataDir == "" && (len(o.Local.Files)+len(o.Local.EnvSecrets) > 0 || o.Local.Approve != localrun.ApproveAsk) {
		return errors.New("-f, --env-secret and --approve require --data-dir: in a cluster, undo uses the objects of the cluster, and " +
			"capstan approve decides about the calls")
	}
	manifests := o.Namespace
	if o.DataDir != "" && strings.Contains(name, "/") {
		o.Namespace = "" // the name has the namespace of the Turn, and -n is that of the manifests
	}
	plan, err := o.plan(ctx, name)
	if err != nil {
		return err
	}
	if o.DryRun {
		return o.print(plan)
	}
	o.Env.Logf("%s", strings.TrimSuffix(describe(plan), "\n"))
	t := o.newTurn(plan)
	interrupted, err := o.interrupted(ctx, plan)
	if err != nil {
		return err
	}
	if interrupted != nil {
		t.Name, o.Local.Continue = interrupted.Turn, types.UID(interrupted.TurnUID)
	} else if plan.Possible() == 0 {
		if o.Output != output.Text { // there is no new Turn to print
			if err := o.print(plan); err != nil {
				return err
			}
		}
		switch {
		case !hasOpenCall(plan):
			return nil
		case len(o.Calls) > 0:
			return exit.WithCode(exit.Failed, fmt.Errorf("no selected call of Turn %s/%s can be undone", plan.Namespace, plan.Name))
		}
		return exit.WithCode(exit.Failed, fmt.Errorf("no call of Turn %s/%s can be undone", plan.Namespace, plan.Name))
	}
	question := fmt.Sprintf("undo %d of these calls?", plan.Possible())
	if interrupted != nil {
		question = fmt.Sprintf("continue the Turn %s, which was interrupted while it undid the call %s?",
			termsafe.Line(interrupted.Turn, output.LongestID), termsafe.Line(interrupted.CallID, output.LongestID))
	}
	if err := o.confirm(ctx, question); err != nil {
		return err
	}
	if o.DataDir == "" {
		return o.inCluster(ctx, t)
	}
	o.Local.Object, o.Local.DataDir, o.Local.Output, o.Local.Env = t, o.DataDir, o.Output, o.Env
	o.Local.Namespace = cmp.Or(manifests, plan.Namespace) // the manifests are those of the first run, which may have used -n
	return o.Local.Run(ctx, nil)
}

// plan reads the journal and selects the calls.
func (o *Options) plan(ctx context.Context, name string) (*turn.UndoPlan, error) {
	watched, release := exit.Watch(ctx)
	defer release()
	plan, err := o.UndoPlan(watched, name)
	if err != nil {
		return nil, exit.InterruptedOr(watched, err)
	}
	if !plan.Ended {
		remedy := "run capstan cancel first"
		if o.DataDir != "" { // it is not in a cluster
			remedy = "continue it with the same capstan run; with desiredState Cancelled, that run ends it"
		}
		return nil, exit.WithCode(exit.Failed, fmt.Errorf(
			"the Turn %s/%s has not ended: wait for its end, or %s", plan.Namespace, plan.Name, remedy))
	}
	if err := plan.Select(o.Calls); err != nil {
		return nil, exit.WithCode(exit.Failed, fmt.Errorf("--call: %w", err))
	}
	return plan, nil
}

// interrupted returns the mark of an earlier capstan undo that was interrupted while it undid one of the selected
// calls, or nil. A run with its name, the same flags and the same manifests continues its Turn. Without this, older
// calls would be undone although it is not known whether the newer one was. In a cluster, such a Turn continues by
// itself.
func (o *Options) interrupted(ctx context.Context, p *turn.UndoPlan) (*turn.UndoMark, error) {
	begun := slices.DeleteFunc(p.Begun, func(m turn.UndoMark) bool { return len(o.Calls) > 0 && !slices.Contains(o.Calls, m.CallID) })
	if o.DataDir == "" || len(begun) == 0 {
		return nil, nil //nolint:nilnil // because nil means that there is none
	}
	watched, release := exit.Watch(ctx)
	defer release()
	mark, err := o.Unfinished(watched, begun)
	if err != nil {
		return nil, exit.InterruptedOr(watched, exit.WithCode(exit.Failed, err))
	}
	return mark, nil
}

// hasOpenCall reports whether the plan has a call that may have changed something and is not undone.
func hasOpenCall(p *turn.UndoPlan) bool {
	for i := range p.Calls {
		if p.Calls[i].State != turn.UndoDone {
			return true
		}
	}
	return false
}

// print writes the plan to standard output.
func (o *Options) print(p *turn.UndoPlan) error {
	if o.Output == output.Text {
		return o.Env.Print(o.Env.ForScreen(describe(p)))
	}
	text, err := output.Encode(p, o.Output)
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	return o.Env.Print(text)
}

// describe returns the plan for people. It is safe for a terminal.
func describe(p *turn.UndoPlan) string {
	line := func(text string) string { return termsafe.Line(text, output.LongestID) }
	if len(p.Calls) == 0 {
		return fmt.Sprintf("Turn %s/%s has no call that changed something.\n", line(p.Namespace), line(p.Name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Calls of Turn %s/%s, the newest first:\n", line(p.Namespace), line(p.Name))
	for i := range p.Calls {
		c := &p.Calls[i]
		fmt.Fprintf(&b, "  %s (call %s)\n", line(c.Name), line(c.CallID))
		switch c.State {
		case turn.UndoPossible:
			fmt.Fprintf(&b, "    undo with %s of ToolServer %s\n", line(c.Tool), line(c.Server))
			b.WriteString(transcript.Arguments(c.Arguments))
		case turn.UndoNotSelected:
			b.WriteString("    not selected\n")
		case turn.UndoDone, turn.UndoImpossible:
			word := "cannot be undone"
			if c.State == turn.UndoDone {
				word = "not undone again"
			}
			fmt.Fprintf(&b, "    %s: %s\n", word, termsafe.Line(c.Reason, longestReason))
		}
	}
	return b.String()
}

// confirm asks for confirmation, unless --yes is set or the run asks about each call.
func (o *Options) confirm(ctx context.Context, question string) error {
	if o.Yes || o.DataDir != "" && o.Local.Approve == localrun.ApproveAsk { // with ApproveAsk, the run asks about each call
		return nil
	}
	if !o.Env.CanAsk() {
		return exit.WithCode(exit.Usage, errors.New("there is no terminal at which to ask: set --yes to undo, or --dry-run"))
	}
	watched, release := exit.Watch(ctx)
	defer release()
	yes, err := terminal.NewAsker(o.Env).Yes(watched, question)
	switch {
	case err != nil:
		o.Env.Logf("")
		return exit.InterruptedOr(watched, exit.WithCode(exit.Failed, fmt.Errorf("nothing was undone: %w", err)))
	case !yes:
		return exit.WithCode(exit.Failed, errors.New("nothing was undone"))
	}
	return nil
}

const (
	// suffix is the part between the other Turn's name and the random characters in the name of a Turn that undoes it.
	suffix = "-undo-"
	// suffixChars is the number of random characters after suffix.
	suffixChars = 5
	// longestBase is the maximum number of characters of the other Turn's name before suffix.
	longestBase = 200
)

// newTurn returns the Turn that undoes the calls.
func (o *Options) newTurn(p *turn.UndoPlan) *v1alpha1.Turn {
	base := strings.TrimRight(p.Name[:min(len(p.Name), longestBase)], "-.")
	t := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: base + suffix + rand.String(suffixChars)},
		Spec: v1alpha1.TurnSpec{
			AgentRef: v1alpha1.ParseSharedReference(p.Agent), DesiredState: v1alpha1.DesiredStateActive,
			Execution: v1alpha1.ExecutionRun, Citations: v1alpha1.CitationsShow, OnJournalLoss: v1alpha1.JournalLossInterrupt,
			Undo: &v1alpha1.TurnUndo{TurnUID: p.TurnUID, Calls: o.Calls},
		},
	}
	// The default limit is below the number of calls that a Turn can undo. A lower limit of the Agent still applies.
	// The number of calls does not depend on how many are undone, so that an interrupted Turn gets the same spec again.
	if n := min(len(p.Calls), turn.MaxUndoCalls); n > int(v1alpha1.DefaultMaxToolCalls) {
		t.Spec.Limits = &v1alpha1.Limits{MaxToolCalls: new(int32(n))}
	}
	t.APIVersion, t.Kind = v1alpha1.GroupVersion.String(), "Turn"
	t.Status.ObservedGeneration = -1
	return t
}
