package model

// Redact removes credentials from all texts of the endpoint in a reply. redact returns a text without credentials.
// Redact must run on the whole reply, because a stream may cut a credential into pieces. A call whose ID contains a
// credential gets another ID.
func (r *Reply) Redact(redact func(text string) string) {
	r.Text, r.Reasoning = redact(r.Text), redact(r.Reasoning)
	r.ProviderData = r.ProviderData.redacted(redact)
	renamed := false
	for i := range r.ToolCalls {
		call := &r.ToolCalls[i]
		call.Name, call.Arguments = redact(call.Name), redact(call.Arguments)
		call.ProviderData = redactedBlocks(call.ProviderData, redact)
		if redact(call.ID) != call.ID {
			call.ID, renamed = "", true
		}
	}
	if renamed {
		IdentifyCalls(r.ToolCalls, nil)
	}
}

// Redacted returns a copy of the error without credentials in its texts. redact returns a text without credentials.
// The original error stays unchanged, because other goroutines may use it.
func (e *Error) Redacted(redact func(text string) string) *Error {
	redacted := *e
	redacted.Message, redacted.RemoteMessage = redact(e.Message), redact(e.RemoteMessage)
	return &redacted
}
