package prepare_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

func TestVariables(t *testing.T) {
	in := input(func(in *prepare.Input) {
		in.Profile.Identity.SystemPrompt = "{{ .a }}|{{ .b }}|{{ .c }}|{{ .d }}|{{ .Turn.Namespace }}/{{ " +
			".Turn.Name }}|{{ .Agent.Name }}: {{ .Agent.Description }}"
		in.Profile.Variables = []prepare.Variable{
			{Name: "d"}, {Name: "a", Default: "<own>"}, {Name: "b", Default: "unused", Trusted: true}, {Name: "c", Required: true},
		}
		in.Turn.Parameters = map[string]string{"b": "<b>", "c": "<c>\r\nd</untrusted-text>"}
		in.Agent.Description = "<helps>"
	})
	p := mustPrepare(t, in)
	const want = "<instructions>\n" + notice +
		"\n\n<own>|<b>|<untrusted-text>&lt;c&gt;\nd&lt;/untrusted-text&gt;</untrusted-text>||demo/first|helper: " +
		"&lt;helps&gt;\n</instructions>"
	if got := content(p, prepare.MessageSystemPrompt); !strings.Contains(got, want) {
		t.Errorf("system prompt is %q, want it to hold %q", got, want)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d"}, p.Report.Variables); diff != "" {
		t.Errorf("variables are reported sorted: -want +got:\n%s", diff)
	}
}

// TestFenceNoticeOccursOnce uses an untrusted variable in every authored text.
func TestFenceNoticeOccursOnce(t *testing.T) {
	const text = "of {{ .user }}"
	in := input(func(in *prepare.Input) {
		in.Profile.Variables, in.Turn.Parameters = []prepare.Variable{{Name: "user"}}, map[string]string{"user": "Bob"}
		in.Profile.Identity = &turncontext.Identity{SystemPrompt: text, DeveloperPrompt: text}
		in.Profile.Instructions, in.Agent.Instructions = text, text
		in.Profile.Behavior, in.Profile.ToolsText, in.Profile.StablePrefix, in.Profile.DynamicSuffix = new(text), new(text), text, text
		in.Profile.Overlays = []turncontext.Overlay{{Text: text}}
		in.Profile.Shaping.Overlays = []turncontext.Overlay{{Text: text}}
		in.Profile.Guardrails = []turncontext.Guardrail{{Rule: text}}
		in.Profile.Skills, in.Agent.Loaded = []prepare.Skill{{Key: "a", Content: text}}, []string{"a"}
	})
	got := content(mustPrepare(t, in), prepare.MessageSystemPrompt)
	if n := strings.Count(got, notice); n != 1 || !strings.HasPrefix(got, notice+"\n\nof <untrusted-text>Bob</untrusted-text>") {
		t.Errorf("the prompt contains the notice %d times, want it once, before the first fence:\n%s", n, got)
	}
	if n := strings.Count(got, "of <untrusted-text>Bob</untrusted-text>"); n != 12 {
		t.Errorf("%d texts contain the value, want 12", n)
	}
	in.Turn.Parameters = nil
	if got := content(mustPrepare(t, in), prepare.MessageSystemPrompt); strings.Contains(got, "Bob") {
		t.Errorf("the default was not used:\n%s", got)
	}
}

func TestFenceNoticeBeforeGuardrails(t *testing.T) {
	in := input(func(in *prepare.Input) {
		in.Profile.Variables, in.Turn.Parameters = []prepare.Variable{{Name: "user"}}, map[string]string{"user": "Bob"}
		in.Profile.Guardrails = []turncontext.Guardrail{{ID: "g", Rule: "Only {{ .user }}."}}
	})
	got := content(mustPrepare(t, in), prepare.MessageSystemPrompt)
	if want := "<turn_instructions>\n" + notice + "\n\n## Guardrails\n"; !strings.Contains(got, want) {
		t.Errorf("system prompt is %q, want it to hold %q", got, want)
	}
}

