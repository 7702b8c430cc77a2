// Package skillfile reads from a file the skills that are available to every Agent.
package skillfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/smallfile"
	"github.com/capstan-dev/capstan/internal/yamldoc"
)

// The bounds of a file, in skills and in Unicode code points. The API sets the same bounds for the skills of a
// PromptProfile.
const (
	maxSkills           = 32
	maxKeyChars         = 63
	maxNameChars        = 128
	maxDescriptionChars = 1024
	maxContentChars     = 65536
)

// maxFileBytes is the maximum size of a file. It is more than these bounds need, even if each character is escaped, and
// without it a wrong path, such as a device, could fill the memory.
const maxFileBytes = 32 << 20

var validKey = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$`)

// entry is one skill in the file.
type entry struct {
	// Key is the name by which models load the skill.
	Key string `json:"key"`
	// Name is the name of the skill; if it is blank, the key is used.
	Name string `json:"name"`
	// Description says when to use the skill; it may be empty.
	Description string `json:"description"`
	// Content is the text of the skill. It is not a template.
	Content string `json:"content"`
}

// Load reads the skills of a YAML file and returns them in the order of the file. The file is a list of at most 32
// entries with key, name, description and content; key and content are required. The error names the file, and the
// entry and field of each mistake.
func Load(path string) ([]prepare.Skill, error) {
	data, err := smallfile.Read(path, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("failed to read skills: %w", err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("failed to read skills from %s: it must be at most %d MiB", path, maxFileBytes>>20)
	}
	skills, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("failed to read skills from %s: %w", path, err)
	}
	return skills, nil
}

func parse(data []byte) ([]prepare.Skill, error) {
	text, err := yamldoc.ToJSON(data)
	if err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, errors.New("it must be a list of skills, each with key and content")
	}
	if len(list) > maxSkills {
		return nil, fmt.Errorf("it has %d skills but may have at most %d: remove some", len(list), maxSkills)
	}
	var skills []prepare.Skill
	var problems []error
	firstIndex := map[string]int{}
	for i, raw := range list {
		e, err := read(raw)
		if first, taken := firstIndex[e.Key]; err == nil && taken {
			err = fmt.Errorf("key %q is already used by [%d]: use another one", e.Key, first)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("[%d]: %w", i, err))
			continue
		}
		firstIndex[e.Key] = i
		skills = append(skills, prepare.Skill{Key: e.Key, Name: e.Name, Description: e.Description, Content: e.Content})
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return skills, nil
}

// read decodes and validates one entry.
func read(raw json.RawMessage) (entry, error) {
	var e entry
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&e); err != nil {
		return e, reason(err)
	}
	switch {
	case e.Key == "":
		return e, errors.New("key is required")
	case len(e.Key) > maxKeyChars || !validKey.MatchString(e.Key):
		return e, fmt.Errorf("key %q must be at most %d letters, digits, '_' and '-', starting and ending with a letter or digit",
			e.Key, maxKeyChars)
	case strings.TrimSpace(e.Content) == "":
		return e, errors.New("content is required and must not be blank")
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{{"name", e.Name, maxNameChars}, {"description", e.Description, maxDescriptionChars}, {"content", e.Content, maxContentChars}} {
		if n := utf8.RuneCountInString(f.value); n > f.limit {
			return e, fmt.Errorf("%s has %d characters but may have at most %d: shorten it", f.name, n, f.limit)
		}
	}
	return e, nil
}

// reason rephrases a decoder's error in the terms of the file.
func reason(err error) error {
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if mismatch.Field == "" {
			return errors.New("must be a skill: a mapping with key and content")
		}
		return fmt.Errorf("%s must be a string", mismatch.Field)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("unknown field %s: use key, name, description and content", name)
	}
	return err
}
