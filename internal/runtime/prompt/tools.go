package prompt

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// Tool is the description of a tool in the prompt.
type Tool struct {
	// Name is the name of the tool: 1 to 64 letters, digits, '_' and '-', beginning with a letter or '_'.
	Name string `json:"name"`
	// Description describes the tool, and UseWhen says when to use it. Both may be empty.
	Description string `json:"description,omitempty"`
	UseWhen     string `json:"useWhen,omitempty"`
	// Parameters are the parameters in order.
	Parameters []Parameter `json:"parameters,omitempty"`
	// EndsTurn is true for a tool whose success ends the Turn.
	EndsTurn bool `json:"endsTurn,omitempty"`
}

// Parameter is a parameter of a tool.
type Parameter struct {
	// Name is the name of the parameter: 1 to 64 letters, digits and '_', beginning with a letter or '_'.
	Name string `json:"name"`
	// Type is string, integer, number, boolean, array, object or enum. Empty means string.
	Type     string `json:"type,omitempty"`
	Required bool   `json:"required,omitempty"`
	// Default is the default as JSON. Empty or null means that there is no default.
	Default json.RawMessage `json:"default,omitempty"`
	// Enum lists the allowed values. A parameter of type enum has at least one.
	Enum []string `json:"enum,omitempty"`
	// Description describes the parameter. It may be empty.
	Description string `json:"description,omitempty"`
}

var (
	toolName       = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)
	parameterName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
	parameterTypes = []string{"string", "integer", "number", "boolean", "array", "object", "enum"}
)

// LoadSkill returns the tool with which the model loads a skill. A Turn has this tool if its prompt lists an available
// skill. The result must not be changed.
func LoadSkill() Tool { return loadSkill }

// ReadArtifact returns the tool with which the model reads an output that did not fit into a message. A Turn has this
// tool if it has other tools, or if its prompt lists a skill that is too long for a message. The result must not be
// changed.
func ReadArtifact() Tool { return readArtifact }

// Capstan's own tools. All Turns share them.
var (
	loadSkill = Tool{
		Name: "load_skill", Description: "Returns the key, the name and the content of an available skill.",
		Parameters: []Parameter{{
			Name: "key", Type: "string", Required: true,
			Description: "The key of the skill, as shown in the list of available skills.",
		}},
	}
	readArtifact = Tool{
		Name: "read_artifact",
		Description: "Returns a part of a tool output that was too long for its message. The message names the " +
			"artifact. No other artifacts exist.",
		Parameters: []Parameter{
			{Name: "name", Type: "string", Required: true, Description: "The name of the artifact, as shown in the message of the tool."},
			{
				Name: "offset", Type: "integer", Default: json.RawMessage("0"),
				Description: "The position of the first character to return, starting at 0.",
			},
			{
				Name: "limit", Type: "integer", Default: json.RawMessage("8000"),
				Description: "The number of characters to return, at most 10000.",
			},
		},
	}
)

// ParameterName reports whether a parameter may have this name.
func ParameterName(name string) bool { return parameterName.MatchString(name) }

// SubAgent returns the tool that hands a task to another agent.
func SubAgent(name, description string) Tool {
	return Tool{
		Name: name, Description: description,
		Parameters: []Parameter{
			{
				Name: "task", Type: "string", Required: true,
				Description: "The complete task. The agent sees nothing else of this conversation.",
			},
			{Name: "context", Type: "string", Description: "Background information that the agent needs for the task."},
		},
	}
}

// validate returns an *invalid.Error if the tool, which has index i in its list, cannot be offered to a model.
func (t Tool) validate(i int) error {
	field := fmt.Sprintf("tools[%d]", i)
	if !toolName.MatchString(t.Name) {
		return invalid.Field(field+".name", "%q must be 1 to 64 letters, digits, '_' and '-', beginning with a letter or '_'", t.Name)
	}
	for j, p := range t.Parameters {
		at := fmt.Sprintf("%s.parameters[%d]", field, j)
		switch {
		case !parameterName.MatchString(p.Name):
			return invalid.Field(at+".name", "%q of tool %q must be 1 to 64 letters, digits and '_', beginning with a letter or '_'",
				p.Name, t.Name)
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

// write adds the description of the tool to the prompt.
func (t Tool) write(b *strings.Builder) {
	b.WriteString("\n- ")
	b.WriteString(untrusted.Line(t.Name))
	writeOptional(b, ": ", t.Description)
	writeOptional(b, "\n  Use when: ", t.UseWhen)
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

// write adds the description of the parameter to the prompt.
func (p Parameter) write(b *strings.Builder) {
	b.WriteString("\n    - ")
	b.WriteString(untrusted.Line(p.Name))
	b.WriteString(": ")
	b.WriteString(cmp.Or(p.Type, "string"))
	if p.Required {
		b.WriteString(", required")
	}
	if value, ok := p.defaultText(); ok {
		b.WriteString(", default=")
		b.WriteString(untrusted.Line(value))
	}
	if p.Enum != nil {
		b.WriteString(", enum=")
	}
	for i, v := range p.Enum {
		if i > 0 {
			b.WriteByte('|')
		}
		b.WriteString(untrusted.Line(v))
	}
	writeOptional(b, " — ", p.Description)
}

// writeOptional adds lead and a text on one line, unless the text is empty.
func writeOptional(b *strings.Builder, lead, text string) {
	if cleaned := untrusted.Line(text); cleaned != "" {
		b.WriteString(lead)
		b.WriteString(cleaned)
	}
}

// defaultText returns the default as people write it: a string without its quotes, any other value as canonical
// JSON.
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