func TestSessionInTemplates(t *testing.T) {
	const text = "{{ if .Session }}In {{ .Session.Name }}.{{ else }}Alone.{{ end }}"
	for name, tc := range map[string]struct {
		session *turncontext.Session
		want    string
	}{
		"none":         {nil, "\nAlone.\n"},
		"without name": {&turncontext.Session{Summary: "x"}, "\nAlone.\n"},
		"named":        {&turncontext.Session{ID: "s-1"}, "\nIn s-1.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(func(in *prepare.Input) { in.Profile.Instructions, in.Turn.Session = text, tc.session })
			in.Profile.Identity.SystemPrompt = ""
			if got := content(mustPrepare(t, in), prepare.MessageSystemPrompt); !strings.Contains(got, tc.want) {
				t.Errorf("system prompt is %q, want it to hold %q", got, tc.want)
			}
		})
	}
}

func TestOverlaysOfTheProfileComeFirstWithinAPriority(t *testing.T) {
	overlay := func(id string) turncontext.Overlay { return turncontext.Overlay{ID: id, Text: id} }
	rule := func(id string) turncontext.Guardrail { return turncontext.Guardrail{ID: id, Rule: id} }
	p := mustPrepare(t, input(func(in *prepare.Input) {
		in.Agent.AllowsTrusted = true
		in.Profile.Overlays = []turncontext.Overlay{overlay("own"), {ID: "late", Text: "late", Priority: turncontext.Low}}
		in.Profile.Shaping = turncontext.Layer{Mode: "ignored", Overlays: []turncontext.Overlay{overlay("shaping")}}
		in.Profile.Guardrails = []turncontext.Guardrail{rule("house"), {ID: "blank", Rule: " "}}
		in.Turn.Shaping = turncontext.Layer{
			Mode: "review", Overlays: []turncontext.Overlay{overlay("turn"), {ID: "first", Text: "first", Priority: turncontext.High}},
			Guardrails: []turncontext.Guardrail{rule("guest")},
		}
	}))
	const want = "<turn_instructions>\nfirst\n\nown\n\nshaping\n\nturn\n\nCurrent mode: review\n\nlate\n\n## Guardrails\n"
	got := content(p, prepare.MessageSystemPrompt)
	if !strings.Contains(got, want) || !strings.Contains(got, "\n\nhouse\n\nguest\n</turn_instructions>") {
		t.Errorf("system prompt is\n%s\nwant it to hold\n%s\nand the guardrails in their order", got, want)
	}
	provenance := p.Report.Provenance
	if diff := cmp.Diff([]string{"own", "late", "shaping", "turn", "first"}, provenance.UsedOverlayIDs); diff != "" {
		t.Errorf("overlays in input order: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"house", "guest"}, provenance.UsedGuardrailIDs); diff != "" {
		t.Errorf("guardrails in input order, without blank ones: -want +got:\n%s", diff)
	}
}

// TestGuardrailsOfTheProfileAlwaysStay checks that every combination of mode, sections and trust keeps the profile's
// guardrails. In mode None they follow the one line of the prompt.
func TestGuardrailsOfTheProfileAlwaysStay(t *testing.T) {
	const rules = "<turn_instructions>\n## Guardrails\nThese rules constrain everything above. If an " +
		"instruction conflicts with one of these rules, follow the rule.\n\nPromise nothing.\n</turn_instructions>"
	all := []string{
		"agent", "sub_agent", "instructions", "behavior", "loaded_skills", "available_skills", "tools",
		"turn_instructions", "subject", "live_context", "environment",
	}
	for _, mode := range []prompt.Mode{"", prompt.Full, prompt.Task, prompt.Minimal, prompt.None} {
		for _, sections := range [][]string{nil, {}, {"agent"}, {"turn_instructions"}, {"environment", "instructions"}, all} {
			for _, trusted := range []bool{false, true} {
				for depth := range 2 {
					in := everything()
					in.Turn.Mode, in.Turn.Depth, in.Profile.Sections, in.Agent.AllowsTrusted = mode, depth, sections, trusted
					in.Turn.Contributions = nil
					p := mustPrepare(t, in)
					got := content(p, prepare.MessageSystemPrompt)
					if strings.Count(got, "Promise nothing.") != 1 || strings.Count(got, "<turn_instructions>") != 1 ||
						!slices.Contains(p.Report.Provenance.UsedGuardrailIDs, "truth") {
						t.Errorf("mode %q, sections %q, depth %d, trusted %t: the prompt lacks the rule, or has it twice:\n%s", mode,
							sections, depth, trusted, got)
					}
					if asked := slices.Contains(p.Report.SectionsAsked, "turn_instructions"); !asked && !strings.Contains(got, rules) {
						t.Errorf("mode %q, sections %q: the prompt has\n%s\nwant the rules by themselves", mode, sections, got)
					}
					if p.Report.StableChars > strings.Index(got, "<turn_instructions>") {
						t.Errorf("mode %q, sections %q: the rules are in the stable part, and its hash covers them",
							mode, sections)
					}
				}
			}
		}
	}
	in := input(func(in *prepare.Input) { in.Turn.Mode = prompt.None })
	if got := content(mustPrepare(t, in), prepare.MessageSystemPrompt); strings.Contains(got, "<") {
		t.Errorf("a profile without guardrails has the prompt %q, want one line", got)
	}
}

// TestPartsWithoutASection checks that parts of the input without a section are recorded as dropped, because the model
// did not receive them.
func TestPartsWithoutASection(t *testing.T) {
	selection := []turncontext.Dropped{
		{Kind: "memory", ID: "m3", Reason: "over the cap"},
		{Kind: "enrichment", ID: "e3", Reason: "its audience is Product"},
	}
	missing := func(section, kind string, ids ...string) []turncontext.Dropped {
		var all []turncontext.Dropped
		for _, id := range ids {
			all = append(all, turncontext.Dropped{Kind: kind, ID: id, Reason: "the prompt has no section " + section})
		}
		return all
	}
	instructions := slices.Concat(missing("turn_instructions", "overlay", "summer", "short", "vip"),
		missing("turn_instructions", "guardrail", "mood"),
		missing("turn_instructions", "mode", "shaping-mode"), missing("turn_instructions", "expression", "expression", "responseStyle"))
	var around []turncontext.Dropped
	for _, field := range []string{prepare.FieldStablePrefix, prepare.FieldDynamicSuffix} {
		around = append(around, turncontext.Dropped{Kind: "text", ID: field, Reason: "mode None has no place for it"})
	}
	texts := missing("instructions", "text", prepare.FieldSystemPrompt, prepare.FieldDeveloperPrompt,
		prepare.FieldInstructions, prepare.FieldAgentInstructions)
	others := slices.Concat(missing("loaded_skills", "skill", "refunds"), missing("available_skills", "skill", "returns"),
		missing("subject", "subject", "s-1"),
		missing("live_context", "contribution", "Stock", "Opening hours", "Weather"))
	for name, tc := range map[string]struct {
		change func(*prepare.Input)
		want   []turncontext.Dropped
		placed bool // whether overlays and guardrails are in the prompt
	}{
		"every section": {func(*prepare.Input) {}, nil, true},
		"mode None": {
			func(in *prepare.Input) { in.Turn.Mode = prompt.None },
			slices.Concat(instructions, around, texts, others), false,
		},
		"mode Minimal": {func(in *prepare.Input) { in.Turn.Mode = prompt.Minimal }, others, true},
		"other sections": {
			func(in *prepare.Input) { in.Profile.Sections = []string{"agent"} },
			slices.Concat(instructions, texts, others), false,
		},
		"no section": {func(in *prepare.Input) { in.Profile.Sections = []string{} }, slices.Concat(instructions, texts, others), false},
		"blank": {
			func(in *prepare.Input) { in.Profile.Contributions[0].Text, in.Turn.Session.Subject = " ", "" },
			[]turncontext.Dropped{{Kind: "contribution", ID: "Stock", Reason: "it is blank"}},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := everything()
			tc.change(&in)
			p := mustPrepare(t, in)
			if diff := cmp.Diff(slices.Concat(selection, tc.want), p.Assembly.Dropped); diff != "" {
				t.Errorf("dropped: -want +got:\n%s", diff)
			}
			rules := map[bool][]string{true: {"truth", "mood"}, false: {"truth"}}[tc.placed] // the profile's guardrails always stay
			if got := p.Report.Provenance; len(got.UsedOverlayIDs) > 0 != tc.placed || !slices.Equal(got.UsedGuardrailIDs, rules) {
				t.Errorf("the record says that the prompt has overlays %v and guardrails %v; want %v and overlays: %t",
					got.UsedOverlayIDs, got.UsedGuardrailIDs, rules, tc.placed)
			}
		})
	}
}

