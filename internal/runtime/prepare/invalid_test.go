package prepare_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// prepareError runs Prepare on an invalid input and returns the error.
func prepareError(t *testing.T, in prepare.Input) invalid.Error {
	t.Helper()
	p, err := prepare.Prepare(in)
	fault, ok := errors.AsType[*invalid.Error](err)
	if !ok || p != nil {
		t.Fatalf("Prepare = %v, %v; want nothing but an *invalid.Error", p, err)
	}
	return *fault
}

func TestInvalidInput(t *testing.T) {
	const base = "at least one of identity.systemPrompt, identity.developerPrompt and instructions must be given and not blank"
	variables := []prepare.Variable{{Name: "user", Required: true}, {Name: "tone"}}
	for name, tc := range map[string]struct {
		reason string
		in     prepare.Input
		want   invalid.Error
	}{
		"nothing at all": {
			"the agent is checked first",
			prepare.Input{},
			invalid.Error{Field: "Agent metadata.name", Reason: "must be given"},
		},
		"blank agent": {
			"white space is no name", input(func(in *prepare.Input) { in.Agent.Name, in.Turn.Name = " \t\n", "" }),
			invalid.Error{Field: "Agent metadata.name", Reason: "must be given"},
		},
		"no turn": {
			"the Turn is checked next", input(func(in *prepare.Input) { in.Turn, in.Profile.Identity = prepare.Turn{}, nil }),
			invalid.Error{Field: "Turn metadata.name", Reason: "must be given"},
		},
		"no identity": {
			"the identity is required even if there are instructions", input(
				func(in *prepare.Input) { in.Profile.Identity, in.Profile.Instructions = nil, "Be brief." }),
			invalid.Error{Field: "PromptProfile spec.identity", Reason: "must be given"},
		},
		"no base": {
			"an identity without prompts has no instructions", input(func(in *prepare.Input) {
				in.Profile.Identity, in.Turn.Message = &turncontext.Identity{AssistantName: "Ada"}, ""
			}),
			invalid.Error{Field: "PromptProfile spec", Reason: base},
		},
		"blank base": {"the base instructions must not be blank", input(func(in *prepare.Input) {
			in.Profile.Identity = &turncontext.Identity{SystemPrompt: " ", DeveloperPrompt: "\n"}
			in.Profile.Instructions, in.Agent.Instructions = "\t\u00a0", "Be brief."
		}), invalid.Error{Field: "PromptProfile spec", Reason: base}},
		"blank message": {
			"there is nothing to answer", input(func(in *prepare.Input) { in.Turn.Message = " \n\t\u00a0" }),
			invalid.Error{Field: "Turn spec.message", Reason: "must not be blank"},
		},
		"trusted contribution": {"a Turn cannot make its own texts trusted", input(func(in *prepare.Input) {
			in.Turn.Contributions = []prompt.Contribution{{Name: "a", Text: "x"}, {Name: "b", Text: "y", Trusted: true}}
		}), invalid.Error{
			Field:  "Turn spec.context.contributions[1].trust",
			Reason: `must be Untrusted: Agent "helper" does not let Turns contribute trusted text (its spec.contributionTrust)`,
		}},
		"trusted and blank": {"even a blank trusted text is rejected", input(func(in *prepare.Input) {
			in.Turn.Contributions = []prompt.Contribution{{Name: "a", Trusted: true}}
			in.Profile.Variables = variables
		}), invalid.Error{
			Field:  "Turn spec.context.contributions[0].trust",
			Reason: `must be Untrusted: Agent "helper" does not let Turns contribute trusted text (its spec.contributionTrust)`,
		}},
		"missing required": {
			"a required variable has no default", input(func(in *prepare.Input) { in.Profile.Variables = variables }),
			invalid.Error{Field: "Turn spec.parameters", Reason: `must give a value for "user", which PromptProfile "support" requires`},
		},
		"undeclared": {"a parameter without a variable is rejected", input(func(in *prepare.Input) {
			in.Profile.Variables, in.Turn.Parameters = variables, map[string]string{"user": "Ada", "zone": "x", "colour": "y"}
		}), invalid.Error{
			Field:  "Turn spec.parameters",
			Reason: `"colour" is not a variable of PromptProfile "support", which declares: tone, user`,
		}},
		"none declared": {
			"the profile declares no variable", input(func(in *prepare.Input) { in.Turn.Parameters = map[string]string{"tone": "kind"} }),
			invalid.Error{
				Field:  "Turn spec.parameters",
				Reason: `"tone" is not a variable of PromptProfile "support", which declares: none`,
			},
		},
		"built in": {
			"a Turn cannot rename itself", input(func(in *prepare.Input) { in.Turn.Parameters = map[string]string{"Agent": "root"} }),
			invalid.Error{
				Field:  "Turn spec.parameters",
				Reason: `"Agent" is not a variable of PromptProfile "support", which declares: none`,
			},
		},
		"unknown loaded skill": {"the profile does not have the skill", input(func(in *prepare.Input) {
			in.Profile.Skills, in.Agent.Loaded = []prepare.Skill{{Key: "a"}, {Key: "b"}}, []string{"a", "c"}
		}), invalid.Error{Field: "Agent spec.skills.loaded[1]", Reason: `"c" is not a skill of PromptProfile "support", which has: a, b`}},
		"unknown available skill": {"a skill of the manager cannot be chosen", input(func(in *prepare.Input) {
			in.ManagerSkills, in.Agent.Available = []prepare.Skill{{Key: "m"}}, []string{"m"}
		}), invalid.Error{
			Field:  "Agent spec.skills.available[0]",
			Reason: `"m" is not a skill of PromptProfile "support", which has: none`,
		}},
		"rendered blank": {"the base instructions must not render to blank texts", input(func(in *prepare.Input) {
			in.Profile.Identity, in.Profile.Instructions = &turncontext.Identity{
				SystemPrompt:    "{{/* later */}}",
				DeveloperPrompt: "{{ .tone }}",
			}, "\u200b"
			in.Profile.Variables = []prepare.Variable{{Name: "tone"}}
		}), invalid.Error{
			Field:  "PromptProfile spec",
			Reason: "at least one of identity.systemPrompt, identity.developerPrompt and instructions must not be blank when rendered",
		}},
		"too long in all": {"the sum of all texts is bounded", input(func(in *prepare.Input) {
			in.Profile.Variables = []prepare.Variable{{Name: "x", Default: strings.Repeat("x", 4096)}}
			in.Profile.Instructions = strings.Repeat("{{ .x }}", 200)
			in.Profile.Skills = []prepare.Skill{{Key: "a", Content: strings.Repeat("{{ .x }}", 57)}}
		}), invalid.Error{
			Field:  "PromptProfile spec.skills[0].content",
			Reason: "with this text, the profile and the agent render to more than 1048576 bytes in total: shorten the texts or the values",
		}},
		"unknown mode": {
			"an unknown mode has no sections", input(func(in *prepare.Input) { in.Turn.Mode = "full" }),
			invalid.Error{Field: "PromptProfile spec.mode", Reason: `"full" is not a mode: use Full, Minimal, Task or None`},
		},
		"unknown section": {
			"the error lists the sections",
			input(func(in *prepare.Input) { in.Profile.Sections = []string{"agent", "Tools"} }),
			invalid.Error{
				Field:  "PromptProfile spec.sections[1]",
				Reason: `"Tools" is not a section: use ` + strings.Join(prompt.SectionNames(), ", "),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, prepareError(t, tc.in)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestBaseInstructions(t *testing.T) {
	for name, change := range map[string]func(*prepare.Input){
		"system prompt alone": func(in *prepare.Input) { in.Profile.Identity = &turncontext.Identity{SystemPrompt: "Be brief."} },
		"developer prompt alone": func(in *prepare.Input) {
			in.Profile.Identity = &turncontext.Identity{DeveloperPrompt: "Be brief."}
		},
		"instructions alone": func(in *prepare.Input) {
			in.Profile.Identity, in.Profile.Instructions = &turncontext.Identity{}, "Be brief."
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := content(mustPrepare(t, input(change)), prepare.MessageSystemPrompt)
			if want := "<instructions>\nBe brief.\n</instructions>"; !strings.Contains(got, want) {
				t.Errorf("system prompt is %q, want it to hold %q", got, want)
			}
		})
	}
}

// TestEveryAuthoredTextIsATemplate makes each authored text invalid in turn. The error must name that text.
func TestEveryAuthoredTextIsATemplate(t *testing.T) {
	const broken = "ä\n€ {{ .nobody }}"
	for field, change := range map[string]func(*prepare.Input){
		"PromptProfile spec.identity.systemPrompt":    func(in *prepare.Input) { in.Profile.Identity.SystemPrompt = broken },
		"PromptProfile spec.identity.developerPrompt": func(in *prepare.Input) { in.Profile.Identity.DeveloperPrompt = broken },
		"PromptProfile spec.instructions":             func(in *prepare.Input) { in.Profile.Instructions = broken },
		"PromptProfile spec.overrides.behavior":       func(in *prepare.Input) { in.Profile.Behavior = new(broken) },
		"PromptProfile spec.overrides.tools":          func(in *prepare.Input) { in.Profile.ToolsText = new(broken) },
		"PromptProfile spec.stablePrefix":             func(in *prepare.Input) { in.Profile.StablePrefix = broken },
		"PromptProfile spec.dynamicSuffix":            func(in *prepare.Input) { in.Profile.DynamicSuffix = broken },
		"PromptProfile spec.overlays[1].text": func(
			in *prepare.Input,
		) {
			in.Profile.Overlays = []turncontext.Overlay{{Text: "x"}, {Text: broken}}
		},
		"PromptProfile spec.shaping.overlays[0].text": func(
			in *prepare.Input,
		) {
			in.Profile.Shaping.Overlays = []turncontext.Overlay{{Text: broken}}
		},
		"PromptProfile spec.guardrails[1].rule": func(
			in *prepare.Input,
		) {
			in.Profile.Guardrails = []turncontext.Guardrail{{Rule: "x"}, {Rule: broken}}
		},
		`PromptProfile spec.skills[0].contentFrom, key "k" of ConfigMap "m"`: func(in *prepare.Input) {
			in.Profile.Skills = []prepare.Skill{{Key: "a", Content: broken, From: `key "k" of ConfigMap "m"`}}
		},
		"PromptProfile spec.skills[1].content": func(
			in *prepare.Input,
		) {
			in.Profile.Skills = []prepare.Skill{{Key: "a"}, {Key: "b", Content: broken}}
		},
		"Agent spec.instructions": func(in *prepare.Input) { in.Agent.Instructions = broken },
	} {
		for _, mode := range []prompt.Mode{prompt.Full, prompt.None} {
			t.Run(field+" in mode "+string(mode), func(t *testing.T) {
				got := prepareError(t, input(change, func(in *prepare.Input) { in.Turn.Mode = mode }))
				want := invalid.Error{
					Field: field, Line: 2, Column: 6,
					Reason: `variable "nobody" is not declared: add it to the profile's spec.variables, or use ` +
						`one of .Agent.Description, .Agent.Name, .Session.Name, .Turn.Name, .Turn.Namespace`,
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("the error, which must be found even if the mode leaves the text out: -want +got:\n%s", diff)
				}
			})
		}
	}
}

// TestTurnTextsAreNotTemplates puts a template into every text of a Turn. The model must receive it unchanged.
func TestTurnTextsAreNotTemplates(t *testing.T) {
	const text = "{{ .tone }}"
	in := input(func(in *prepare.Input) {
		in.Profile.Variables = []prepare.Variable{{Name: "tone", Default: "kind"}, {Name: "given", Trusted: true}}
		in.Profile.Instructions = "{{ .given }}"
		in.Turn = prepare.Turn{
			Name: "first", Message: text, Parameters: map[string]string{"given": text}, Skill: text, Preferences: []string{text},
			Data: text, History: []prepare.HistoryMessage{{Role: "user", Content: text}},
			Shaping: turncontext.Layer{
				Mode: text, Overlays: []turncontext.Overlay{{Text: text}}, Guardrails: []turncontext.Guardrail{{Rule: text}},
				Expression: turncontext.Expression{Tone: text},
			},
			Session:       &turncontext.Session{ID: text, Subject: text, Summary: text},
			Facts:         []turncontext.Fact{{ID: text, Text: text, Source: text}},
			Memories:      []turncontext.Memory{{Text: text, Scope: text}},
			Enrichments:   []turncontext.Enrichment{{Title: text, Content: text}},
			Contributions: []prompt.Contribution{{Name: text, Text: text}},
		}
	})
	count := 0
	for _, m := range mustPrepare(t, in).Messages {
		count += strings.Count(m.Content, text)
		if strings.Contains(m.Content, "kind") {
			t.Errorf("%s was rendered as a template:\n%s", m.Name, m.Content)
		}
	}
	if want := 23; count != want { // message, parameter, skill, ... and the name of the contribution twice
		t.Errorf("the model is shown %d unchanged texts, want %d", count, want)
	}
}
