package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

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
	// finish is the finish reason, or empty. complete is true if the endpoint has marked the end of the answer.
	// usageAlone is true if an event with only the usage came after the last part: only the end follows such an event.
	// openEnd is true if the endpoint may end an answer without any mark.
	finish                        string
	complete, usageAlone, openEnd bool
	usage                         model.Usage
	// facts receives facts about the answer. It may be nil.
	facts *model.Facts
}

// maxModelName is the maximum length of the name of a model, in bytes.
const maxModelName = 256

// SetModel notes the name of the model that answers. The first name counts; a name that is too long is ignored.
func (in *Answer) SetModel(name string) {
	if in.facts != nil && in.facts.Model == "" && len(name) <= maxModelName {
		in.facts.Model = strings.ToValidUTF8(name, "")
	}
}

// AddText adds a piece of the answer's text.
func (in *Answer) AddText(piece string) { in.text.WriteString(in.keep(piece)) }

// ResetText drops the text so far.
func (in *Answer) ResetText() { in.text.Reset() }

// AddReasoning adds a piece of the reasoning.
func (in *Answer) AddReasoning(piece string) { in.reasoning.WriteString(in.keep(piece)) }

// AddRefusal adds a piece of a refusal.
func (in *Answer) AddRefusal(piece string) { in.refusal.WriteString(in.keep(piece)) }

// AddCall adds a piece of a call.
func (in *Answer) AddCall(piece CallPiece) {
	piece.Arguments, piece.Data = in.keep(piece.Arguments), in.KeepData(piece.Data)
	in.calls.add(piece)
}

// HasCalls reports whether a call has begun.
func (in *Answer) HasCalls() bool { return len(in.calls.list) > 0 }

// begun reports whether a part of the answer has arrived. The name of a call or an empty thought is not a part: the
// next event may take as long as a first event.
func (in *Answer) begun() bool { return in.received > 0 || in.finish != "" }

// SetFinish notes the finish reason of a part of the answer, which may have no text. If reason is empty, the answer
// continues.
func (in *Answer) SetFinish(reason string) {
	in.usageAlone = in.usageAlone && reason != ""
	in.finish = cmp.Or(reason, in.finish)
}

// SetComplete notes that the endpoint has marked the end of the answer. Nothing is read after it.
func (in *Answer) SetComplete() { in.complete = true }

// AllowOpenEnd notes that the endpoint may end an answer without a finish reason and without any other mark.
func (in *Answer) AllowOpenEnd() { in.openEnd = true }

// RaiseSeparateUsage is RaiseUsage for an event that has no part of the answer, not even an empty one.
func (in *Answer) RaiseSeparateUsage(now model.Usage) {
	in.RaiseUsage(now)
	in.usageAlone = in.usageAlone || now.OutputTokens > 0
}

// RaiseUsage raises the usage to the usage in an event. Some endpoints report the usage several times while it grows,
// or in two parts.
func (in *Answer) RaiseUsage(now model.Usage) {
	u := &in.usage
	u.InputTokens, u.OutputTokens = max(u.InputTokens, now.InputTokens), max(u.OutputTokens, now.OutputTokens)
	u.ReasoningTokens = max(u.ReasoningTokens, now.ReasoningTokens)
	u.CacheReadTokens = max(u.CacheReadTokens, now.CacheReadTokens)
	u.CacheCreationTokens = max(u.CacheCreationTokens, now.CacheCreationTokens)
}

// keep counts a piece, and returns the part of the piece that is kept. It is the whole piece until the reply is too
// long. Of the first piece beyond the bound, the part that fits is kept.
func (in *Answer) keep(piece string) string {
	in.received += int64(len(piece))
	return in.KeepData(piece)
}

// Reasoning returns the reasoning so far.
func (in *Answer) Reasoning() string { return in.reasoning.String() }

// KeepData returns the part of a piece of the provider's data that is kept, and counts it towards MaxReplyBytes. Once a
// piece is cut off, nothing more is kept, and the reply has no provider data.
func (in *Answer) KeepData(piece string) string {
	if in.tooLong {
		return ""
	}
	if room := int(MaxReplyBytes - in.kept); len(piece) > room {
		in.tooLong = true
		for room > 0 && !utf8.RuneStart(piece[room]) {
			room--
		}
		piece = piece[:room]
	}
	in.kept += int64(len(piece))
	return piece
}

// spent returns the cost of an unusable answer: its usage and, unless the usage is final, the number of bytes that
// arrived. Some endpoints already report a usage at the beginning, which grows.
func (in *Answer) spent() model.Reply {
	reply := model.Reply{Usage: in.usage}
	if in.finish == "" || in.usage == (model.Usage{}) {
		reply.Received = in.received
	}
	return reply
}

// cutOff reports whether an answer was cut off because it is too long: more bytes arrived than are kept, or than
// are read before its end.
func (in *Answer) cutOff(ctx context.Context, end error) bool {
	if _, isLong := errors.AsType[tooLong](end); isLong && in.finish == "" {
		return in.received > 0
	}
	return in.tooLong && ctx.Err() == nil
}

