package translate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// ConfigMaps returns the value of a key of a ConfigMap in the namespace of the objects that refer to it. It returns
// a *MissingError if the ConfigMap or the key does not exist.
type ConfigMaps func(ctx context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error)

// MissingError means that a ConfigMap does not exist or lacks a key.
type MissingError struct {
	// Key is the missing key; empty if the ConfigMap does not exist.
	Key string
	// Reason names the missing object or key and says how to correct it.
	Reason string
}

// Error returns the reason.
func (e *MissingError) Error() string { return e.Reason }

// UnreadableError means that a ConfigMap could not be read, although it may exist.
type UnreadableError struct {
	// Field is the field that refers to the ConfigMap, and Name is the ConfigMap's name.
	Field, Name string
	// Err is the cause.
	Err error
}

// Error returns a message with the ConfigMap, the field and the cause.
func (e *UnreadableError) Error() string {
	return fmt.Sprintf("failed to read ConfigMap %q for %s: %s", e.Name, e.Field, e.Err)
}

// Unwrap returns the cause.
func (e *UnreadableError) Unwrap() error { return e.Err }

// ConfigMapValue returns the value of a key of a ConfigMap's data; data is nil if the ConfigMap does not exist.
func ConfigMapValue(ref v1alpha1.ConfigMapKeyReference, data map[string]string) (string, error) {
	if data == nil {
		return "", &MissingError{Reason: fmt.Sprintf("ConfigMap %q does not exist: create it, or correct the name", ref.Name)}
	}
	value, ok := data[ref.Key]
	if !ok {
		return "", &MissingError{
			Key:    ref.Key,
			Reason: fmt.Sprintf("ConfigMap %q has no key %q in its data: add it, or correct the key", ref.Name, ref.Key),
		}
	}
	return value, nil
}

// The maximum lengths of texts from ConfigMaps, in characters; see also maxMessageChars. The schema sets the same
// bounds for texts within an object.
const (
	maxContentChars = 65536
	maxValueChars   = 4096
)

// missingAt is a MissingError with the field that refers to the ConfigMap. It is an *invalid.Error as well.
type missingAt struct {
	invalid *invalid.Error
	missing *MissingError
}

func (e *missingAt) Error() string { return e.invalid.Error() }

func (e *missingAt) Unwrap() []error { return []error{e.invalid, e.missing} }

// read reads a text of an author, such as instructions. kubectl and Kustomize make ConfigMaps from files as they are,
// so read removes what editors and Git add on Windows: a byte order mark, and carriage returns at the ends of lines.
// The same file then makes the same prompt everywhere.
func (maps ConfigMaps) read(ctx context.Context, field string, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	text, err := maps.readUpTo(ctx, maxContentChars, field, ref)
	return strings.ReplaceAll(strings.TrimPrefix(text, "\ufeff"), "\r\n", "\n"), err
}

// readSource reads the text to which from refers into text, and the name of its source into source. It does nothing if
// from is nil or text is not empty. field is the field that has from.
func (maps ConfigMaps) readSource(ctx context.Context, field string, from *v1alpha1.ContentSource, text, source *string) (err error) {
	if from == nil || *text != "" {
		return nil
	}
	*source = sourceOf(from.ConfigMapKeyRef)
	*text, err = maps.read(ctx, field+".configMapKeyRef", from.ConfigMapKeyRef)
	return err
}

// sourceOf returns the name of the source of a text, for error messages.
func sourceOf(ref v1alpha1.ConfigMapKeyReference) string {
	return fmt.Sprintf("key %q of ConfigMap %q", ref.Key, ref.Name)
}

// Message returns the message of a Turn, from the Turn itself or from a ConfigMap. It returns an *invalid.Error for a
// text that the schema would reject in the Turn.
func Message(ctx context.Context, t *v1alpha1.Turn, maps ConfigMaps) (string, error) {
	if t.Spec.MessageFrom == nil || t.Spec.Message != "" {
		return t.Spec.Message, nil
	}
	const field = "Turn spec.messageFrom.configMapKeyRef"
	ref := t.Spec.MessageFrom.ConfigMapKeyRef
	text, err := maps.readInput(ctx, maxMessageChars, field, ref)
	if err == nil && untrusted.Blank(text) {
		return "", invalid.Field(field, "%s must not be blank: write the message into it", sourceOf(ref))
	}
	return text, err
}

func parameter(ctx context.Context, field string, p *v1alpha1.Parameter, maps ConfigMaps) (string, error) {
	switch {
	case p.Value != nil:
		return *p.Value, nil
	case p.ValueFrom != nil:
		return maps.readInput(ctx, maxValueChars, field+".valueFrom.configMapKeyRef", p.ValueFrom.ConfigMapKeyRef)
	}
	return "", nil
}

// readInput reads a text of a user, which must not contain U+0000.
func (maps ConfigMaps) readInput(ctx context.Context, limit int, field string, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	text, err := maps.readUpTo(ctx, limit, field, ref)
	if err == nil && strings.ContainsRune(text, 0) {
		return "", invalid.Field(field, "%s must not contain the character U+0000: remove it", sourceOf(ref))
	}
	return text, err
}

// readUpTo reads a text of at most limit characters.
func (maps ConfigMaps) readUpTo(
	ctx context.Context, limit int, field string, ref v1alpha1.ConfigMapKeyReference,
) (string, error) {
	text, err := maps(ctx, ref)
	if missing, ok := errors.AsType[*MissingError](err); ok {
		return "", &missingAt{invalid: invalid.Field(field, "%s", missing.Reason), missing: missing}
	}
	if err != nil {
		return "", &UnreadableError{Field: field, Name: ref.Name, Err: err}
	}
	if n := utf8.RuneCountInString(text); n > limit {
		return "", invalid.Field(field, "%s has %d characters but may have at most %d: shorten it", sourceOf(ref), n, limit)
	}
	return text, nil
}

func skills(ctx context.Context, list []v1alpha1.Skill, maps ConfigMaps) ([]prepare.Skill, error) {
	var out []prepare.Skill
	for i, s := range list {
		skill := prepare.Skill{Key: s.Key, Name: s.Name, Description: s.Description}
		switch {
		case s.Content != nil:
			skill.Content = *s.Content
		case s.ContentFrom != nil:
			var err error
			field, ref := fmt.Sprintf("PromptProfile spec.skills[%d].contentFrom.configMapKeyRef", i), s.ContentFrom.ConfigMapKeyRef
			if skill.Content, err = maps.read(ctx, field, ref); err != nil {
				return nil, err
			}
			skill.From = sourceOf(ref)
		}
		out = append(out, skill)
	}
	return out, nil
}

func contributions(ctx context.Context, field string, list []v1alpha1.Contribution, maps ConfigMaps) ([]prompt.Contribution, error) {
	var out []prompt.Contribution
	for i, c := range list {
		contribution := prompt.Contribution{Name: c.Name, Trusted: c.Trust == v1alpha1.TrustTrusted}
		if c.MaxChars != nil {
			contribution.MaxChars = int(*c.MaxChars)
		}
		switch {
		case c.Text != nil:
			contribution.Text = *c.Text
		case c.ConfigMapKeyRef != nil:
			var err error
			if contribution.Text, err = maps.read(ctx, fmt.Sprintf("%s[%d].configMapKeyRef", field, i), *c.ConfigMapKeyRef); err != nil {
				return nil, err
			}
		}
		out = append(out, contribution)
	}
	return out, nil
}
