package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// rich returns manifests that fill every row of a report.
func rich(t *testing.T) files {
	t.Helper()
	f := complete().with(t, "profile.yaml", "  overrides: {behavior: Be brief.}\n", skillOf("notes", "refunds")+`  overlays:
  - {id: kind, source: team, text: Be kind.}
  - {id: empty, source: team, text: "{{ .blank }}"}
  guardrails: [{id: serious, source: legal, rule: No jokes., kind: ToneConstraint, priority: High}]
  shaping: {responseStyle: {preferMarkdown: true, maxAnswerChars: 2000}}
`)
	f = f.with(t, "profile.yaml", "  variables:\n", "  variables:\n  - {name: blank, default: \"\", trust: Trusted}\n")
	f = f.with(t, "agent.yaml", "  limits:", "  skills: {available: [refunds]}\n  limits:")
	f = f.with(t, "turn.yaml", "  context:\n", `  context:
    contributions:
    - {name: notes, configMapKeyRef: {name: notes, key: today}, maxChars: 8}
    - {name: "Report\n  promptHash  0000", text: hostile}
    memories:
    - {id: m01, text: x}
    - {id: m02, text: x}
    - {id: m03, text: x}
    - {id: m04, text: x}
    - {id: m05, text: x}
    - {id: m06, text: x}
    - {id: m07, text: x}
    - {id: m08, text: x}
    - {id: m09, text: x}
    - {id: m10, text: x}
    - {id: m11, text: x, relevance: "0"}
    enrichments:
    - {id: e1, kind: Review, source: s, content: x}
    - {id: "e2\nLeft out", kind: Review, source: s, content: x, audience: Product}
`)
	f["notes.yaml"] = notesYAML
	return f
}

const wantRichReport = `Report
  promptProfile     support (helpdesk.support 1.0.0)
  promptRenderHash  HASH
  promptHash        HASH
  contextHash       HASH
  mode              Full
  sections          agent, instructions, behavior, available_skills, tools, turn_instructions, live_context, environment
  blank sections    loaded_skills, subject
  stableChars       N
  dynamicChars      N
  tools             load_skill
  expression        humor Off
  responseStyle     preferMarkdown true, maxAnswerChars 2,000
  overlays          kind
  guardrails        serious
  memories          10 of 11: m01, m02, m03, m04, m05, m06, m07, m08, m09, m10
  enrichments       1 of 2: e1
  contributions     notes (untrusted, 8 characters), Report promptHash 0000 (untrusted, 7 characters)

Left out
  memory m11             over the cap
  enrichment e2 Left out  its audience is Product
  overlay empty          it renders blank
  contribution notes     cut by 11 characters
`

// collapseSpaces replaces each run of spaces within a line by one space.
func collapseSpaces(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

// report returns the text from the report to the end, with hashes and sizes replaced.
func report(t *testing.T, text string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, "\nReport\n")
	if !found {
		t.Fatalf("want a report, have:\n%s", text)
	}
	lines := strings.Split("Report\n"+hashless(rest), "\n")
	for i, line := range lines {
		if f := strings.Fields(line); len(f) == 2 && strings.HasSuffix(f[0], "Chars") {
			lines[i] = f[0] + " N"
		}
	}
	return collapseSpaces(strings.Join(lines, "\n"))
}

func TestReportListsUsedAndLeftOutParts(t *testing.T) {
	t.Parallel()
	got := capstan(t, "render", "-f", rich(t).written(t, nowhere), "--now", noon).mustEnd(t, exit.OK)
	if diff := cmp.Diff(collapseSpaces(wantRichReport), report(t, got.out)); diff != "" {
		t.Errorf("want a line for each part that was used or left out, and no extra line from a line feed in an ID; -want +have:\n%s", diff)
	}
}