// endsWhole reports whether an answer without any mark of its end is whole. It is whole if an event with only the usage
// came at the end. Without this event, a gateway that lost its own connection may have ended the response. So the
// answer is whole only if the endpoint may omit all marks and the response ended properly, and each call needs its
// arguments. A thought that is not closed is no answer.
func (in *Answer) endsWhole(properly bool) bool {
	switch isEnd := in.usageAlone || in.openEnd && properly; {
	case !isEnd:
		return false
	case in.HasCalls():
		return in.calls.areWhole(in.usageAlone)
	}
	_, text := model.SplitReasoning(in.text.String(), true)
	return strings.TrimSpace(text) != "" || strings.TrimSpace(in.refusal.String()) != ""
}

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

// endings are the finish reasons of servers, in lower case.
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
}

// result returns the reply or the error after a stream has ended with the error end. After a finish reason, or the mark
// of the end, the answer is complete, even if the connection failed. A reply that is returned with an error contains
// only usage and Received.
func (x *exchange) result(ctx context.Context, in *Answer, end error) (model.Reply, error) {
	how := endings[strings.ToLower(in.finish)]
	if in.finish == "" {
		if !in.complete || in.received == 0 && len(in.calls.list) == 0 {
			return x.unfinishedResult(ctx, in, end)
		}
		how = endedNormally
	}
	spent := in.spent()
	switch how {
	case endedByLimit:
		// The last call is cut off, and it is unknown which of the other calls the model meant to combine with it.
		return in.reply(model.FinishLength), nil
	case endedByFilter:
		return spent, &model.Error{Kind: model.ContentFiltered, Message: "the content filter withheld the answer"}
	case endedByFailure, endedByTimeout:
		failed := x.provider.statusError(0, "", "")
		failed.MayBeBilled = in.received > 0 || how == endedByTimeout
		return spent, failed
	case endedMalformed:
		unreadable := Malformed(unreadableCall)
		unreadable.RemoteMessage = x.provider.clean(in.finish)
		unreadable.MayBeBilled = in.received > 0 || in.usage.ReasoningTokens > 0
		return spent, unreadable
	case endedWithCalls:
		if in.HasCalls() {
			return x.toolCallReply(in)
		}
	case endedNormally, endedUnknown:
	}
	switch {
	case strings.TrimSpace(in.refusal.String()) != "":
		return in.reply(model.FinishRefusal), nil
	case in.tooLong:
		return in.reply(model.FinishLength), nil
	case len(in.calls.list) > 0: // some servers send another reason for calls
		return x.toolCallReply(in)
	}
	reply := in.reply(model.FinishStop)
	if strings.TrimSpace(reply.Text) != "" { // some servers announce calls and make none
		return reply, nil
	}
	hasReasoned := strings.TrimSpace(reply.Reasoning) != "" || in.usage.ReasoningTokens > 0
	var empty *model.Error
	switch {
	case how == endedWithCalls:
		empty = Malformed("the model announced a tool call but made none")
	case how == endedUnknown:
		empty = Malformed("the answer ended for an unknown reason")
		empty.RemoteMessage = x.provider.clean(in.finish)
	case hasReasoned:
		empty = Malformed("the model reasoned, but the answer was empty")
	default:
		empty = Malformed("the answer was empty")
	}
	empty.MayBeBilled = hasReasoned // reasoning is most of the work, so a repetition is as expensive
	return spent, empty
}

// unfinishedResult is result for an answer that is not complete.
func (x *exchange) unfinishedResult(ctx context.Context, in *Answer, end error) (model.Reply, error) {
	switch {
	case in.cutOff(ctx, end):
		in.tooLong = true
		return in.reply(model.FinishLength), nil
	case errors.Is(end, io.EOF):
		broken := Malformed("the stream ended before the answer was finished%s", x.contentTypeHint())
		sinceSent, _ := x.payload.sinceSent()
		broken.MayBeBilled = sinceSent > unbilled || in.received > 0
		return in.spent(), broken
	}
	if failed, ok := errors.AsType[*model.Error](end); ok && in.received > 0 {
		failed.MayBeBilled = true // the model has done a part of its work, so a repetition is as expensive
	}
	return in.spent(), end
}

// toolCallReply returns a reply with tool calls, even if no tools were offered: repeating the request would give
// the same reply.
func (x *exchange) toolCallReply(in *Answer) (model.Reply, error) {
	if in.tooLong {
		return in.reply(model.FinishLength), nil
	}
	calls, err := in.calls.finish()
	if err != nil {
		return in.spent(), err
	}
	reply := in.reply(model.FinishToolCalls)
	reply.ToolCalls = calls
	if d, ok := x.decoder.(DataDecoder); ok {
		reply.ProviderData = d.ProviderData(in)
	}
	return reply, nil
}

// reply returns the text that arrived, without calls. The text of a refusal arrives separately and follows any
// other text.
func (in *Answer) reply(finish model.FinishReason) model.Reply {
	thought, text := model.SplitReasoning(in.text.String(), finish == model.FinishLength)
	if in.refusal.Len() > 0 {
		text = joinTexts(text, in.refusal.String())
	}
	reply := model.Reply{Text: text, Reasoning: joinTexts(in.reasoning.String(), thought), FinishReason: finish, Usage: in.usage}
	if in.tooLong && finish == model.FinishLength {
		reply.TooLong, reply.Received = true, in.spent().Received
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
