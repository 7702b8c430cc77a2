package prompt_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// all fills an input so that every section has content.
func all(in *prompt.Input) {
	in.Depth, in.Description = 1, "Helps."
	in.Loaded = []prompt.Skill{{Key: "research", Content: *text("Verify claims.")}}
	in.Available = []prompt.Skill{{Key: "writer", Name: "Writer"}}
	in.Tools = []prompt.Tool{prompt.LoadSkill()}
	in.TurnInstructions, in.Subject = *text("Current mode: review"), "PR 12"
	in.Contributions = []prompt.Contribution{{Name: "plan", Text: "Ship."}}
}

func mode(m prompt.Mode) func(*prompt.Input) {
	return func(in *prompt.Input) { in.Mode = m }
}

var opening = regexp.MustCompile(`(?m)^<([a-z_]+)>$`)

// tags returns the tags of a text, in order.
func tags(text string) []string {
	var found []string
	for _, m := range opening.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

func TestSectionsOfModes(t *testing.T) {
	full := []string{
		"agent", "instructions", "behavior", "loaded_skills", "available_skills", "tools", "turn_instructions", "subject",
		"live_context", "environment",
	}
	minimal := []string{"agent", "sub_agent", "instructions", "behavior", "tools", "turn_instructions", "environment"}
	for name, tc := range map[string]struct {
		reason          string
		in              prompt.Input
		asked, rendered []string
	}{
		"full":    {"all but sub_agent", input(all), full, full},
		"task":    {"Task has the same sections as Full", input(all, mode(prompt.Task)), full, full},
		"minimal": {"Minimal has what a sub-agent needs", input(all, mode(prompt.Minimal)), minimal, minimal},
		"full, least": {
			"blank sections are left out", input(), full,
			[]string{"agent", "instructions", "behavior", "tools", "environment"},
		},
		"task, least": {
			"blank sections are left out in Task too", input(mode(prompt.Task)), full,
			[]string{"agent", "instructions", "behavior", "tools", "environment"},
		},
		"minimal, depth 0": {
			"sub_agent is for delegated tasks only", input(mode(prompt.Minimal)), minimal,
			[]string{"agent", "instructions", "behavior", "tools", "environment"},
		},
		"minimal, depth 1": {
			"sub_agent is for delegated tasks", input(mode(prompt.Minimal), func(in *prompt.Input) { in.Depth = 1 }),
			minimal,
			[]string{"agent", "sub_agent", "instructions", "behavior", "tools", "environment"},
		},
		"none":       {"None has no section", input(all, mode(prompt.None)), []string{}, []string{}},
		"none, list": {"mode None ignores the list", input(all, mode(prompt.None), only("agent", "tools")), []string{}, []string{}},
		"list":       {"a list replaces the sections of the mode", input(all, only("agent")), []string{"agent"}, []string{"agent"}},
		"list, task": {
			"a list replaces the sections of Task", input(all, mode(prompt.Task), only("environment")),
			[]string{"environment"},
			[]string{"environment"},
		},
		"list, minimal": {
			"a list may add sections that Minimal does not have",
			input(all, mode(prompt.Minimal), only("tools", "subject")),
			[]string{"tools", "subject"},
			[]string{"tools", "subject"},
		},
		"sub_agent by name": {
			"sub_agent by its name, in the order of the list", input(all, only("sub_agent", "agent")),
			[]string{"sub_agent", "agent"},
			[]string{"sub_agent", "agent"},
		},
		"sub_agent, full": {
			"sub_agent is left out at depth 0", input(only("sub_agent", "agent")),
			[]string{"sub_agent", "agent"},
			[]string{"agent"},
		},
		"blank": {"a blank section is requested but not rendered", input(only("instructions", "agent"),
			func(in *prompt.Input) { in.Instructions = texts("", " \n\t") }), []string{"instructions", "agent"}, []string{"agent"}},
		"every": {
			"any order is allowed", input(all, only("environment", "agent", "subject", "tools")),
			[]string{"environment", "agent", "subject", "tools"},
			[]string{"environment", "agent", "subject", "tools"},
		},
		"empty": {"an empty list is an empty prompt", input(all, only()), []string{}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := mustRender(t, tc.in)
			if diff := cmp.Diff([][]string{tc.asked, tc.rendered}, [][]string{got.Report.SectionsAsked, got.Report.Sections}); diff != "" {
				t.Errorf("sections asked for and rendered: %s: -want +got:\n%s", tc.reason, diff)
			}
			tag := map[string]string{
				"loaded_skills": "skills_loaded", "available_skills": "skills_available", "tools": "tools_available",
				"subject": "subject_context",
			}
			var want []string
			for _, name := range tc.rendered {
				if other, ok := tag[name]; ok {
					name = other
				}
				want = append(want, name)
			}
			var sectionTags []string
			for _, name := range tags(got.Text) {
				if name != "untrusted-text" && name != "prompt-data" {
					sectionTags = append(sectionTags, name)
				}
			}
			if diff := cmp.Diff(want, sectionTags); diff != "" {
				t.Errorf("tags of the text, each at the beginning of a line: -want +got:\n%s", diff)
			}
			if got.Report.Mode != tc.in.Mode {
				t.Errorf("the report says mode %q, want %q", got.Report.Mode, tc.in.Mode)
			}
		})
	}
}

