// Package invalid is the one error that says which field of the input no prompt can be made of.
package invalid

import "fmt"

// Error is an input that no prompt can be made of.
type Error struct {
	// Field that is wrong, with its kind, as the API names it: PromptProfile spec.identity.systemPrompt.
	Field string `json:"field"`
	// Line and Column of the fault within a text, from 1; 0 where it has no place. Columns count code points.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Reason says what is wrong with it and what to do.
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
