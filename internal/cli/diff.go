package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/screen"
)

// errDiffer ends a comparison that found a difference. There is nothing to tell beside what was printed.
var errDiffer = errors.New("the prompts differ")

// standardInput is the path that stands for it.
const standardInput = "-"

// comparison is a prompt before and after a change.
type comparison struct {
	turn string
	// oldPath and newPath are where the states were read.
	oldPath, newPath string
	// fromOther are the objects behind the old prompt that were read from oldPath.
	fromOther []string

	before, after *prepare.Prepared
	messages      []messageChange
	tools         []toolChange
}

// compare prints what the change from the old state to the new one does to the prompt.
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
	c := &comparison{turn: after.title(), oldPath: place(r.other), newPath: place(paths...)}
	now := r.clock()() // one for both, so that nothing but the change shows
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

// prepared makes the messages of one state.
func (r *renderer) prepared(ctx context.Context, p *project, now time.Time) (*prepare.Prepared, error) {
	known, closed := r.connections(p)
	defer closed()
	return p.prepare(ctx, now, known)
}

// oldState says of an error that it is one of the old state, some files of which may be those of the new one.
func oldState(err error) error {
	return fail(ExitFailed, fmt.Errorf("--diff: the old state, which is OTHER and what OTHER lacks of -f, cannot be prepared: %w", err))
}

// place names paths.
func place(paths ...string) string {
	shown := make([]string, 0, len(paths))
	for _, path := range paths {
		if path == standardInput {
			path = "standard input"
		}
		shown = append(shown, screen.Line(path, longestID))
	}
	return strings.Join(shown, ", ")
}

// attribute notes which objects of the old prompt the other manifests hold. That they hold none is an error: nothing would
// ever differ from them, which is not what they were named for.
func (c *comparison) attribute(before *project, origin func(kind, namespace, name string) (string, int)) error {
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
		return fail(ExitFailed, fmt.Errorf("--diff: %s holds nothing that the prompt is made of: it must hold at least one of %s",
			c.oldPath, strings.Join(unchanged, ", ")))
	}
	return nil
}

// objectName names an object in the namespace of the Turn.
type objectName struct{ kind, name string }

// objectNames are the objects that the messages were made of.
func (p *project) objectNames() []objectName {
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

// differs reports whether a model would get anything else than before.
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
	return r.env.coloured(screen.Safe(c.text())), nil
}
