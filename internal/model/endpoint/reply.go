package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/cut"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Answer is the part of a reply that has arrived. It is for one goroutine only.
type Answer struct {
	text, reasoning, refusal strings.Builder

	calls calls
	// received is the number of bytes of text, reasoning and calls that arrived, and kept is the number of bytes that
	// are kept. If tooLong is true, no more is kept.
	received, kept int64
	tooLong        bool
	// hasDropped is true if a text that arrived is not a part of the reply.
	hasDropped bool
	// finish is the finish reason, or empty. complete is true if the endpoint has marked the end of the answer.
	// usageAlone is true if an event with only the usage came after the last part: only the end follows such an event.
	// openEnd is true if the endpoint may end an answer without any mark.
	finish                        string
	complete, usageAlone, openEnd bool
	usage                         model.Usage
	// facts receives facts about the answer. It may be nil.
	facts *model.Facts
	// earlier is the state that Checkpoint has noted, or nil.
	earlier *checkpoint
}

// checkpoint is the state of an answer at a time. It shares the memory of its texts with the answer.
type checkpoint struct {
	text, reasoning, refusal, finish string
	calls                            []call
	tooMany, hasEmpty                bool
}

// Checkpoint notes the state of the answer for Rollback.
func (a *Answer) Checkpoint() {
	a.earlier = &checkpoint{
		text: a.text.String(), reasoning: a.reasoning.String(), refusal: a.refusal.String(), finish: a.finish,
		tooMany: a.calls.tooMany, hasEmpty: a.calls.hasEmpty,
	}
	for _, c := range a.calls.list {
		a.earlier.calls = append(a.earlier.calls, *c)
	}
}

// Rollback drops all parts that have arrived since Checkpoint, which must have been called. They still count as
// received, because they may be billed.
func (a *Answer) Rollback() {
	to := a.earlier
	resetTo(&a.text, to.text)
	resetTo(&a.reasoning, to.reasoning)
	resetTo(&a.refusal, to.refusal)
	a.finish, a.usageAlone, a.hasDropped = to.finish, false, true
	a.calls.tooMany, a.calls.hasEmpty, a.calls.list = to.tooMany, to.hasEmpty, nil
	for i := range to.calls {
		c := &to.calls[i]
		resetTo(&c.arguments, c.arguments.String())
		a.calls.list = append(a.calls.list, c)
	}
	a.earlier = nil
}

// resetTo gives a builder the text as its content.
func resetTo(b *strings.Builder, text string) {
	*b = strings.Builder{} // it may be a copy of another builder, which must not be written to
	b.WriteString(text)
}

// maxModelName is the maximum length of the name of a model, in bytes.
const maxModelName = 256

// SetModel notes the name of the model that answers. The first name counts; a name that is too long is ignored.
func (a *Answer) SetModel(name string) {
	if a.facts != nil && a.facts.Model == "" && len(name) <= maxModelName {
		a.facts.Model = strings.ToValidUTF8(name, "")
	}
}

// AddText adds a piece of the answer's text.
func (a *Answer) AddText(piece string) { a.text.WriteString(a.keep(piece)) }

// ResetText drops the text so far.
func (a *Answer) ResetText() {
	a.hasDropped = a.hasDropped || a.text.Len() > 0
	a.text.Reset()
}

// AddReasoning adds a piece of the reasoning.
func (a *Answer) AddReasoning(piece string) { a.reasoning.WriteString(a.keep(piece)) }

// AddRefusal adds a piece of a refusal.
func (a *Answer) AddRefusal(piece string) { a.refusal.WriteString(a.keep(piece)) }

// AddCall adds a piece of a call.
func (a *Answer) AddCall(piece CallPiece) {
	piece.Arguments, piece.Data = a.keep(piece.Arguments), a.KeepData(piece.Data)
	a.calls.add(piece)
}

// HasCalls reports whether a call has begun.
func (a *Answer) HasCalls() bool { return len(a.calls.list) > 0 }

// hasBegun reports whether a part of the answer has arrived. The name of a call or an empty thought is not a part: the
// next event may take as long as a first event.
func (a *Answer) hasBegun() bool { return a.received > 0 || a.finish != "" }

// SetFinish notes the finish reason of a part of the answer, which may have no text. It reports whether the part ends
// the answer. If reason is empty, the answer continues. Some servers send null as a text instead:
// github.com/PowerShell/AIShell/issues/350.
func (a *Answer) SetFinish(reason string) bool {
	if strings.EqualFold(reason, "null") || strings.EqualFold(reason, "none") {
		reason = ""
	}
	a.usageAlone = a.usageAlone && reason != ""
	a.finish = cmp.Or(reason, a.finish)
	return reason != ""
}

