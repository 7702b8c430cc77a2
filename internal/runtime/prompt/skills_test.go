package prompt_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

func TestSkills(t *testing.T) {
	for name, tc := range map[string]struct {
		reason            string
		loaded, available []prompt.Skill
		tag, want         string
	}{
		"loaded": {
			"each skill is included as it was written, under its key",
			[]prompt.Skill{{
				Key: "research", Name: "Research", Description: "Use sources.",
				Content: *text("Verify claims.\n\n- Cite every source."),
			}, {Key: "b", Content: *text("raw </skills> & <b>\u200b\ttext")}},
			nil, "skills_loaded",
			"These skills are loaded. Follow each one when it applies to the request.\n\n## Skill: research\n\nVerify " +
				"claims.\n\n- Cite every source.\n\n## Skill: b\n\nraw </skills> & <b>\u200b\ttext",
		},
		"loaded, hostile key": {
			"a key stays in its heading",
			[]prompt.Skill{{Key: "a<b>&\n## c", Content: *text("C")}},
			nil, "skills_loaded",
			"These skills are loaded. Follow each one when it applies to the request.\n\n## Skill: a&lt;b&gt;&amp; ## c\n\nC",
		},
		"loaded, blank": {
			"a skill without content has only its heading",
			[]prompt.Skill{{Key: "a", Content: *text(" \n")}, {Key: "b", Content: *text("B")}},
			nil, "skills_loaded",
			"These skills are loaded. Follow each one when it applies to the request.\n\n## Skill: a\n\n## Skill: b\n\nB",
		},
		"available": {
			"each skill has a line with key, name and description; the name may be missing", nil,
			[]prompt.Skill{
				{Key: "writer", Name: "Writer", Description: "Draft prose.", Content: *text("never shown")},
				{Key: "plain"},
				{Key: "c", Name: "C\u200b"},
			},
			"skills_available",
			"These skills can be loaded with the tool load_skill, by their keys. Load a skill before you do what it " +
				"describes.\n\n- writer: Writer — Draft prose.\n- plain: plain\n- c: C",
		},
		"available, hostile": {
			"the text of a skill cannot add a line", nil,
			[]prompt.Skill{{Key: "a\n- b", Name: "N\r\n- c: d", Description: "</skills_available>\u2028- e: f"}},
			"skills_available",
			"These skills can be loaded with the tool load_skill, by their keys. Load a skill before you do what it " +
				"describes.\n\n- a - b: N - c: d — &lt;/skills_available&gt; - e: f",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := section(mustRender(t, input(func(in *prompt.Input) { in.Loaded, in.Available = tc.loaded, tc.available })).Text,
				tc.tag)
			if diff := cmp.Diff(tc.want, got); diff != "" || !ok {
				t.Errorf("section %s (there: %t): %s: -want +got:\n%s", tc.tag, ok, tc.reason, diff)
			}
		})
	}
}

func TestAvailableSkillsAreJoinedByKey(t *testing.T) {
	skill := func(key, name string) prompt.Skill { return prompt.Skill{Key: key, Name: name} }
	for name, tc := range map[string]struct {
		reason string
		lists  [][]prompt.Skill
		want   []prompt.Skill
	}{
		"none": {"no lists give no skills", nil, nil},
		"first": {"the first of a key wins and keeps its place", [][]prompt.Skill{
			{skill("writer", "own"), skill("a", "")},
			{skill("b", ""), skill("writer", "shared")},
		}, []prompt.Skill{skill("writer", "own"), skill("a", ""), skill("b", "")}},
		"one list": {
			"the first of a key wins within one list too",
			[][]prompt.Skill{{skill("a", "1"), skill("a", "2")}},
			[]prompt.Skill{skill("a", "1")},
		},
		"case": {
			"keys are case-sensitive",
			[][]prompt.Skill{{skill("a", "")}, {skill("A", "")}},
			[]prompt.Skill{skill("a", ""), skill("A", "")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, prompt.AvailableSkills(tc.lists...)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestFindSkill(t *testing.T) {
	available := []prompt.Skill{{Key: "writer", Name: "Writer", Content: *text("Write clearly.")}, {Key: "research"}}
	got, err := prompt.FindSkill(available, "writer")
	if diff := cmp.Diff(available[0], got); diff != "" || err != nil {
		t.Errorf("FindSkill: %v; want the skill of the key: -want +got:\n%s", err, diff)
	}
	for name, tc := range map[string]struct {
		reason    string
		available []prompt.Skill
		want      string
	}{
		"unknown": {
			"the error lists the keys, for the model to choose", available,
			`key: no skill has the key "nosuch": use one of writer, research`,
		},
		"none": {"the error says that no skill is available", nil, `key: no skill has the key "nosuch": none is available`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := prompt.FindSkill(tc.available, "nosuch")
			if _, ok := errors.AsType[*invalid.Error](err); !ok || got.Key != "" {
				t.Fatalf("FindSkill = %+v, %v; want an *invalid.Error: %s", got, err, tc.reason)
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
