package server

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"strings"
)

const (
	charsPerToken     = 4
	defaultChunkChars = 16
	maxAnswerBytes    = 64 << 20
)

// answer is the reply of a rule to one request.
type answer struct {
	// text is nil for a reply of tool calls only.
	text      *string
	reasoning string
	calls     []wireToolCall
	finish    FinishReason
	usage     wireUsage
}

// answer computes the reply to a request.
func (r *compiledRule) answer(v View, req *completionRequest) (answer, error) {
	a := answer{finish: FinishStop}
	if r.text != nil {
		text, err := render(r.text, v)
		if err != nil {
			return answer{}, fmt.Errorf("failed to render reply.text: %w", err)
		}
		repeat := cmp.Or(r.Reply.Repeat, 1)
		if len(text) > maxAnswerBytes/repeat {
			return answer{}, errors.New("the reply is larger than 64 MiB, lower reply.repeat")
		}
		text = strings.Repeat(text, repeat)
		if limit := req.maxTokens(); limit > 0 && estimateTokens(text) > limit && !r.Reply.IgnoreMaxTokens {
			text, a.finish = string([]rune(text)[:limit*charsPerToken]), FinishLength
		}
		a.text = &text
	}
	var err error
	if a.reasoning, err = render(r.reasoning, v); err != nil {
		return answer{}, fmt.Errorf("failed to render reply.reasoning: %w", err)
	}
	for i, call := range r.Reply.ToolCalls {
		arguments, err := render(r.arguments[i], v)
		if err != nil {
			return answer{}, fmt.Errorf("failed to render reply.toolCalls[%d].arguments: %w", i, err)
		}
		a.calls = append(a.calls, wireToolCall{
			ID:       cmp.Or(call.ID, fmt.Sprintf("call_%d_%d", v.Request, i)),
			Type:     "function",
			Function: wireFunction{Name: call.Name, Arguments: arguments},
		})
		a.finish = FinishToolCalls
	}
	a.finish = cmp.Or(r.Reply.FinishReason, a.finish)
	a.usage = r.usage(req, a)
	return a, nil
}

// usage estimates the tokens of a request and its answer, and applies the rule's overrides.
func (r *compiledRule) usage(req *completionRequest, a answer) wireUsage {
	var reply []string
	if a.text != nil {
		reply = append(reply, *a.text)
	}
	for _, call := range a.calls {
		reply = append(reply, call.Function.Name, call.Function.Arguments)
	}
	override := r.Reply.Usage
	reasoning := valueOr(override.ReasoningTokens, estimateTokens(a.reasoning))
	var u wireUsage
	u.PromptTokens = valueOr(override.PromptTokens, req.promptTokens())
	u.CompletionTokens = valueOr(override.CompletionTokens, estimateTokens(reply...)+reasoning)
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	u.PromptDetails.CachedTokens = valueOr(override.CachedTokens, 0)
	u.CompletionDetails.ReasoningTokens = reasoning
	return u
}

// promptTokens estimates the tokens of the messages of a request.
func (r *completionRequest) promptTokens() int {
	var prompt []string
	for _, m := range r.Messages {
		prompt = append(prompt, m.text())
		for _, call := range m.ToolCalls {
			prompt = append(prompt, call.Function.Name, valueOr(call.Function.Arguments, ""))
		}
	}
	return estimateTokens(prompt...)
}

func valueOr[T any](value *T, otherwise T) T {
	if value != nil {
		return *value
	}
	return otherwise
}

// chunks cuts text into pieces of chars characters. It never splits a character.
func chunks(text string, chars int) iter.Seq[string] {
	return func(yield func(string) bool) {
		start, count := 0, 0
		for i := range text {
			if count == chars {
				if !yield(text[start:i]) {
					return
				}
				start, count = i, 0
			}
			count++
		}
		if start < len(text) {
			yield(text[start:])
		}
	}
}