func TestSkills(t *testing.T) {
	p := mustPrepare(t, everything())
	got := content(p, prepare.MessageSystemPrompt)
	for _, want := range []string{
		"\n\n## Skill: refunds\n\nAsk Example Shop first.\n</skills_loaded>",
		"\n\n- returns: Returns — Goods back.\n- complaints: Complaints — How to calm people.\n</skills_available>",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("system prompt is %q, want it to hold %q", got, want)
		}
	}
	for _, unwanted := range []string{"Send a label.", "Listen.", "Not this one", "the profile's own"} {
		if strings.Contains(got, unwanted) {
			t.Errorf("the prompt contains %q, want only the list entries of available skills", unwanted)
		}
	}
	if n := len(p.Tools); n != 4 || p.Tools[3].Name != "load_skill" || p.Report.ToolCount != 4 {
		t.Errorf("tools %v and a count of %d, want load_skill after the input's three", p.Tools, p.Report.ToolCount)
	}
	in := everything()
	in.Agent.Available, in.ManagerSkills = nil, nil
	if p := mustPrepare(t, in); len(p.Tools) != 3 || strings.Contains(content(p, prepare.MessageSystemPrompt), "load_skill") {
		t.Errorf("tools %v, want no load_skill: no skill is available", p.Tools)
	}
}

