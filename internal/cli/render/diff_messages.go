package render

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// change says how a part of a prompt changed.
type change string

const (
	added   change = "Added"
	removed change = "Removed"
	changed change = "Changed"
)

// messageChange is the change of one message. Its JSON form is part of the output of render --diff.
type messageChange struct {
	// Position is the position of the message in the new prompt, starting at 1. If the message was removed, it is the
	// position in the old prompt.
	Position int `json:"position"`
	// Role and Name are the role and the name of the message. OldRole is its old role, or empty if the role has not
	// changed.
	Role    model.Role `json:"role"`
	OldRole model.Role `json:"oldRole,omitempty"`
	Name    string     `json:"name"`
	Change  change     `json:"change"`
	// Diff is a unified diff of the content. It is empty if only the role or the cache boundary changed.
	Diff string `json:"diff"`

	before, after model.Message
}

// compareMessages returns the messages that differ. It compares messages that have the same name. If several messages
// have the same name, which only messages of the history do, it compares them in their order.
func compareMessages(before, after []model.Message) ([]messageChange, error) {
	old := map[string][]int{}
	for i, m := range before {
		old[m.Name] = append(old[m.Name], i)
	}
	var changes []messageChange
	for i, m := range after {
		c := messageChange{Position: i + 1, Role: m.Role, Name: m.Name, Change: added, after: m}
		if positions := old[m.Name]; len(positions) > 0 {
			c.Change, c.before, old[m.Name] = changed, before[positions[0]], positions[1:]
			if c.before.Role != m.Role {
				c.OldRole = c.before.Role
			}
			if reflect.DeepEqual(c.before, m) {
				continue
			}
		}
		changes = append(changes, c)
	}
	for i, m := range before {
		if slices.Contains(old[m.Name], i) {
			changes = append(changes, messageChange{Position: i + 1, Role: m.Role, Name: m.Name, Change: removed, before: m})
		}
	}
	slices.SortStableFunc(changes, func(a, b messageChange) int { return a.Position - b.Position })
	for i := range changes {
		var err error
		if changes[i].Diff, err = unified(changes[i].Name, changes[i].before.Content, changes[i].after.Content); err != nil {
			return nil, err
		}
	}
	return changes, nil
}

// unified returns a unified diff of two texts, or an empty string if they are equal. Most messages end without a line
// feed; if both texts end without one, the diff does not mention it.
func unified(name, before, after string) (string, error) {
	if !strings.HasSuffix(before, "\n") && !strings.HasSuffix(after, "\n") {
		before, after = withLineFeed(before), withLineFeed(after)
	}
	text, err := udiff.ToUnified("old/"+name, "new/"+name, before, udiff.Lines(before, after), udiff.DefaultContextLines)
	if err != nil {
		return "", fmt.Errorf("failed to compare the messages %s: %w", name, err)
	}
	return text, nil
}

// withLineFeed returns a text that ends with a line feed, unless it is empty.
func withLineFeed(text string) string {
	if text == "" {
		return ""
	}
	return text + "\n"
}

// toolChange is the change of a tool that is offered to the model. Its JSON form is part of the output of render
// --diff.
type toolChange struct {
	Name   string `json:"name"`
	Change change `json:"change"`
}

// compareTools returns the tools that differ. If the number of tools is the same, a tool whose position changed also
// counts.
func compareTools(before, after []prompt.Tool) []toolChange {
	changes := []toolChange{}
	indexOf := func(tools []prompt.Tool, name string) int {
		return slices.IndexFunc(tools, func(t prompt.Tool) bool { return t.Name == name })
	}
	for i, t := range after {
		switch j := indexOf(before, t.Name); {
		case j < 0:
			changes = append(changes, toolChange{t.Name, added})
		case !reflect.DeepEqual(before[j], t) || len(before) == len(after) && i != j:
			changes = append(changes, toolChange{t.Name, changed})
		}
	}
	for _, t := range before {
		if indexOf(after, t.Name) < 0 {
			changes = append(changes, toolChange{t.Name, removed})
		}
	}
	return changes
}

// diffRecord is the output of render --diff as JSON.
type diffRecord struct {
	Differs     bool            `json:"differs"`
	Messages    []messageChange `json:"messages"`
	Tools       []toolChange    `json:"tools"`
	Preparation preparations    `json:"preparation"`
}

// preparations holds the preparation records of both states, in the form of a Turn's status.
type preparations struct {
	Old *v1alpha1.Preparation `json:"old"`
	New *v1alpha1.Preparation `json:"new"`
}

func (c *comparison) record() diffRecord {
	return diffRecord{
		Differs: c.differs(), Messages: append([]messageChange{}, c.messages...), Tools: c.tools,
		Preparation: preparations{Old: preparation(c.before), New: preparation(c.after)},
	}
}
