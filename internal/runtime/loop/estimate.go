package loop

import "github.com/capstan-dev/capstan/internal/runtime/model"

// estimate is about how many tokens the prompt of a step has: those of the last one, as the endpoint has counted them, its reply
// without the reasoning, which is not sent back, and what was said since. All of it is counted where no endpoint has said
// anything, or where the messages have been replaced since.
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
	return u.InputTokens + max(0, u.OutputTokens-u.ReasoningTokens) + countMessages(r.Messages[since:])
}

// countPrompt counts all that is sent.
func countPrompt(r model.Request) int64 {
	n := countMessages(r.Messages) + counter.count(string(r.Output))
	for _, t := range r.Tools {
		n += counter.count(t.Name) + counter.count(t.Description) + counter.count(string(t.Parameters))
	}
	return n
}

func countMessages(messages []model.Message) int64 {
	var n int64
	for _, m := range messages {
		n += counter.count(m.Content)
		for _, c := range m.ToolCalls {
			n += counter.count(c.Name) + counter.count(c.Arguments)
		}
	}
	return n
}

// room is how many tokens of a candidate's context window a prompt may have: a reply takes the rest, up to a quarter. It is 0
// if nobody knows.
func (c *Candidate) room() int64 {
	reply := c.MaxOutputTokens
	if own := c.Parameters.MaxOutputTokens; own != nil && (reply == 0 || int64(*own) < reply) {
		reply = int64(*own)
	}
	return c.ContextWindow - min(max(0, reply), c.ContextWindow/4)
}

// reaches says whether a prompt takes so many percent of the room. Nothing does of an unknown one, or where there is no percentage.
func (c *Candidate) reaches(tokens int64, percent int) bool {
	return c.ContextWindow > 0 && percent > 0 && tokens >= c.room()*int64(percent)/100
}
