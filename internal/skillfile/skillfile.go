// Package skillfile reads the skills that are available to every Agent from a file.
package skillfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// The bounds of a file, in skills and in Unicode code points: those that the API sets for the skills of a PromptProfile.
const (
	maxSkills           = 32
	maxKeyChars         = 63
	maxNameChars        = 128
	maxDescriptionChars = 1024
	maxContentChars     = 65536
)

var validKey = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$`)

// entry is one skill as the file has it.
type entry struct {
	// Key by which models name the skill.
	Key string `json:"key"`
	// Name of the skill; the key if it is blank.
	Name string `json:"name"`
	// Description of when to use it; may be empty.
	Description string `json:"description"`
	// Content of the skill, which is no template.
	Content string `json:"content"`
}

// Load reads the skills of a YAML file: a list of at most 32 entries with key, name, description and content, of which
// key and content must be given. They are returned in their order. The error names the file and, of all entries that are
// wrong, the entry and the field.
func Load(path string) ([]prepare.Skill, error) {
	data, err := os.ReadFile(path) //nolint:gosec // because the file is the one that the operator names
	if err != nil {
		return nil, fmt.Errorf("failed to read skills: %w", err)
	}
	skills, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("failed to read skills from %s: %w", path, err)
	}
	return skills, nil
}

func parse(data []byte) ([]prepare.Skill, error) {
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("it must be YAML: %w", err)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, errors.New("it must be a list of skills, each with key and content")
	}
	if len(list) > maxSkills {
		return nil, fmt.Errorf("it has %d skills and may have %d: leave some out", len(list), maxSkills)
	}
	var skills []prepare.Skill
	var wrong []error
	places := map[string]int{}
	for i, raw := range list {
		e, err := read(raw)
		if first, taken := places[e.Key]; err == nil && taken {
			err = fmt.Errorf("key %q is that of [%d] already: use another", e.Key, first)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("[%d]: %w", i, err))
			continue
		}
		places[e.Key] = i
		skills = append(skills, prepare.Skill{Key: e.Key, Name: e.Name, Description: e.Description, Content: e.Content})
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return skills, nil
}

// read reads one entry and checks it.
func read(raw json.RawMessage) (entry, error) {
	var e entry
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&e); err != nil {
		return e, reason(err)
	}
	switch {
	case e.Key == "":
		return e, errors.New("key must be given")
	case len(e.Key) > maxKeyChars || !validKey.MatchString(e.Key):
		return e, fmt.Errorf("key %q must be at most %d letters, digits, '_' and '-', starting and ending with a letter or digit", e.Key, maxKeyChars)
	case strings.TrimSpace(e.Content) == "":
		return e, errors.New("content must be given and not blank")
	}
	for _, f := range []struct {
		name, value string
		most        int
	}{{"name", e.Name, maxNameChars}, {"description", e.Description, maxDescriptionChars}, {"content", e.Content, maxContentChars}} {
		if n := utf8.RuneCountInString(f.value); n > f.most {
			return e, fmt.Errorf("%s has %d characters and may have %d: shorten it", f.name, n, f.most)
		}
	}
	return e, nil
}

// reason says in the file's words what the decoder found.
func reason(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return errors.New("must be a skill: a mapping with key and content")
		}
		return fmt.Errorf("%s must be a text", wrong.Field)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("unknown field %s: use key, name, description and content", name)
	}
	return err
}
