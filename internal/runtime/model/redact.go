package model

// Redact replaces credentials in all that an endpoint wrote in a reply. redact returns a text without them. It must see the whole
// reply: a stream cuts a credential into pieces. A call whose ID has one gets another ID.
func (r *Reply) Redact(redact func(text string) string) {
	r.Text, r.Reasoning = redact(r.Text), redact(r.Reasoning)
	renamed := false
	for i := range r.ToolCalls {
		call := &r.ToolCalls[i]
		call.Name, call.Arguments = redact(call.Name), redact(call.Arguments)
		if redact(call.ID) != call.ID {
			call.ID, renamed = "", true
		}
	}
	if renamed {
		IdentifyCalls(r.ToolCalls, nil)
	}
}

// Redacted returns an error whose texts have no credentials. redact returns a text without them. The error itself, which others may
// have, stays as it is.
func (e *Error) Redacted(redact func(text string) string) *Error {
	redacted := *e
	redacted.Message, redacted.Said = redact(e.Message), redact(e.Said)
	return &redacted
}
