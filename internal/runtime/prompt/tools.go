package prompt

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
)

// Tool is what a model is told of a tool.
type Tool struct {
	// Name of the tool, 1 to 64 letters, digits, '_' and '-', beginning with a letter or '_'.
	Name string `json:"name"`
	// Description of what it does, and UseWhen of when to use it; may be empty.
	Description string `json:"description,omitempty"`
	UseWhen     string `json:"useWhen,omitempty"`
	// Parameters in their order.
	Parameters []Parameter `json:"parameters,omitempty"`
	// EndsTurn is true for a tool whose success ends the Turn.
	EndsTurn bool `json:"endsTurn,omitempty"`
}

// Parameter of a tool.
type Parameter struct {
	// Name of the parameter, 1 to 64 letters, digits and '_', beginning with a letter or '_'.
	Name string `json:"name"`
	// Type is string, integer, number, boolean, array, object or enum; string if empty.
	Type     string `json:"type,omitempty"`
	Required bool   `json:"required,omitempty"`
	// Default as JSON; none if it is empty or null.
	Default json.RawMessage `json:"default,omitempty"`
	// Enum lists the values; a parameter of type enum has at least one.
	Enum []string `json:"enum,omitempty"`
	// Description of the parameter; may be empty.
	Description string `json:"description,omitempty"`
}

var (
	toolName       = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)
	parameterName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
	parameterTypes = []string{"string", "integer", "number", "boolean", "array", "object", "enum"}
)

// LoadSkill is the tool that gives the model a skill; a Turn has it if a skill is available. It must not be changed.
func LoadSkill() Tool { return loadSkill }

// ReadArtifact is the tool that gives the model what did not fit into a tool's message; a Turn that has other tools has it. It must not
// be changed.
func ReadArtifact() Tool { return readArtifact }

// Capstan's own tools. All Turns share them.
var (
	loadSkill = Tool{
		Name: "load_skill", Description: "Returns an available skill: its key, its name and its content.",
		Parameters: []Parameter{{Name: "key", Type: "string", Required: true, Description: "The key of the skill, as the list of available skills has it."}},
	}
	readArtifact = Tool{
		Name:        "read_artifact",
		Description: "Returns a part of a tool's output that was too long for its message. That message names the artifact. Of nothing else there are artifacts.",
		Parameters: []Parameter{
			{Name: "name", Type: "string", Required: true, Description: "The name of the artifact, as the message of the tool has it."},
			{Name: "offset", Type: "integer", Default: json.RawMessage("0"), Description: "The place of the first character to return, from 0."},
			{Name: "limit", Type: "integer", Default: json.RawMessage("8000"), Description: "How many characters to return, at most 10000."},
		},
	}
)

// ParameterName reports whether a model can be told of a parameter of that name.
func ParameterName(name string) bool { return parameterName.MatchString(name) }

// SubAgent is the tool that hands a task on to another agent.
func SubAgent(name, description string) Tool {
	return Tool{
		Name: name, Description: description,
		Parameters: []Parameter{
			{Name: "task", Type: "string", Required: true, Description: "What is to be done, complete in itself: the agent sees nothing else of this conversation."},
			{Name: "context", Type: "string", Description: "What the agent must know to do it."},
		},
	}
}

// validate returns an *invalid.Error if no model could be told of the tool, the i-th of its list.
func (t Tool) validate(i int) error {
	field := fmt.Sprintf("tools[%d]", i)
	if !toolName.MatchString(t.Name) {
		return invalid.Field(field+".name", "%q must be 1 to 64 letters, digits, '_' and '-', beginning with a letter or '_'", t.Name)
	}
	for j, p := range t.Parameters {
		at := fmt.Sprintf("%s.parameters[%d]", field, j)
		switch {
		case !parameterName.MatchString(p.Name):
			return invalid.Field(at+".name", "%q of tool %q must be 1 to 64 letters, digits and '_', beginning with a letter or '_'", p.Name, t.Name)
		case p.Type != "" && !slices.Contains(parameterTypes, p.Type):
			return invalid.Field(at+".type", "%q of tool %q must be one of %s", p.Type, t.Name, strings.Join(parameterTypes, ", "))
		case p.Type == "enum" && len(p.Enum) == 0:
			return invalid.Field(at+".enum", "parameter %q of tool %q must list at least one value", p.Name, t.Name)
		case len(p.Default) > 0 && !json.Valid(p.Default):
			return invalid.Field(at+".default", "the default of parameter %q of tool %q must be JSON", p.Name, t.Name)
		}
	}
	return nil
}

func renderTools(r *rendering) (string, bool) {
	if r.ToolsText != nil {
		return r.authored(*r.ToolsText), true
	}
	if len(r.Tools) == 0 {
		return "(none)\n\n" + noToolsText, false
	}
	var b strings.Builder
	b.WriteString(toolRules + "\n")
	for _, t := range r.Tools {
		t.write(&b)
	}
	return b.String(), false
}

// write adds what the prompt says of the tool.
func (t Tool) write(b *strings.Builder) {
	b.WriteString("\n- ")
	b.WriteString(fence.Line(t.Name))
	optional(b, ": ", t.Description)
	optional(b, "\n  Use when: ", t.UseWhen)
	if len(t.Parameters) > 0 {
		b.WriteString("\n  Parameters:")
	}
	for _, p := range t.Parameters {
		p.write(b)
	}
	if t.EndsTurn {
		b.WriteString("\n  Ends the turn.")
	}
}

// write adds what the prompt says of the parameter.
func (p Parameter) write(b *strings.Builder) {
	b.WriteString("\n    - ")
	b.WriteString(fence.Line(p.Name))
	b.WriteString(": ")
	b.WriteString(cmp.Or(p.Type, "string"))
	if p.Required {
		b.WriteString(", required")
	}
	if value, ok := p.defaultText(); ok {
		b.WriteString(", default=")
		b.WriteString(fence.Line(value))
	}
	if p.Enum != nil {
		b.WriteString(", enum=")
	}
	for i, v := range p.Enum {
		if i > 0 {
			b.WriteByte('|')
		}
		b.WriteString(fence.Line(v))
	}
	optional(b, " — ", p.Description)
}

// optional adds a text on one line, after what leads to it, if there is one.
func optional(b *strings.Builder, lead, text string) {
	if cleaned := fence.Line(text); cleaned != "" {
		b.WriteString(lead)
		b.WriteString(cleaned)
	}
}

// defaultText is the default as people write it: a text without its quotes, all else as canonical JSON.
func (p Parameter) defaultText() (string, bool) {
	data, err := canonical.JSON(p.Default)
	if err != nil || string(data) == "null" {
		return "", false
	}
	var text string
	if json.Unmarshal(data, &text) == nil {
		return text, true
	}
	return string(data), true
}
