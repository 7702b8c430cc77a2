// Package prepare turns an agent, a profile and a request into the exact messages a model gets, and a report of how
// they came about. It is a pure function of its input: the same input gives the same bytes.
package prepare

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// The names of messages, in their order.
const (
	MessageSystemPrompt    = "system_prompt"
	MessageRuntimeMetadata = "runtime_metadata"
	MessageHistory         = "history"
	MessageContextPack     = "context_pack"
	MessageUser            = "user_message"
)

// Profile is a prompt profile and the revision it has.
type Profile struct {
	prompt.Profile
	// Name of the profile's object, ID of the logical prompt, Version and Generation of this revision.
	Name, ID, Version string
	Generation        int64
	// Tags of the prompt.
	Tags []string
	// Variables that templates may use.
	Variables []Variable
}

// Variable is a name that templates may use.
type Variable struct {
	// Name of the variable.
	Name string
	// Default value, inserted as it is.
	Default string
	// Required variables have no default.
	Required bool
	// Trusted variables take the request's value as it is.
	Trusted bool
}

// HistoryMessage was said before this request.
type HistoryMessage struct {
	Role    model.Role
	Content string
}

// Fact is a piece of text the caller knows. Its JSON form is what contextHash is taken of.
type Fact struct {
	ID     string `json:"id"`
	Text   string `json:"text"`
	Source string `json:"source,omitempty"`
}

// Input is all that goes into the messages.
type Input struct {
	Agent   prompt.Agent
	Profile Profile
	// TurnName and TurnNamespace are what templates see as .Turn.
	TurnName, TurnNamespace string
	// Parameters are the request's values of variables.
	Parameters map[string]string
	// Message of the user.
	Message string
	// History, oldest first.
	History []HistoryMessage
	// Facts in the order they are shown.
	Facts []Fact
	// Provider and Model the messages are made for.
	Provider, Model string
	// Now is the time the messages speak of, in the agent's time zone.
	Now time.Time
}

// Prepared is a prompt, frozen. It marshals to JSON and back without loss.
type Prepared struct {
	// Provider and Model the messages were made for.
	Provider string `json:"provider"`
	Model    string `json:"model"`
	// Messages in order.
	Messages []model.Message `json:"messages"`
	// Report on them.
	Report Report `json:"report"`
}

// Report says how the messages came about.
type Report struct {
	prompt.Report
	// ContextHash is the first 16 hexadecimal digits of the SHA-256 of the canonical context pack.
	ContextHash string `json:"contextHash"`
	// Profile the prompt was made from.
	Profile Revision `json:"profile"`
	// Variables are the names of those that the profile declares, sorted.
	Variables []string `json:"variables,omitempty"`
	// ReplacedBytes counts the bytes of the input that were no UTF-8 and became U+FFFD.
	ReplacedBytes int `json:"replacedBytes,omitempty"`
}

// Revision names one version of a profile.
type Revision struct {
	Name       string   `json:"name"`
	ID         string   `json:"id"`
	Version    string   `json:"version"`
	Generation int64    `json:"generation,omitempty"`
	Tags       []string `json:"tags,omitempty"`
}

// Error is an input that no prompt can be made of.
type Error struct {
	// Field that is wrong, as the API names it.
	Field string
	// Reason says what is wrong with it and what to do.
	Reason string
}

// Error returns field: reason.
func (e *Error) Error() string { return e.Field + ": " + e.Reason }

// Prepare makes the messages. It returns an *Error or a *prompt.TemplateError if it cannot.
func Prepare(in Input) (*Prepared, error) {
	if strings.TrimSpace(in.Message) == "" {
		return nil, &Error{Field: "Turn spec.message", Reason: "must not be blank"}
	}
	scope, err := scopeOf(in)
	if err != nil {
		return nil, err
	}
	system, err := prompt.Make(prompt.Input{
		Agent: in.Agent, Profile: in.Profile.Profile, Model: in.Model, Scope: scope, Now: in.Now,
	})
	if err != nil {
		return nil, err
	}
	contextHash, err := hashContext(in.Facts)
	if err != nil {
		return nil, err
	}
	p := &Prepared{Provider: in.Provider, Model: in.Model, Messages: messages(in, system)}
	p.Report = Report{
		Report: system.Report, ContextHash: contextHash, Variables: variableNames(in.Profile.Variables),
		Profile: Revision{
			Name: in.Profile.Name, ID: in.Profile.ID, Version: in.Profile.Version,
			Generation: in.Profile.Generation, Tags: in.Profile.Tags,
		},
	}
	for i := range p.Messages {
		// Runs of invalid bytes become one U+FFFD each here and in templates; fences replace each byte.
		p.Messages[i].Content = strings.ToValidUTF8(p.Messages[i].Content, "\uFFFD")
	}
	p.Report.ReplacedBytes = replacedBytes(in)
	return p, nil
}

