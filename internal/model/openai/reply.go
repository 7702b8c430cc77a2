package openai

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// incoming is the part of a reply that has arrived.
type incoming struct {
	text, reasoning, refusal strings.Builder

	calls calls
	// received is the number of bytes of text, reasoning and calls that arrived, and kept the number that is kept.
	// If tooLong is true, no more is kept.
	received, kept int64
	tooLong        bool
	finish         api.FinishReason
	usage          model.Usage
}

// add adds one event of the stream.
func (in *incoming) add(event chunk) {
	if event.Usage != nil {
		in.usage = usageOf(*event.Usage)
	}
	for _, c := range event.Choices {
		if c.Index != 0 {
			continue
		}
		in.text.WriteString(in.keep(c.Delta.Content))
		in.reasoning.WriteString(in.keep(c.Delta.reasoning()))
		in.refusal.WriteString(in.keep(cmp.Or(c.Delta.Refusal, c.Message.Refusal)))
		for _, piece := range c.Delta.ToolCalls {
			piece.Function.Arguments = in.keep(piece.Function.Arguments)
			in.calls.add(piece)
		}
		if c.FinishReason != "" && c.FinishReason != api.FinishReasonNull {
			in.finish = c.FinishReason
		}
	}
}

// keep returns the part of a piece that is kept. It is the whole piece until the reply is too long. Of the first
// piece beyond the bound, the part that fits is kept.
func (in *incoming) keep(piece string) string {
	in.received += int64(len(piece))
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

// spent returns the cost of an unusable answer: its usage, or the number of bytes that arrived.
func (in *incoming) spent() model.Reply {
	reply := model.Reply{Usage: in.usage}
	if in.usage == (model.Usage{}) {
		reply.Received = in.received
	}
	return reply
}

// cutOff reports whether an answer was cut off because it is too long: more bytes arrived than are kept, or than
// are read before its end.
func (in *incoming) cutOff(ctx context.Context, end error) bool {
	if _, isLong := errors.AsType[tooLong](end); isLong && in.finish == "" {
		return in.received > 0
	}
	return in.tooLong && ctx.Err() == nil
}

// finished decides by the end of a stream what to return. After a finish reason the answer is complete, even if the
// connection failed. A reply that is returned with an error contains only usage and Received.
func (x *exchange) finished(ctx context.Context, in *incoming, end error) (model.Reply, error) {
	spent := in.spent()
	switch in.finish {
	case "":
		if in.cutOff(ctx, end) {
			in.tooLong = true
			return in.reply(model.FinishLength), nil
		}
		if errors.Is(end, io.EOF) {
			return spent, malformed("the stream ended before the answer was finished%s", x.contentTypeHint())
		}
		return spent, end
	case api.FinishReasonLength:
		// The last call is cut off, and it is unknown which of the other calls the model meant to combine with it.
		return in.reply(model.FinishLength), nil
	case api.FinishReasonContentFilter:
		return spent, &model.Error{Kind: model.ContentFiltered, Message: "the content filter withheld the answer"}
	case api.FinishReasonStop, "eos", "eos_token", "stop_sequence", "end_turn":
		if strings.TrimSpace(in.refusal.String()) != "" {
			return in.reply(model.FinishRefusal), nil
		}
		if in.tooLong {
			return in.reply(model.FinishLength), nil
		}
		if len(in.calls.list) > 0 { // some servers send this reason for calls too
			return in.toolCallReply()
		}
		reply := in.reply(model.FinishStop)
		if strings.TrimSpace(reply.Text) == "" {
			return spent, malformed("the answer was empty")
		}
		return reply, nil
	case api.FinishReasonToolCalls, api.FinishReasonFunctionCall:
		return in.toolCallReply()
	case api.FinishReasonNull:
	}
	unknown := malformed("the answer ended for an unknown reason")
	unknown.Said = x.provider.clean(string(in.finish))
	return spent, unknown
}

// toolCallReply returns a reply with tool calls, even if no tools were offered: repeating the request would give
// the same reply.
func (in *incoming) toolCallReply() (model.Reply, error) {
	spent := in.spent()
	switch {
	case in.tooLong:
		return in.reply(model.FinishLength), nil
	case len(in.calls.list) == 0:
		return spent, malformed("the model announced a tool call but made none")
	}
	calls, err := in.calls.finish()
	if err != nil {
		return spent, err
	}
	reply := in.reply(model.FinishToolCalls)
	reply.ToolCalls = calls
	return reply, nil
}

// reply returns the text that arrived, without calls. The text of a refusal arrives separately and follows any
// other text.
func (in *incoming) reply(finish model.FinishReason) model.Reply {
	thought, text := model.SplitThought(in.text.String(), finish == model.FinishLength)
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

func malformed(format string, args ...any) *model.Error {
	return &model.Error{Kind: model.Malformed, Message: fmt.Sprintf(format, args...)}
}

func usageOf(u api.Usage) model.Usage {
	out := model.Usage{InputTokens: model.Tokens(int64(u.PromptTokens)), OutputTokens: model.Tokens(int64(u.CompletionTokens))}
	if d := u.CompletionTokensDetails; d != nil {
		out.ReasoningTokens = model.Tokens(int64(d.ReasoningTokens))
	}
	if d := u.PromptTokensDetails; d != nil {
		out.CacheReadTokens = model.Tokens(int64(d.CachedTokens))
	}
	return out
}