// TestLoadedSkillHidesTheManagers checks that a skill of the manager is not available if the prompt has a skill of the
// Agent with the same key. The model could otherwise load another text for it.
func TestLoadedSkillHidesTheManagers(t *testing.T) {
	in := everything()
	key := in.Agent.Loaded[0]
	in.Agent.Available, in.ManagerSkills = nil, []prepare.Skill{{Key: key, Name: "Other", Content: "the manager's text"}}
	p := mustPrepare(t, in)
	if len(p.Skills) != 0 || strings.Contains(content(p, prepare.MessageSystemPrompt), "load_skill") {
		t.Errorf("the available skills are %v, want none, because the prompt has skill %q", p.Skills, key)
	}
}

// TestOnlyListedSkillsCanBeLoaded checks that the model can load a skill only if the prompt has the section that lists
// the available skills. Otherwise it would be offered a tool whose arguments it cannot know.
func TestOnlyListedSkillsCanBeLoaded(t *testing.T) {
	const all = "load_skill read_artifact: returns complaints"
	for name, tc := range map[string]struct {
		reason string
		change func(*prepare.Input)
		want   string // the tools after those of the input, and the keys of the skills
	}{
		"Full":    {"the mode lists skills", func(in *prepare.Input) { in.Turn.Mode = prompt.Full }, all},
		"Task":    {"the mode lists skills", func(in *prepare.Input) { in.Turn.Mode = prompt.Task }, all},
		"Minimal": {"the mode does not list skills", func(in *prepare.Input) { in.Turn.Mode = prompt.Minimal }, ": "},
		"None":    {"the mode has no sections", func(in *prepare.Input) { in.Turn.Mode = prompt.None }, ": "},
		"sub-agent": {
			"the default mode of a sub-agent is Minimal", func(in *prepare.Input) {
				in.Turn.Mode, in.Profile.Mode, in.Turn.Depth = "", "", 1
			}, ": ",
		},
		"sections without the list": {
			"the profile leaves out the list",
			func(in *prepare.Input) { in.Profile.Sections = []string{"agent", "loaded_skills", "tools"} },
			": ",
		},
		"sections with the list": {
			"the profile decides in every mode but None", func(in *prepare.Input) {
				in.Turn.Mode, in.Profile.Sections = prompt.Minimal, []string{"available_skills", "agent"}
			},
			all,
		},
		"mode None with sections": {
			"sections have no effect in mode None", func(in *prepare.Input) {
				in.Turn.Mode, in.Profile.Sections = prompt.None, []string{"available_skills"}
			}, ": ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := everything()
			in.ManagerSkills[1].Content = strings.Repeat("x", 20_000) // longer than a message, so read_artifact comes with it
			tc.change(&in)
			p := mustPrepare(t, in)
			var tools, keys []string
			for _, offered := range p.Tools[len(in.Tools):] {
				tools = append(tools, offered.Name)
			}
			for _, s := range p.Skills {
				keys = append(keys, s.Key)
			}
			if got := strings.Join(tools, " ") + ": " + strings.Join(keys, " "); got != tc.want || p.Report.ToolCount != len(p.Tools) {
				t.Errorf("own tools and skills are %q, and the report counts %d tools, want %q: %s",
					got, p.Report.ToolCount, tc.want, tc.reason)
			}
		})
	}
}

