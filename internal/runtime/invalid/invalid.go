// Package invalid defines the error for a field of the input that makes a prompt impossible.
package invalid

import "fmt"

// Error names a field of the input that makes a prompt impossible.
type Error struct {
	// Field is the invalid field with its kind, as the API names it: PromptProfile spec.identity.systemPrompt.
	Field string `json:"field"`
	// Line and Column are the position of the fault within a text, from 1. Each is 0 if it is unknown. Columns count
	// code points.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Reason says why the field is invalid and what to do.
	Reason string `json:"reason"`
}

// Field returns an error about a field.
func Field(field, reason string, args ...any) *Error {
	return &Error{Field: field, Reason: fmt.Sprintf(reason, args...)}
}

// Error returns field:line:column: reason.
func (e *Error) Error() string {
	switch {
	case e.Line == 0:
		return e.Field + ": " + e.Reason
	case e.Column == 0:
		return fmt.Sprintf("%s:%d: %s", e.Field, e.Line, e.Reason)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.Field, e.Line, e.Column, e.Reason)
}
