package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// errDiffer ends a comparison that found a difference. Execute prints no message for it, because the differences
// have been printed.
var errDiffer = errors.New("the prompts differ")

// standardInput is the path that stands for standard input.
const standardInput = "-"

// comparison holds a prompt before and after a change.
type comparison struct {
	turn string
	// oldPath and newPath are the paths from which the states were read.
	oldPath, newPath string
	// fromOther lists the objects behind the old prompt that were read from oldPath.
	fromOther []string

	before, after *prepare.Prepared
	messages      []messageChange
	tools         []toolChange
}

// compare prints how the prompt changes from the old state to the new one.
func (r *renderer) compare(ctx context.Context, args []string) error {
	paths := slices.Concat(r.files, args)
	switch {
	case r.other == "":
		return errors.New("--diff must name a file, a directory or -")
	case r.other == standardInput && slices.Contains(paths, standardInput):
		return errors.New("--diff and -f must not both read standard input")
	}
	after, err := r.load(ctx, args)
	if err != nil {
		return err
	}
	other, err := r.manifests(ctx, []string{r.other})
	if err != nil {
		return err
	}
	before, err := find(other.Over(after.set), after.turn.Namespace+"/"+after.turn.Name, after.skills)
	if err != nil {
		return oldState(err)
	}
	c := &comparison{turn: after.title(), oldPath: pathNames(r.other), newPath: pathNames(paths...)}
	now := r.clock()() // the same time for both states, so that only the change shows
	if c.after, err = r.prepared(ctx, after, now); err != nil {
		return err
	}
	if c.before, err = r.prepared(ctx, before, now); err != nil {
		return oldState(err)
	}
	r.withoutTools(after)
	if err := c.attribute(before, other.Origin); err != nil {
		return err
	}
	if c.messages, err = compareMessages(c.before.Messages, c.after.Messages); err != nil {
		return fail(ExitFailed, err)
	}
	c.tools = compareTools(c.before.Tools, c.after.Tools)
	return r.tellDifference(c)
}

// prepared returns the messages of one state.
func (r *renderer) prepared(ctx context.Context, p *bundle, now time.Time) (*prepare.Prepared, error) {
	known, closed := r.connections(p)
	defer closed()
	return p.prepare(ctx, now, known)
}

// oldState wraps an error that occurred in the old state. Some files of that state may belong to the new one.
func oldState(err error) error {
	return fail(ExitFailed, fmt.Errorf("--diff: the old state, which is OTHER with the missing objects from -f, cannot be prepared: %w",
		err))
}

// pathNames returns the names of paths for messages.
func pathNames(paths ...string) string {
	shown := make([]string, 0, len(paths))
	for _, path := range paths {
		if path == standardInput {
			path = "standard input"
		}
		shown = append(shown, termsafe.Line(path, longestID))
	}
	return strings.Join(shown, ", ")
}

// attribute records which objects of the old prompt come from OTHER. It fails if none do: such a comparison could
// never find a difference, and the user must have meant another path.
func (c *comparison) attribute(before *bundle, origin func(kind, namespace, name string) (string, int)) error {
	var unchanged []string
	for _, o := range before.objectNames() {
		title := o.kind + " " + before.turn.Namespace + "/" + o.name
		if file, _ := origin(o.kind, before.turn.Namespace, o.name); file != "" {
			c.fromOther = append(c.fromOther, title)
		} else {
			unchanged = append(unchanged, title)
		}
	}
	if len(c.fromOther) == 0 {
		return fail(ExitFailed, fmt.Errorf("--diff: the prompt does not depend on any object in %s, which must contain at least one of %s",
			c.oldPath, strings.Join(unchanged, ", ")))
	}
	return nil
}

type objectName struct{ kind, name string }

// objectNames returns the objects from which the messages were made.
func (p *bundle) objectNames() []objectName {
	all := []objectName{{kindTurn, p.turn.Name}, {kindAgent, p.agent.Name}, {kindPromptProfile, p.profile.Name}}
	if p.session != nil {
		if _, ok := p.set.Session(p.session.Namespace, p.session.Name); ok {
			all = append(all, objectName{kindSession, p.session.Name})
		}
	}
	for _, entry := range p.agent.Spec.Tools {
		var o objectName
		switch {
		case entry.AgentRef != nil:
			o = objectName{kindAgent, entry.AgentRef.Name}
		case entry.ServerRef != nil:
			o = objectName{kindToolServer, entry.ServerRef.Name}
		}
		if !slices.Contains(all, o) {
			all = append(all, o)
		}
	}
	var maps []objectName
	for ref := range p.read {
		maps = append(maps, objectName{kindConfigMap, ref.Name})
	}
	slices.SortFunc(maps, func(a, b objectName) int { return strings.Compare(a.name, b.name) })
	return append(all, slices.Compact(maps)...)
}

// differs reports whether the model receives anything else than before.
func (c *comparison) differs() bool { return len(c.messages)+len(c.tools) > 0 }

func (r *renderer) tellDifference(c *comparison) error {
	text, err := r.difference(c)
	if err != nil {
		return fail(ExitFailed, err)
	}
	if err := r.env.print(text); err != nil {
		return err
	}
	if c.differs() {
		return fail(ExitDiffers, errDiffer)
	}
	return nil
}

func (r *renderer) difference(c *comparison) (string, error) {
	if r.output != outputText {
		return encode(c.record(), r.output)
	}
	return r.env.coloured(termsafe.Safe(c.text())), nil
}