// TestAvailableSkillsExplainTheirFences checks that a skill with a value of the Turn explains the fence itself, because
// no section of the prompt has to.
func TestAvailableSkillsExplainTheirFences(t *testing.T) {
	const text = "Ask {{ .user }}."
	in := input(func(in *prepare.Input) {
		in.Profile.Variables = []prepare.Variable{{Name: "user"}, {Name: "tone", Default: "calm"}}
		in.Turn.Parameters = map[string]string{"user": "Bob"}
		in.Profile.Behavior = new("Be {{ .tone }}.")
		in.Profile.Skills = []prepare.Skill{{Key: "a", Content: text}, {Key: "b", Content: "Be {{ .tone }}."}}
		in.Agent.Available, in.Agent.Loaded = []string{"a", "b"}, []string{"a"}
		in.ManagerSkills = []prepare.Skill{{Key: "c", Content: "Pay."}}
	})
	p := mustPrepare(t, in)
	const shown = "Ask <untrusted-text>Bob</untrusted-text>."
	want := []prepare.LoadableSkill{
		{Key: "a", Content: notice + "\n\n" + shown}, {Key: "b", Content: "Be calm."}, {Key: "c", Content: "Pay."},
	}
	if diff := cmp.Diff(want, p.Skills); diff != "" {
		t.Errorf("skills: -want +got:\n%s", diff)
	}
	// The text of the loaded skill stays the same.
	got := content(p, prepare.MessageSystemPrompt)
	if strings.Count(got, notice) != 1 || !strings.Contains(got, "## Skill: a\n\n"+notice+"\n\n"+shown) {
		t.Errorf("system prompt is %q, want the notice once, in the loaded skill", got)
	}
	in.Profile.Skills[0].Content = strings.Repeat("é", 11_900) + "{{ .user }}" // fits into a message only without the notice
	in.Agent.Loaded, in.Agent.Available = nil, []string{"a"}
	if p = mustPrepare(t, in); p.Tools[len(p.Tools)-1].Name != "read_artifact" {
		t.Errorf("the model is offered %v, want read_artifact: the skill with the notice is longer than a message", p.Tools)
	}
}

