package loop

import "github.com/capstan-dev/capstan/internal/runtime/model"

// estimate returns the approximate number of tokens in the prompt of a step. It adds up the prompt of the last step
// as the endpoint counted it, the last reply, and all later messages. The reasoning of the reply counts only if it is
// sent back. If the last reply has no usage, or if messages were replaced after it, estimate counts the whole prompt.
func estimate(s *State, r model.Request) int64 {
	last := s.LastStep()
	if last == nil || last.Reply.Usage.InputTokens == 0 || s.compactedFor() > last.Step {
		return countPrompt(r)
	}
	since := len(r.Messages)
	for since > 0 && r.Messages[since-1].Role != model.RoleAssistant {
		since--
	}
	u := last.Reply.Usage
	output := max(0, u.OutputTokens-u.ReasoningTokens)
	if since > 0 && r.Messages[since-1].ProviderData != nil {
		output = u.OutputTokens
	}
	return u.InputTokens + output + countMessages(r.Messages[since:])
}

// countPrompt counts the tokens of everything that is sent.
func countPrompt(r model.Request) int64 {
	n := countMessages(r.Messages) + counter.count(string(r.Output))
	for _, t := range r.Tools {
		n += counter.count(t.Name) + counter.count(t.Description) + counter.count(string(t.Parameters))
	}
	if r.Embed != nil {
		for _, text := range r.Embed.Texts {
			n += counter.count(text)
		}
	}
	return n
}

func countMessages(messages []model.Message) int64 {
	var n int64
	for _, m := range messages {
		n += counter.count(m.Content)
		for _, a := range m.Attachments {
			n += a.Tokens
		}
		if d := m.ProviderData; d != nil {
			n += counter.count(d.Text) + counter.count(string(d.Blocks))
		}
		for _, c := range m.ToolCalls {
			n += counter.count(c.Name) + counter.count(c.Arguments) + counter.count(string(c.ProviderData))
		}
	}
	return n
}

// room returns the number of tokens in a candidate's context window that a prompt may use. The rest, at most a
// quarter, is for the reply. It returns 0 if the context window is unknown.
func (c *Candidate) room() int64 {
	return c.ContextWindow - min(c.longestReply(), c.ContextWindow/4)
}

// longestReply returns the number of tokens that a reply may have, or 0 if that is unknown.
func (c *Candidate) longestReply() int64 {
	reply := c.MaxOutputTokens
	if own := c.Parameters.MaxOutputTokens; own != nil && (reply == 0 || int64(*own) < reply) {
		reply = int64(*own)
	}
	return max(0, reply)
}

// outputLimit returns the number of tokens that a request allows for its reply, or 0 if that is unknown.
func (c *Candidate) outputLimit() int64 {
	if limit := c.longestReply(); limit > 0 {
		return limit
	}
	return c.DefaultOutput
}

// reaches reports whether a prompt uses at least this percentage of the room. It returns false if the context
// window is unknown or percent is 0.
func (c *Candidate) reaches(tokens int64, percent int) bool {
	return c.ContextWindow > 0 && percent > 0 && tokens >= c.room()*int64(percent)/100
}
