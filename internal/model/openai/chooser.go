package openai

import (
	"github.com/capstan-dev/capstan/internal/model/endpoint"
)

// chooser tells the choices that are parts of the answer from the choices of other answers. A request asks for one
// answer, so each choice is a part of it, whatever index the choice has. Some servers put another number there: LiteLLM
// the number of Bedrock's content block, which may be a call, and Foundry Local and TGI the number of the chunk:
// github.com/BerriAI/litellm/pull/19506, github.com/microsoft/foundry-local/issues/263 and
// github.com/huggingface/text-generation-inference/pull/1648.
//
// But an endpoint may send several answers, for example because extraFields sets n. Then the choice 0 alone is the
// answer. The endpoint sends several answers if
//   - one event has choices with different indexes,
//   - the choice 0 continues after a part of another choice has arrived, or
//   - both the choice 0 and another choice end with a finish reason.
type chooser struct {
	// hasOthers is true once a part of another choice than 0 has joined the answer. several is true once it is known
	// that the endpoint sends several answers.
	hasOthers, several bool
	// reason is the finish reason of the choice 0, or empty. otherEnded is true if another choice has a finish reason.
	reason     string
	otherEnded bool
}

// joins reports whether a choice with this part is a part of the answer. alone is true if its event has no other
// choices.
func (s *chooser) joins(c *choice, part *delta, alone bool, answer *endpoint.Answer) bool {
	switch isFirst := c.Index.Value == 0; {
	case s.several:
		return isFirst
	case isFirst:
		if s.hasOthers && part.hasContent() {
			s.dropOthers(answer)
		}
	case !alone:
		s.dropOthers(answer)
		return false
	case !s.hasOthers:
		s.hasOthers = true
		answer.Checkpoint()
	}
	return true
}

// end notes that a choice that is a part of the answer has ended.
func (s *chooser) end(c *choice, answer *endpoint.Answer) {
	if c.Index.Value == 0 {
		s.reason = c.finish()
	} else {
		s.otherEnded = true
	}
	if s.reason != "" && s.otherEnded && !s.several {
		s.dropOthers(answer)
	}
}

// dropOthers drops the parts of the other choices from the answer.
func (s *chooser) dropOthers(answer *endpoint.Answer) {
	if s.several = true; s.hasOthers {
		answer.Rollback()
		answer.SetFinish(s.reason)
	}
}