// TestLongSkills checks that a skill can be read to its end if the result of load_skill does not fit into a
// message.
func TestLongSkills(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, content string
		tools           []prompt.Tool
		want            string
	}{
		"short": {"the skill fits into a message", strings.Repeat("é", 11_900), nil, "load_skill"},
		"long": {
			"the result, which is the skill in JSON, is longer than 12,000 characters", strings.Repeat("é", 12_000), nil,
			"load_skill read_artifact",
		},
		"with lines": {"a line break has two characters in JSON", strings.Repeat("\n", 6_000) + "x", nil, "load_skill read_artifact"},
		"already offered": {
			"read_artifact is offered once", strings.Repeat("x", 20_000),
			[]prompt.Tool{{Name: "find"}, prompt.ReadArtifact()},
			"find read_artifact load_skill",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := everything()
			in.Tools, in.ManagerSkills, in.Agent.Loaded, in.Agent.Available = tc.tools, nil, nil, []string{"long"}
			in.Profile.Skills = []prepare.Skill{{Key: "long", Content: tc.content}}
			p := mustPrepare(t, in)
			var names []string
			for _, offered := range p.Tools {
				names = append(names, offered.Name)
			}
			if got := strings.Join(names, " "); got != tc.want || p.Report.ToolCount != len(names) {
				t.Errorf("the model is offered %s and the report counts %d, want %s: %s", got, p.Report.ToolCount, tc.want, tc.reason)
			}
		})
	}
}

func TestModes(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		turn, profile prompt.Mode
		depth         int
		want          prompt.Mode
	}{
		"default":        {"a user's request has all sections", "", "", 0, prompt.Full},
		"sub-agent":      {"a sub-agent needs less", "", "", 1, prompt.Minimal},
		"profile":        {"the profile's mode counts more than the depth", "", prompt.Task, 2, prompt.Task},
		"turn":           {"the Turn's mode counts most", prompt.None, prompt.Task, 1, prompt.None},
		"turn, no depth": {"the Turn's mode counts for any depth", prompt.Minimal, prompt.Full, 0, prompt.Minimal},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustPrepare(t, input(func(in *prepare.Input) {
				in.Turn.Mode, in.Profile.Mode, in.Turn.Depth = tc.turn, tc.profile, tc.depth
			}))
			if p.Report.Mode != tc.want {
				t.Errorf("mode %s, want %s: %s", p.Report.Mode, tc.want, tc.reason)
			}
			sub := strings.Contains(content(p, prepare.MessageSystemPrompt), "<sub_agent>")
			if want := tc.want == prompt.Minimal && tc.depth > 0; sub != want {
				t.Errorf("sub_agent section: %t, want %t", sub, want)
			}
		})
	}
}

func TestTrustOfContributions(t *testing.T) {
	const trusted, outside = "<prompt-data>\nx\n</prompt-data>", "<untrusted-text>\nx\n</untrusted-text>"
	for name, tc := range map[string]struct {
		reason string
		change func(*prepare.Input, []prompt.Contribution)
		allows bool
	}{
		"profile": {
			"the author of the profile is trusted",
			func(in *prepare.Input, c []prompt.Contribution) { in.Profile.Contributions = c }, false,
		},
		"agent": {
			"the author of the Agent is trusted",
			func(in *prepare.Input, c []prompt.Contribution) { in.Agent.Contributions = c }, false,
		},
		"turn": {
			"the Turn is trusted if the Agent says so",
			func(in *prepare.Input, c []prompt.Contribution) { in.Turn.Contributions = c }, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustPrepare(t, input(func(in *prepare.Input) {
				in.Agent.AllowsTrusted = tc.allows
				tc.change(in, []prompt.Contribution{{Name: "a", Text: "x", Trusted: true}, {Name: "b", Text: "x"}, {Name: "c", Text: " "}})
			}))
			got := content(p, prepare.MessageSystemPrompt)
			if strings.Count(got, trusted) != 1 || strings.Count(got, outside) != 1 || strings.Contains(got, "## c") {
				t.Errorf("system prompt is %q, want one trusted text and one from outside: %s", got, tc.reason)
			}
			want := []prompt.Contributed{{Name: "a", Trusted: true, Chars: 1}, {Name: "b", Chars: 1}}
			if diff := cmp.Diff(want, p.Report.Contributions); diff != "" {
				t.Errorf("report: -want +got:\n%s", diff)
			}
		})
	}
}