func replacedBytes(in Input) int {
	count := fence.InvalidBytes(in.Message)
	for _, text := range []string{
		in.Agent.Name, in.Agent.Description, in.Agent.Instructions,
		in.Profile.AssistantName, in.Profile.SystemPrompt, in.Profile.DeveloperPrompt, in.Profile.Instructions,
	} {
		count += fence.InvalidBytes(text)
	}
	if b := in.Profile.Behavior; b != nil {
		count += fence.InvalidBytes(*b)
	}
	for _, h := range in.History {
		count += fence.InvalidBytes(h.Content)
	}
	for _, f := range in.Facts {
		count += fence.InvalidBytes(f.ID) + fence.InvalidBytes(f.Text) + fence.InvalidBytes(f.Source)
	}
	for _, v := range in.Parameters {
		count += fence.InvalidBytes(v)
	}
	return count
}

func messages(in Input, system prompt.System) []model.Message {
	all := []model.Message{
		{Role: model.RoleSystem, Name: MessageSystemPrompt, Content: system.Text, StableChars: system.Report.StableChars},
		{Role: model.RoleSystem, Name: MessageRuntimeMetadata, Content: runtimeMetadata(in)},
	}
	for _, h := range in.History {
		all = append(all, model.Message{Role: h.Role, Name: MessageHistory, Content: h.Content})
	}
	if pack := contextPack(in.Facts); pack != "" {
		all = append(all, model.Message{Role: model.RoleSystem, Name: MessageContextPack, Content: pack})
	}
	return append(all, model.Message{Role: model.RoleUser, Name: MessageUser, Content: in.Message})
}

func runtimeMetadata(in Input) string {
	return strings.Join([]string{
		"Facts of this run, set by the system that runs it:",
		"- provider: " + fence.Line(in.Provider),
		"- model: " + fence.Line(in.Model),
		"- today: " + in.Now.Format(time.DateOnly),
		"- tomorrow: " + prompt.Day(in.Now, 1).Format(time.DateOnly),
		"Take the date from here; use no tool to find it out.",
	}, "\n")
}

// contextPack lists the facts, one entry each. Further lines of a fact are indented, so that none can pass for an entry.
func contextPack(facts []Fact) string {
	entries := make([]string, 0, len(facts))
	for _, f := range facts {
		entry := fmt.Sprintf("- [%s] %s", fence.Line(f.ID), strings.ReplaceAll(fence.Block(f.Text), "\n", "\n  "))
		if source := fence.Line(f.Source); source != "" {
			entry += " (source: " + source + ")"
		}
		entries = append(entries, entry)
	}
	if len(entries) == 0 {
		return ""
	}
	return fence.Untrusted("## Facts\nWhat the caller knows that bears on the request.", strings.Join(entries, "\n"))
}

func hashContext(facts []Fact) (string, error) {
	pack := map[string]any{}
	if len(facts) > 0 {
		pack["facts"] = facts
	}
	sum, err := canonical.Hash(pack)
	if err != nil {
		return "", err
	}
	return sum[:16], nil
}

// scopeOf returns what the templates of an agent and a profile may use, with the values that a request gives.
func scopeOf(in Input) (prompt.Scope, error) {
	scope := NewScope(in.Agent, in.TurnName, in.TurnNamespace)
	for _, v := range in.Profile.Variables {
		value, given := in.Parameters[v.Name]
		switch {
		case given:
			scope.Variables[v.Name] = prompt.Value{Text: value, Trusted: v.Trusted}
		case v.Required:
			return prompt.Scope{}, &Error{
				Field:  "Turn spec.parameters",
				Reason: fmt.Sprintf("must give a value for %q, which PromptProfile %q requires", v.Name, in.Profile.Name),
			}
		default:
			scope.Variables[v.Name] = prompt.Value{Text: v.Default, Trusted: true}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.Parameters)) {
		if _, declared := scope.Variables[name]; !declared {
			return prompt.Scope{}, &Error{
				Field: "Turn spec.parameters",
				Reason: fmt.Sprintf("%q is not a variable of PromptProfile %q, which declares: %s",
					name, in.Profile.Name, orNone(variableNames(in.Profile.Variables))),
			}
		}
	}
	return scope, nil
}

// NewScope returns a scope with the built-in names and no variables.
func NewScope(agent prompt.Agent, turnName, turnNamespace string) prompt.Scope {
	return prompt.Scope{
		Variables: map[string]prompt.Value{},
		Objects: map[string]map[string]string{
			"Agent": {"Name": agent.Name, "Description": agent.Description},
			"Turn":  {"Name": turnName, "Namespace": turnNamespace},
		},
	}
}

func variableNames(variables []Variable) []string {
	var names []string // nil if there are none, as it comes back from JSON
	for _, v := range variables {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	return names
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
