package server

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// The bounds of a rules file.
const (
	maxDelayMilliseconds = 3_600_000
	maxRetryAfterSeconds = 86_400
	maxRepeat            = 1_000_000
)

// validate checks the rules that neither the decoder nor the template parser can check. It returns an error for the
// first invalid field.
func (r Rule) validate() error {
	errs := []error{r.When.validate(), r.Reply.validate(), r.Fault.validate()}
	if r.Times != nil && *r.Times < 1 {
		errs = append(errs, fmt.Errorf("times: must be 1 or more, not %d", *r.Times))
	}
	return cmp.Or(errs...)
}

func (w When) validate() error {
	if w.ToolMessages != nil && *w.ToolMessages < 0 {
		return fmt.Errorf("when.toolMessages: must be 0 or more, not %d", *w.ToolMessages)
	}
	return oneOf("when.responseFormat", w.ResponseFormat, ResponseText, ResponseJSONObject, ResponseJSONSchema)
}

func (r Reply) validate() error {
	errs := []error{
		oneOf("reply.finishReason", r.FinishReason, FinishStop, FinishLength, FinishToolCalls, FinishContentFilter),
		oneOf("reply.reasoningField", r.ReasoningField, ReasoningContentField, ReasoningPlainField),
		within("reply.chunkChars", r.ChunkChars, 0, 1<<20),
		within("reply.repeat", r.Repeat, 0, maxRepeat),
	}
	for i, call := range r.ToolCalls {
		if call.Name == "" {
			errs = append(errs, fmt.Errorf("reply.toolCalls[%d].name: must be given", i))
		}
	}
	u := r.Usage
	for _, f := range []struct {
		name  string
		value *int
	}{
		{"promptTokens", u.PromptTokens},
		{"completionTokens", u.CompletionTokens},
		{"cachedTokens", u.CachedTokens},
		{"reasoningTokens", u.ReasoningTokens},
	} {
		if f.value != nil && *f.value < 0 {
			errs = append(errs, fmt.Errorf("reply.usage.%s: must be 0 or more, not %d", f.name, *f.value))
		}
	}
	return cmp.Or(errs...)
}

func (f Fault) validate() error {
	errs := []error{
		within("fault.latencyMilliseconds", f.LatencyMilliseconds, 0, maxDelayMilliseconds),
		within("fault.chunkDelayMilliseconds", f.ChunkDelayMilliseconds, 0, maxDelayMilliseconds),
		oneOf("fault.hang", f.Hang, HangBeforeHeaders, HangAfterHeaders),
		oneOf("fault.rubbish", f.Rubbish, RubbishNotJSON, RubbishNotSSE, RubbishHTML),
		f.validateOneEnd(),
	}
	if f.Status != 0 {
		errs = append(errs, within("fault.status", f.Status, 400, 599))
	}
	if f.CutAfterChunks != nil && *f.CutAfterChunks < 0 {
		errs = append(errs, fmt.Errorf("fault.cutAfterChunks: must be 0 or more, not %d", *f.CutAfterChunks))
	}
	if f.RetryAfterSeconds != nil {
		errs = append(errs, within("fault.retryAfterSeconds", *f.RetryAfterSeconds, 0, maxRetryAfterSeconds))
	}
	if !f.isError() {
		errs = append(errs, f.validateNoErrorDetail())
	}
	return cmp.Or(errs...)
}

// validateOneEnd rejects contradictory faults, because a response ends in one way only.
func (f Fault) validateOneEnd() error {
	var given []string
	for _, end := range []struct {
		field string
		given bool
	}{
		{"status", f.isError()},
		{"hang", f.Hang != ""},
		{"cutAfterChunks", f.CutAfterChunks != nil},
		{"endWithoutFinish", f.EndWithoutFinish},
		{"rubbish", f.Rubbish != ""},
	} {
		if end.given {
			given = append(given, end.field)
		}
	}
	if len(given) > 1 {
		return fmt.Errorf("fault.%s: excludes fault.%s, keep one of them", given[1], given[0])
	}
	return nil
}

// validateNoErrorDetail rejects error details in a fault without an error, because they would be ignored silently.
func (f Fault) validateNoErrorDetail() error {
	switch {
	case f.Message != "":
		return errors.New("fault.message: needs fault.status")
	case f.Code != "":
		return errors.New("fault.code: needs fault.status")
	case f.RetryAfterSeconds != nil:
		return errors.New("fault.retryAfterSeconds: needs fault.status")
	default:
		return nil
	}
}

// hasReply reports whether the response is a reply, possibly an incomplete one.
func (f Fault) hasReply() bool { return !f.isError() && f.Hang == "" && f.Rubbish == "" }

// isError reports whether the response is an error with a body.
func (f Fault) isError() bool { return f.Status != 0 || f.EchoAuthorization }

// within returns an error unless the value is from lowest to highest, both included.
func within(field string, value, lowest, highest int) error {
	if value < lowest || value > highest {
		return fmt.Errorf("%s: must be from %d to %d, not %d", field, lowest, highest, value)
	}
	return nil
}

// oneOf returns an error unless the value is one of the listed values or empty, which means unset.
func oneOf[T ~string](field string, value T, allowed ...T) error {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%s: %q is unknown, must be one of %q", field, value, allowed)
}
