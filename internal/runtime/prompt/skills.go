package prompt

import (
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/template"
)

// Skill is a way to do something, written down.
type Skill struct {
	// Key by which agents and models name it.
	Key string
	// Name of the skill; the key if it is blank.
	Name string
	// Description of when to use it; may be empty.
	Description string
	// Content of the skill, authored.
	Content template.Text
}

// AvailableSkills joins lists of skills; of several with one key the first is taken.
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

// Result is what the tool load_skill returns of the skill, as JSON.
func (s Skill) Result() (string, error) {
	content, err := canonical.JSON(map[string]string{"key": s.Key, "name": s.Name, "content": s.Content.Body}) // which leaves < and & as they are
	return string(content), err
}

// FindSkill returns the skill of a key, as the tool load_skill does. The error, an *invalid.Error, lists the keys.
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
		parts = append(parts, "## Skill: "+fence.Line(s.Key))
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
		name := fence.Line(s.Name)
		if name == "" {
			name = fence.Line(s.Key)
		}
		line := "- " + fence.Line(s.Key) + ": " + name
		if d := fence.Line(s.Description); d != "" {
			line += " — " + d
		}
		lines = append(lines, line)
	}
	return availableSkillsText + "\n\n" + strings.Join(lines, "\n"), false
}