// SetComplete notes that the endpoint has marked the end of the answer. Nothing is read after it.
func (a *Answer) SetComplete() { a.complete = true }

// AllowOpenEnd notes that the endpoint may end an answer without a finish reason and without any other mark.
func (a *Answer) AllowOpenEnd() { a.openEnd = true }

// RaiseSeparateUsage is RaiseUsage for an event that has no part of the answer, not even an empty one.
func (a *Answer) RaiseSeparateUsage(reported model.Usage) {
	a.RaiseUsage(reported)
	a.usageAlone = a.usageAlone || reported.OutputTokens > 0
}

// RaiseUsage raises the usage to the usage that an event reports. Some endpoints report the usage several times while
// it grows, or in two parts.
func (a *Answer) RaiseUsage(reported model.Usage) {
	u := &a.usage
	u.InputTokens, u.OutputTokens = max(u.InputTokens, reported.InputTokens), max(u.OutputTokens, reported.OutputTokens)
	u.ReasoningTokens = max(u.ReasoningTokens, reported.ReasoningTokens)
	u.CacheReadTokens = max(u.CacheReadTokens, reported.CacheReadTokens)
	u.CacheCreationTokens = max(u.CacheCreationTokens, reported.CacheCreationTokens)
}

// keep counts a piece, and returns the part of the piece that is kept. It is the whole piece until the reply is too
// long. Of the first piece beyond the bound, the part that fits is kept. A raw JSON value may contain bytes that are
// not UTF-8. The journal cannot keep them in a text, so keep replaces them before anything is computed from the reply.
func (a *Answer) keep(piece string) string {
	a.received += int64(len(piece))
	return a.KeepData(strings.ToValidUTF8(piece, "\uFFFD"))
}

// Reasoning returns the reasoning so far.
func (a *Answer) Reasoning() string { return a.reasoning.String() }

// KeepData returns the part of a piece of the provider's data that is kept, and counts it towards MaxReplyBytes. Once a
// piece is cut off, nothing more is kept, and the reply has no provider data.
func (a *Answer) KeepData(piece string) string {
	if a.tooLong {
		return ""
	}
	if room := int(MaxReplyBytes - a.kept); len(piece) > room {
		a.tooLong = true
		piece = cut.Bytes(piece, room)
	}
	a.kept += int64(len(piece))
	return piece
}

// spent returns the cost of an unusable answer: its usage and, unless the usage of the output is final, the number of
// bytes that arrived. Some endpoints already report a usage at the beginning, which grows.
func (a *Answer) spent() model.Reply {
	reply := model.Reply{Usage: a.usage}
	if a.finish == "" || a.usage.OutputTokens == 0 {
		reply.Received = a.received
	}
	return reply
}

// cutOff reports whether an answer was cut off because it is too long: more bytes arrived than are kept, or than
// are read before its end.
func (a *Answer) cutOff(ctx context.Context, end error) bool {
	if _, isLong := errors.AsType[tooLong](end); isLong && a.finish == "" {
		return a.received > 0
	}
	return a.tooLong && ctx.Err() == nil
}

// endsWhole reports whether an answer without any mark of its end is whole. It is whole if an event with only the usage
// came at the end. Without this event, a gateway that lost its own connection may have ended the response. So the
// answer is whole only if the endpoint may omit all marks and the response has ended properly, and each call needs its
// arguments. A thought that is not closed is no answer.
func (a *Answer) endsWhole(hasEndedProperly bool) bool {
	switch isEnd := a.usageAlone || a.openEnd && hasEndedProperly; {
	case !isEnd:
		return false
	case a.HasCalls():
		return a.calls.areWhole(a.usageAlone)
	}
	_, text := model.SplitReasoning(a.text.String(), true)
	return strings.TrimSpace(text) != "" || strings.TrimSpace(a.refusal.String()) != ""
}

// reaches reports whether the endpoint has reported that the output has as many tokens as a request allows, or more. 0
// means that the request has no limit.
func (a *Answer) reaches(limit int) bool { return limit > 0 && a.usage.OutputTokens >= int64(limit) }

// reportsOutput reports whether the endpoint has reported tokens of the output, which it bills.
func (a *Answer) reportsOutput() bool { return a.usage.OutputTokens > 0 || a.usage.ReasoningTokens > 0 }

// ending is the meaning of a finish reason.
type ending int