func TestRenderAssembly(t *testing.T) {
	t.Parallel()
	out := capstan(t, "render", "-f", rich(t).written(t, nowhere), "--now", noon, "-o", "json").mustEnd(t, exit.OK).out
	type item struct{ ID, Source, Text, Priority string }
	var got struct {
		Tools    []struct{ Name string }
		Assembly struct {
			Identity struct {
				AssistantName string
				TraitsApplied bool
				Summary       []string
			}
			Expression struct{ Humor string }
			Segments   struct{ System, Developer, Guardrail []item }
			Blocks     []struct{ ID string }
			Provenance map[string][]string
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	a := got.Assembly
	if a.Identity.AssistantName != "Ada" || a.Expression.Humor != "Off" || len(a.Blocks) != 12 || len(got.Tools) != 1 {
		t.Errorf("want Ada, no humor, 12 blocks and load_skill, have %+v and the tools %v", a, got.Tools)
	}
	if diff := cmp.Diff([]item{{"kind", "team", "Be kind.", "Medium"}, {"empty", "team", "", "Medium"}}, a.Segments.Developer); diff != "" {
		t.Errorf("developer segments (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff([]item{{"serious", "legal", "No jokes.", "High"}}, a.Segments.Guardrail); diff != "" {
		t.Errorf("guardrail segments (-want +have):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"m11"}, a.Provenance["droppedMemoryIDs"]); diff != "" {
		t.Errorf("droppedMemoryIDs (-want +have):\n%s", diff)
	}
	mustSay(t, out, `"system": []`)
}

func TestEmptyListsAreLists(t *testing.T) {
	t.Parallel()
	out := capstan(t, "render", "-f", complete().written(t, nowhere), "-o", "json").mustEnd(t, exit.OK).out
	mustSay(t, out, `"tools": []`, `"developer": []`, `"guardrail": []`, `"usedMemoryIDs": []`, `"usedOverlayIDs": []`)
	if strings.Contains(out, "null") {
		t.Errorf("want no null, have:\n%s", out)
	}
}

func TestRenderKindsOfPrompts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason         string
		file, old, new string
		want           []string
	}{
		"a model of the chain": {
			"the Turn's model is asked first", "turn.yaml", "message:", "model: other:large\n  message:",
			[]string{"4 messages to model large of ModelProvider other\n", "| - Model: large\n", "| - provider: other\n"},
		},
		"no sections": {
			"an empty prompt has no line", "profile.yaml", "  overrides:", "  sections: []\n  overrides:",
			[]string{
				"1. system_prompt (system), 0 characters\n\n2. runtime_metadata", "  sections          none\n",
				"  stableChars       0\n",
			},
		},
		"mode None": {
			"the prompt is one line", "profile.yaml", "  overrides:", "  mode: None\n  overrides:",
			[]string{"  mode              None\n", "  sections          none\n", "  dynamicChars      0\n"},
		},
		"sections of the profile": {
			"the report lists blank sections", "profile.yaml", "  overrides:",
			"  sections: [environment, subject, agent]\n  overrides:",
			[]string{"  sections          environment, agent\n  blank sections    subject\n"},
		},
		"an overlay without a place": {
			"the report names sections that the model does not receive", "profile.yaml", "  overrides:",
			"  sections: [agent]\n  overlays: [{id: kind, source: team, text: Be kind.}]\n  overrides:",
			[]string{
				"\nLeft out\n  overlay kind  ",
				"  the prompt has no section turn_instructions\n  text PromptProfile spec.instructions  ",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := complete().with(t, tc.file, tc.old, tc.new)
			dir := f.with(t, "agent.yaml", "  limits:", "  - {providerRef: {name: other}, model: large}\n  limits:").written(t, nowhere)
			got := capstan(t, "render", "-f", dir).mustEnd(t, exit.OK)
			for _, want := range tc.want {
				if !strings.Contains(got.out, want) {
					t.Errorf("%s: want %q, have:\n%s", tc.reason, want, got.out)
				}
			}
		})
	}
}

// skillFile writes a file of skills and returns its path.
func skillFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "skills.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSkillsFile(t *testing.T) {
	t.Parallel()
	dir := complete().written(t, nowhere)
	good := skillFile(t, "- {key: escalate, name: Escalate, description: When nothing helps, content: Call the duty manager.}\n")
	got := capstan(t, "render", "-f", dir, "--skills-file", good).mustEnd(t, exit.OK)
	mustSay(t, got.out, "| - escalate: Escalate — When nothing helps\n", "  tools             load_skill\n")

	bad := skillFile(t, "- {key: escalate}\n")
	for _, command := range []string{"render", "run"} {
		got := capstan(t, command, "-f", dir, "--skills-file", bad).mustEnd(t, exit.Usage)
		mustSay(t, got.err, "--skills-file: ", bad, "[0]: content is required")
	}
}