func TestSectionNames(t *testing.T) {
	want := []string{
		"agent", "sub_agent", "instructions", "behavior", "loaded_skills", "available_skills", "tools",
		"turn_instructions", "subject", "live_context", "environment",
	}
	if diff := cmp.Diff(want, prompt.SectionNames()); diff != "" {
		t.Errorf("names, in the order of the prompt: -want +got:\n%s", diff)
	}
	got := mustRender(t, input(all, only(want...)))
	if diff := cmp.Diff(want, got.Report.Sections); diff != "" {
		t.Errorf("sections if all are requested: -want +got:\n%s", diff)
	}
}

func TestModeOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		turn, profile prompt.Mode
		depth         int
		want          prompt.Mode
	}{
		"Turn":             {"the Turn's mode counts most", prompt.Task, prompt.Minimal, 1, prompt.Task},
		"profile":          {"the profile's mode counts next", "", prompt.None, 1, prompt.None},
		"sub-agent":        {"a sub-agent needs little", "", "", 1, prompt.Minimal},
		"deeper":           {"the depth of a sub-agent does not matter", "", "", 5, prompt.Minimal},
		"no mode":          {"other agents get all sections", "", "", 0, prompt.Full},
		"full sub-agent":   {"a sub-agent gets the requested mode", prompt.Full, "", 2, prompt.Full},
		"profile, depth 0": {"the profile's mode counts at depth 0 too", "", prompt.Task, 0, prompt.Task},
	} {
		t.Run(name, func(t *testing.T) {
			if got := prompt.ModeOf(tc.turn, tc.profile, tc.depth); got != tc.want {
				t.Errorf("ModeOf(%q, %q, %d) = %q, want %q: %s", tc.turn, tc.profile, tc.depth, got, tc.want, tc.reason)
			}
		})
	}
}

