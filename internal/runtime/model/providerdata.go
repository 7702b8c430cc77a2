package model

import (
	"encoding/json"
	"slices"
)

// ProviderData is a part of a reply that its endpoint needs again: reasoning, or blocks that only the endpoint can
// read. An adapter sets it only if the endpoint demands it. The journal keeps it with the reply.
type ProviderData struct {
	// Provider and Model name the candidate that made the reply. The loop sets them and Endpoint, and sends the data to
	// no other candidate.
	Provider string `json:"provider,omitempty"`
	Model    string `json:"model,omitempty"`
	// Endpoint is the host and the port of the endpoint that made the reply. A provider of the same name may have
	// another endpoint later.
	Endpoint string `json:"endpoint,omitempty"`
	// Format is the form of Text and Blocks, with the name of the adapter. An adapter must ignore data in a format that
	// it does not know.
	Format string `json:"format"`
	// Lasting is true if the endpoint needs the data in later Turns of the Session, too. Otherwise the data is dropped
	// at the end of the Turn.
	Lasting bool `json:"lasting,omitempty"`
	// Text is reasoning that is sent back. Credentials in it are replaced, as in all texts.
	Text string `json:"text,omitempty"`
	// Blocks is JSON that is sent back unchanged, because it may be signed. If it contains a credential, it is dropped.
	Blocks json.RawMessage `json:"blocks,omitempty"`
}

// MadeBy reports whether a candidate made the reply with the data. It returns false for nil.
func (d *ProviderData) MadeBy(provider, model, endpoint string) bool {
	return d != nil && d.Provider == provider && d.Model == model && d.Endpoint == endpoint
}

// Size returns the number of bytes of the data. It returns 0 for nil.
func (d *ProviderData) Size() int {
	if d == nil {
		return 0
	}
	return len(d.Text) + len(d.Blocks)
}

// redacted returns a copy of the data without credentials, or nil if nothing is left.
func (d *ProviderData) redacted(redact func(text string) string) *ProviderData {
	if d == nil {
		return nil
	}
	out := *d
	out.Text, out.Blocks = redact(d.Text), redactedBlocks(d.Blocks, redact)
	if out.Size() == 0 && d.Size() > 0 {
		return nil
	}
	return &out
}

// redactedBlocks returns the blocks, or nil if they contain a credential.
func redactedBlocks(blocks json.RawMessage, redact func(text string) string) json.RawMessage {
	if len(blocks) > 0 && redact(string(blocks)) != string(blocks) {
		return nil
	}
	return blocks
}

// WithoutProviderData returns the message without data of a provider. The original message stays unchanged.
func (m Message) WithoutProviderData() Message {
	m.ProviderData = nil
	if slices.ContainsFunc(m.ToolCalls, func(c ToolCall) bool { return c.ProviderData != nil }) {
		m.ToolCalls = slices.Clone(m.ToolCalls)
		for i := range m.ToolCalls {
			m.ToolCalls[i].ProviderData = nil
		}
	}
	return m
}
