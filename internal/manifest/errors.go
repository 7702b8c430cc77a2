package manifest

import (
	"fmt"
	"strings"
)

// Error is one thing that is wrong with a manifest.
type Error struct {
	// File is the path the manifest was read from; "-" is standard input.
	File string
	// Line is where the object's document begins, counted from 1; 0 if the file holds no other document.
	Line int
	// Kind, Namespace and Name are the object's, as far as they are known.
	Kind, Namespace, Name string
	// Field is the path of the field, such as spec.message; empty if the problem is not that of one field.
	Field string
	// Message says what must be different.
	Message string
}

// Error returns the problem on one line: place, object, field, message.
func (e *Error) Error() string {
	parts := make([]string, 0, 4)
	if place := (origin{e.File, e.Line}).String(); place != "" {
		parts = append(parts, place)
	}
	if e.Kind != "" {
		parts = append(parts, describe(e.Kind, e.Namespace, e.Name))
	}
	if e.Field != "" {
		parts = append(parts, e.Field)
	}
	return oneLine(strings.Join(append(parts, e.Message), ": "))
}

// oneLine joins the lines of a text, since some parsers give their reasons on lines of their own.
func oneLine(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, " ")
}

// Errors is all that is wrong with a set of manifests, in the order of the files.
type Errors []*Error

// Error returns the problems, one a line.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, problem := range e {
		lines[i] = problem.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.As and errors.Is each problem.
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, problem := range e {
		all[i] = problem
	}
	return all
}

// origin is where an object was read. The line is 0 where the file alone says it.
type origin struct {
	file string
	line int
}

// String returns the place as editors understand it: file:line.
func (o origin) String() string {
	if o.line == 0 {
		return o.file
	}
	return fmt.Sprintf("%s:%d", o.file, o.line)
}

// describe names an object as precisely as it is known: Turn helpdesk/open-loops.
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