func TestInvalidInput(t *testing.T) {
	const names = "agent, sub_agent, instructions, behavior, loaded_skills, available_skills, tools, " +
		"turn_instructions, subject, live_context, environment"
	for name, tc := range map[string]struct {
		reason string
		in     prompt.Input
		want   string
	}{
		"unknown mode": {
			"there are four modes", input(mode("Verbose")),
			`PromptProfile spec.mode: "Verbose" is not a mode: use Full, Minimal, Task or None`,
		},
		"no mode": {
			"an empty mode is an error", input(mode("")),
			`PromptProfile spec.mode: "" is not a mode: use Full, Minimal, Task or None`,
		},
		"unknown section": {
			"the error lists the sections", input(only("agent", "nosuch")),
			`PromptProfile spec.sections[1]: "nosuch" is not a section: use ` + names,
		},
		"tag": {
			"the tag of a section is not its name", input(only("tools_available")),
			`PromptProfile spec.sections[0]: "tools_available" is not a section: use ` + names,
		},
		"case": {
			"names are case-sensitive", input(only("Agent")),
			`PromptProfile spec.sections[0]: "Agent" is not a section: use ` + names,
		},
		"twice": {
			"a section must not be listed twice", input(only("agent", "tools", "agent")),
			`PromptProfile spec.sections[2]: "agent" is listed twice: list each section once`,
		},
		"mode None": {
			"an unknown name is found in every mode", input(mode(prompt.None), only("nosuch")),
			`PromptProfile spec.sections[0]: "nosuch" is not a section: use ` + names,
		},
		"tool in None": {
			"tools are checked in every mode",
			input(mode(prompt.None), func(in *prompt.Input) { in.Tools = []prompt.Tool{{}} }),
			`tools[0].name: "" must be 1 to 64 letters, digits, '_' and '-', beginning with a letter or '_'`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := prompt.Render(tc.in)
			if _, ok := errors.AsType[*invalid.Error](err); !ok || got.Text != "" {
				t.Fatalf("Render = %q, %v; want an *invalid.Error and no text: %s", got.Text, err, tc.reason)
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestCacheBoundary(t *testing.T) {
	prefix := func(in *prompt.Input) { in.StablePrefix = *text("Begin.") }
	suffix := func(in *prompt.Input) { in.DynamicSuffix = *text("End.") }
	think := func(in *prompt.Input) { in.Thinking = prompt.ThinkingLow }
	const thought = "Think briefly before you answer: what is asked, and what is the shortest correct way to the answer?"
	for name, tc := range map[string]struct {
		reason          string
		in              prompt.Input
		stable, dynamic []string
	}{
		"none": {
			"static sections alone have no boundary", input(only("agent", "instructions")),
			[]string{"<agent>", "<instructions>"},
			nil,
		},
		"usual": {
			"the boundary precedes the first dynamic section",
			input(only("agent", "environment")),
			[]string{"<agent>"},
			[]string{"<environment>"},
		},
		"unrendered": {"a section that is left out makes no boundary", input(
			only("agent", "subject", "live_context", "turn_instructions", "instructions")), []string{"<agent>", "<instructions>"}, nil},
		"static after dynamic": {
			"a static section after a dynamic one stays after it",
			input(only("environment", "agent", "tools")), nil,
			[]string{"<environment>", "<agent>", "<tools_available>"},
		},
		"first rendered": {
			"a section that is left out before the boundary does not matter",
			input(only("subject", "agent", "environment", "tools")),
			[]string{"<agent>"},
			[]string{"<environment>", "<tools_available>"},
		},
		"suffix": {
			"the suffix is last and makes a boundary", input(only("agent"), suffix),
			[]string{"<agent>"},
			[]string{"End."},
		},
		"suffix after": {
			"the suffix follows the dynamic sections", input(only("agent", "environment"), suffix),
			[]string{"<agent>"},
			[]string{"<environment>", "End."},
		},
		"prefix": {"the prefix is first", input(only("agent"), prefix), []string{"Begin.", "<agent>"}, nil},
		"prefix and dynamic": {
			"the prefix is stable even without stable sections", input(only("environment"), prefix),
			[]string{"Begin."},
			[]string{"<environment>"},
		},
		"thinking": {
			"thinking precedes everything else", input(only("agent", "environment"), prefix, suffix, think),
			[]string{thought, "Begin.", "<agent>"},
			[]string{"<environment>", "End."},
		},
		"empty list": {
			"a prompt without sections may have prefix and suffix",
			input(only(), prefix, suffix, think),
			[]string{thought, "Begin."},
			[]string{"End."},
		},
		"suffix alone": {"a prompt may have only a dynamic part", input(only(), suffix), nil, []string{"End."}},
		"blank around": {"blank texts are left out", input(only("agent"),
			func(in *prompt.Input) { in.StablePrefix, in.DynamicSuffix = *text(" \n"), *text("\t") }), []string{"<agent>"}, nil},
		"none mode": {
			"mode None is one fixed line and nothing else",
			input(all, mode(prompt.None), prefix, suffix, think),
			[]string{"You are a helpful assistant. Answer the user's message."},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			system := mustRender(t, tc.in)
			stable, dynamic := parts(t, system)
			for part, c := range map[string]struct {
				got  string
				want []string
			}{"stable": {stable, tc.stable}, "dynamic": {dynamic, tc.dynamic}} {
				var begins []string
				for piece := range strings.SplitSeq(stripBodies(c.got), "\n\n") {
					if piece != "" {
						begins = append(begins, piece)
					}
				}
				if diff := cmp.Diff(c.want, begins); diff != "" {
					t.Errorf("%s part %q: %s: -want +got:\n%s", part, c.got, tc.reason, diff)
				}
			}
			if system.Report.ToolCount != len(tc.in.Tools) {
				t.Errorf("the report counts %d tools, want %d in every mode", system.Report.ToolCount, len(tc.in.Tools))
			}
		})
	}
}

var sectionBody = regexp.MustCompile(`(?s)(<[a-z_]+>)\n.*?\n</[a-z_]+>`)

// stripBodies removes the bodies of sections. Opening tags and the text between sections stay.
func stripBodies(text string) string { return sectionBody.ReplaceAllString(text, "$1") }
