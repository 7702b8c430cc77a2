package render

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// ErrDiffer is the error of a comparison that found a difference. It needs no message, because Compare has printed
// the differences.
var ErrDiffer = errors.New("the prompts differ")

// standardInput is the path that means standard input.
const standardInput = "-"

// comparison holds a prompt before and after a change.
type comparison struct {
	turn string
	// oldPath and newPath are the paths from which the states were read.
	oldPath, newPath string
	// fromOther lists the objects of oldPath on which the old prompt depends.
	fromOther []string

	before, after *prepare.Prepared
	messages      []messageChange
	tools         []toolChange
}

// Compare prints how the prompt changes from the old state to the new one. It returns ErrDiffer if it changes.
func (r *Options) Compare(ctx context.Context, args []string) error {
	paths := slices.Concat(r.Files, args)
	switch {
	case r.Other == "":
		return errors.New("--diff must name a file, a directory or -")
	case r.Other == standardInput && slices.Contains(paths, standardInput):
		return errors.New("--diff and -f must not both read standard input")
	}
	after, err := r.Load(ctx, args)
	if err != nil {
		return err
	}
	other, err := r.Manifests(ctx, []string{r.Other})
	if err != nil {
		return err
	}
	before, err := bundle.Find(other.Over(after.Set), after.Turn.Namespace+"/"+after.Turn.Name, after.Skills, bundle.FilesFlag)
	if err != nil {
		return oldStateError(err)
	}
	if err := r.AttachFiles(before); err != nil {
		return err
	}
	c := &comparison{turn: after.Title(), oldPath: pathNames(r.Other), newPath: pathNames(paths...)}
	now := r.Clock()() // the same time for both states, so that only the change shows
	if c.after, err = r.prepared(ctx, after, now); err != nil {
		return err
	}
	if c.before, err = r.prepared(ctx, before, now); err != nil {
		return oldStateError(err)
	}
	r.noteTools(after)
	if err := c.setFromOther(before, other.Origin); err != nil {
		return err
	}
	if err := c.compare(); err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	return r.printDifference(c)
}

// compare finds the messages and the tools that differ.
func (c *comparison) compare() (err error) {
	c.messages, err = compareMessages(c.before.Messages, c.after.Messages)
	c.tools = compareTools(c.before.Tools, c.after.Tools)
	return err
}

// oldStateError wraps an error about the old state. Some objects of the old state may come from -f.
func oldStateError(err error) error {
	return exit.WithCode(exit.Failed, fmt.Errorf(
		"--diff: the old state, which is OTHER with the missing objects from -f, cannot be prepared: %w", err))
}

// pathNames returns paths as a list for messages.
func pathNames(paths ...string) string {
	shown := make([]string, 0, len(paths))
	for _, path := range paths {
		if path == standardInput {
			path = "standard input"
		}
		shown = append(shown, termsafe.Line(path, output.LongestID))
	}
	return strings.Join(shown, ", ")
}

// setFromOther sets the objects of OTHER on which the old prompt depends. It returns an error if there are none: such a
// comparison could never find a difference, so the path is probably a mistake.
func (c *comparison) setFromOther(before *bundle.Bundle, origin func(kind, namespace, name string) (string, int)) error {
	var unchanged []string
	for _, o := range before.ObjectNames() {
		title := o.Kind + " " + o.Namespace + "/" + o.Name
		if file, _ := origin(o.Kind, o.Namespace, o.Name); file != "" {
			c.fromOther = append(c.fromOther, title)
		} else {
			unchanged = append(unchanged, title)
		}
	}
	if len(c.fromOther) == 0 {
		return exit.WithCode(exit.Failed, fmt.Errorf(
			"--diff: the prompt does not depend on any object in %s, which must contain at least one of %s",
			c.oldPath, strings.Join(unchanged, ", ")))
	}
	return nil
}

// differs reports whether the model receives other messages or tools than before.
func (c *comparison) differs() bool { return len(c.messages)+len(c.tools) > 0 }

// printDifference prints a comparison. It returns ErrDiffer if the prompts differ.
func (r *Options) printDifference(c *comparison) error {
	text, err := r.difference(c)
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	if err := r.Env.Print(text); err != nil {
		return err
	}
	if c.differs() {
		return exit.WithCode(exit.Differs, ErrDiffer)
	}
	return nil
}

func (r *Options) difference(c *comparison) (string, error) {
	if r.Output != output.Text {
		return output.Encode(c.record(), r.Output)
	}
	return Coloured(r.Env, termsafe.Exact(c.text())), nil
}