// The meanings of finish reasons. The zero value is the meaning of unknown reasons.
const (
	endedUnknown ending = iota
	endedNormally
	endedWithCalls
	endedByLimit
	endedByFilter
	endedByFailure
	endedByTimeout
	endedMalformed
)

// endings are the finish reasons of servers, in lower case. meaningOf reads them.
var endings = map[string]ending{
	"stop": endedNormally, "eos": endedNormally, "eos_token": endedNormally,
	"end_turn": endedNormally, "stop_sequence": endedNormally, // Anthropic and Bedrock
	"complete": endedNormally, // Cohere

	"tool_calls": endedWithCalls, "function_call": endedWithCalls, "tool_use": endedWithCalls, "tool_call": endedWithCalls,

	"length": endedByLimit, "max_tokens": endedByLimit, "max_output_tokens": endedByLimit,
	"model_length":                  endedByLimit, // Mistral
	"model_context_window_exceeded": endedByLimit, // Anthropic
	"pause_turn":                    endedByLimit, // Anthropic: the model would continue in another reply

	"content_filter": endedByFilter,
	// Gemini, whose compatible endpoint sends its own names: github.com/HKUDS/Vibe-Trading/pull/308.
	"safety": endedByFilter, "recitation": endedByFilter, "prohibited_content": endedByFilter, "blocklist": endedByFilter,
	"spii": endedByFilter, "image_safety": endedByFilter, "image_prohibited_content": endedByFilter, "image_recitation": endedByFilter,
	"model_armor":      endedByFilter,
	"refusal":          endedByFilter,                                        // Anthropic
	"sensitive":        endedByFilter,                                        // Z.ai
	"content_filtered": endedByFilter, "guardrail_intervened": endedByFilter, // Bedrock

	"error":                        endedByFailure, // Mistral and OpenRouter
	"network_error":                endedByFailure, // Z.ai and OpenRouter
	"timeout":                      endedByTimeout, // Cohere
	"insufficient_system_resource": endedByFailure, // DeepSeek
	"abort":                        endedByFailure, // vLLM and SGLang

	// Gemini, which may send text before, or a call that it could not read.
	"malformed_function_call": endedMalformed, "unexpected_tool_call": endedMalformed, "malformed_response": endedMalformed,
	"function_call_filter": endedMalformed,
}

// meaningOf returns the meaning of a finish reason. Gemini's compatible endpoint may send the name of a filter and then
// its own name, as in "content_filter: RECITATION" and "function_call_filter: MALFORMED_FUNCTION_CALL":
// github.com/NousResearch/hermes-agent/pull/83882. The filter decides, so that new names of Gemini are understood.
func meaningOf(reason string) ending {
	filter, _, _ := strings.Cut(reason, ":")
	return endings[strings.ToLower(filter)]
}

// result returns the reply, or the error, of a stream that has ended. end is the error that ended the stream, or io.EOF
// at its proper end. After a finish reason, or the mark of the end, the answer is complete, even if the connection
// failed. A reply that is returned with an error contains only usage and Received.
func (x *exchange) result(ctx context.Context, a *Answer, end error) (model.Reply, error) {
	meaning := meaningOf(a.finish)
	if a.finish == "" {
		if !a.complete || a.received == 0 && len(a.calls.list) == 0 {
			return x.unfinishedResult(ctx, a, end)
		}
		meaning = endedNormally
	}
	spent := a.spent()
	switch meaning {
	case endedByLimit:
		// The last call is cut off, and it is unknown which of the other calls the model meant to combine with it.
		return a.reply(model.FinishLength), nil
	case endedByFilter:
		return spent, &model.Error{Kind: model.ContentFiltered, Message: "the content filter withheld the answer"}
	case endedByFailure, endedByTimeout:
		failed := x.provider.statusError(0, "", "")
		failed.MayBeBilled = a.received > 0 || meaning == endedByTimeout
		return spent, failed
	case endedMalformed:
		unreadable := Malformed(unreadableCall)
		unreadable.RemoteMessage = x.provider.clean(a.finish)
		unreadable.MayBeBilled = a.received > 0 || a.reportsOutput()
		return spent, unreadable
	case endedWithCalls:
		if a.HasCalls() {
			return x.toolCallReply(a)
		}
	case endedNormally, endedUnknown:
	}
	switch {
	case strings.TrimSpace(a.refusal.String()) != "":
		return a.reply(model.FinishRefusal), nil
	case a.tooLong:
		return a.reply(model.FinishLength), nil
	case len(a.calls.list) > 0: // some servers send another reason for calls
		return x.toolCallReply(a)
	}
	reply := a.reply(model.FinishStop)
	if len(a.calls.tools) > 0 && model.EndsWithCall(reply.Text) {
		unreadable := Malformed(unreadableCall)
		unreadable.MayBeBilled = true
		return spent, unreadable
	}
	// Some servers announce calls and make none. But if an empty call came, too, the text is not the answer: the model
	// meant to continue after the call.
	lacksCall := meaning == endedWithCalls && a.calls.hasEmpty
	if strings.TrimSpace(reply.Text) != "" && !lacksCall {
		return reply, nil
	}
	hasReasoned := strings.TrimSpace(reply.Reasoning) != "" || a.usage.ReasoningTokens > 0
	var empty *model.Error
	switch {
	case meaning == endedWithCalls:
		empty = Malformed("the model announced a tool call but made none")
	case meaning == endedUnknown:
		empty = Malformed("the answer ended for an unknown reason")
		empty.RemoteMessage = x.provider.clean(a.finish)
	case hasReasoned:
		empty = Malformed("the model reasoned, but the answer was empty")
	default:
		empty = Malformed("the answer was empty")
	}
	empty.Empty = strings.TrimSpace(reply.Text) == ""
	empty.MayBeBilled = hasReasoned || lacksCall || a.reportsOutput() // the model has done its work, so a repetition is as expensive
	return spent, empty
}

