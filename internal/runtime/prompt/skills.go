package prompt

import (
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/template"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// Skill is a written procedure.
type Skill struct {
	// Key identifies the skill for agents and models.
	Key string
	// Name is the name of the skill. If it is blank, the key is used.
	Name string
	// Description says when to use the skill. It may be empty.
	Description string
	// Content is the content of the skill, an authored text.
	Content template.Text
}

// AvailableSkills joins lists of skills. If several skills have the same key, it keeps the first of them.
func AvailableSkills(lists ...[]Skill) []Skill {
	var all []Skill
	seen := map[string]bool{}
	for _, s := range slices.Concat(lists...) {
		if !seen[s.Key] {
			seen[s.Key] = true
			all = append(all, s)
		}
	}
	return all
}

// Result returns the result of the tool load_skill for this skill, as JSON.
func (s Skill) Result() (string, error) {
	// canonical.JSON keeps < and & unchanged.
	content, err := canonical.JSON(map[string]string{"key": s.Key, "name": s.Name, "content": s.Content.Body})
	return string(content), err
}

// FindSkill returns the skill with a key, for the tool load_skill. The error, an *invalid.Error, lists the
// available keys.
func FindSkill(available []Skill, key string) (Skill, error) {
	var keys []string
	for _, s := range available {
		if s.Key == key {
			return s, nil
		}
		keys = append(keys, s.Key)
	}
	if len(keys) == 0 {
		return Skill{}, invalid.Field("key", "no skill has the key %q: none is available", key)
	}
	return Skill{}, invalid.Field("key", "no skill has the key %q: use one of %s", key, strings.Join(keys, ", "))
}

func renderLoadedSkills(r *rendering) (string, bool) {
	if len(r.Loaded) == 0 {
		return "", false
	}
	parts := []string{loadedSkillsText}
	for _, s := range r.Loaded {
		parts = append(parts, "## Skill: "+untrusted.Line(s.Key))
		if body := r.authored(s.Content); body != "" {
			parts = append(parts, body)
		}
	}
	return strings.Join(parts, "\n\n"), false
}

func renderAvailableSkills(r *rendering) (string, bool) {
	if len(r.Available) == 0 {
		return "", false
	}
	lines := make([]string, 0, len(r.Available))
	for _, s := range r.Available {
		name := untrusted.Line(s.Name)
		if name == "" {
			name = untrusted.Line(s.Key)
		}
		line := "- " + untrusted.Line(s.Key) + ": " + name
		if d := untrusted.Line(s.Description); d != "" {
			line += " — " + d
		}
		lines = append(lines, line)
	}
	return availableSkillsText + "\n\n" + strings.Join(lines, "\n"), false
}
