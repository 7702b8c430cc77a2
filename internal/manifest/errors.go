package manifest

import (
	"fmt"
	"strings"
)

// Error is one mistake in a manifest.
type Error struct {
	// File is the path from which the manifest was read; "-" is standard input.
	File string
	// Line is the line of the mistake in the file, counted from 1, if the YAML parser gives it. Otherwise it is 0 if
	// the file has no other document. If it has, Line is the line of the field, or, if the document lacks the field,
	// that of the innermost object that contains it. The line of a field in a list of objects is the first line of the
	// document.
	Line int
	// Kind, Namespace and Name identify the object, as far as they are known.
	Kind, Namespace, Name string
	// Field is the path of the field, such as spec.message. It is empty if the mistake does not concern one field.
	Field string
	// Message says what the manifest must have instead.
	Message string
}

// Error returns the mistake on one line: position, object, field, message.
func (e *Error) Error() string {
	parts := make([]string, 0, 4)
	if position := (origin{e.File, e.Line}).String(); position != "" {
		parts = append(parts, position)
	}
	if e.Kind != "" {
		parts = append(parts, describe(e.Kind, e.Namespace, e.Name))
	}
	if e.Field != "" {
		parts = append(parts, e.Field)
	}
	return oneLine(strings.Join(append(parts, e.Message), ": "))
}

// oneLine joins the lines of a text, because some parsers return several lines.
func oneLine(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, " ")
}

// Errors holds all mistakes of a set of manifests, in the order of the files.
type Errors []*Error

// Error returns the mistakes, one per line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, problem := range e {
		lines[i] = problem.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the mistakes for errors.As and errors.Is.
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, problem := range e {
		all[i] = problem
	}
	return all
}

// origin is the position of an object or a mistake in the manifests. The line is 0 if the file has no other document.
type origin struct {
	file string
	line int
}

// String returns the position in the form that editors understand: file:line.
func (o origin) String() string {
	if o.line == 0 {
		return o.file
	}
	return fmt.Sprintf("%s:%d", o.file, o.line)
}

// describe returns the kind, the namespace and the name of an object, as far as they are known, such as Turn
// helpdesk/open-loops.
func describe(kind, namespace, name string) string {
	switch {
	case name == "":
		return kind
	case namespace == "":
		return kind + " " + name
	default:
		return kind + " " + namespace + "/" + name
	}
}