// unfinishedResult is result for an answer that is not complete.
func (x *exchange) unfinishedResult(ctx context.Context, a *Answer, end error) (model.Reply, error) {
	hasWorked := a.received > 0 || x.payload.hasWaited()
	switch {
	case a.cutOff(ctx, end):
		a.tooLong = true
		return a.reply(model.FinishLength), nil
	case errors.Is(end, io.EOF):
		broken := Malformed("the stream ended before the answer was finished%s", x.contentTypeHint())
		broken.MayBeBilled = hasWorked
		return a.spent(), broken
	}
	failed, ok := errors.AsType[*model.Error](end)
	if ok && (a.received > 0 || failed.Kind == model.Malformed && hasWorked) {
		failed.MayBeBilled = true // the model has done a part of its work, so a repetition is as expensive
	}
	return a.spent(), end
}

// toolCallReply returns a reply with tool calls, even if no tools were offered: repeating the request would give
// the same reply. vLLM reports the finish reason tool_calls even if the output limit has cut off the last call:
// github.com/vllm-project/vllm/issues/53269.
func (x *exchange) toolCallReply(a *Answer) (model.Reply, error) {
	if a.tooLong || a.calls.endOpen() && a.reaches(x.outputLimit) {
		return a.reply(model.FinishLength), nil
	}
	calls, err := a.calls.finish()
	if err != nil {
		return a.spent(), err
	}
	reply := a.reply(model.FinishToolCalls)
	reply.ToolCalls = calls
	if d, ok := x.decoder.(DataDecoder); ok {
		reply.ProviderData = d.ProviderData(a)
	}
	return reply, nil
}

// reply returns the text that arrived, without calls. The text of a refusal arrives separately and follows any other
// text. If a part of the output is not in the reply and its usage is missing, the usage is estimated from the bytes
// that arrived.
func (a *Answer) reply(finish model.FinishReason) model.Reply {
	split := func(text string) (string, string) { return model.SplitReasoning(text, false) }
	if finish == model.FinishLength || finish == model.FinishToolCalls { // calls may follow the reasoning
		split = model.SplitUnanswered
	}
	thought, text := split(a.text.String())
	if a.refusal.Len() > 0 {
		text = joinTexts(text, a.refusal.String())
	}
	reply := model.Reply{Text: text, Reasoning: joinTexts(a.reasoning.String(), thought), FinishReason: finish, Usage: a.usage}
	hasDropped := a.hasDropped || finish != model.FinishToolCalls && a.HasCalls()
	switch {
	case a.tooLong && finish == model.FinishLength:
		reply.TooLong, reply.Received = true, a.spent().Received
	case hasDropped && a.usage.OutputTokens == 0:
		reply.Received = a.received
	}
	return reply
}

// joinTexts puts two texts below each other. A blank text is left out.
func joinTexts(a, b string) string {
	switch {
	case strings.TrimSpace(b) == "":
		return a
	case strings.TrimSpace(a) == "":
		return b
	}
	return a + "\n\n" + b
}

// Malformed returns the failure of an answer that does not follow its protocol.
func Malformed(format string, args ...any) *model.Error {
	return &model.Error{Kind: model.Malformed, Message: fmt.Sprintf(format, args...)}
}
