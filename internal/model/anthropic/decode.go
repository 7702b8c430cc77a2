package anthropic

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/lenient"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// dataFormat is the format of model.ProviderData with the blocks of a reply in their order, as a list of sentBlock.
const dataFormat = "anthropic/blocks"

// maxThoughts bounds the thoughts of one reply, and maxBlocks bounds all its blocks. If a reply has more, no thought is
// sent back.
const (
	maxThoughts = 256
	maxBlocks   = 1024
)

// sentBlock is a block of a reply that is sent back. Exactly one member is set.
type sentBlock struct {
	// Thought is a block of thinking. It is sent back unchanged, because it is signed.
	Thought json.RawMessage `json:"thought,omitempty"`
	// Text is the number of bytes of a block of text. The reply has the texts of all blocks as one text.
	Text int `json:"text,omitempty"`
	// Call is true for the next call of the reply.
	Call bool `json:"call,omitempty"`
}

// event is an event of a stream, or a whole answer. It has only the members that Capstan needs.
type event struct {
	Type  lenient.Maybe[string]         `json:"type"`
	Index lenient.Maybe[lenient.Number] `json:"index"`
	Block lenient.Maybe[content]        `json:"content_block"`
	Delta lenient.Maybe[delta]          `json:"delta"`
	// Problem has the message of a message_start, too.
	endpoint.Problem
	answer
}

// answer has the members of a whole answer, and of the message at the start of a stream.
type answer struct {
	Content    contents              `json:"content"`
	StopReason lenient.Maybe[string] `json:"stop_reason"`
	Usage      lenient.Maybe[usage]  `json:"usage"`
	Model      lenient.Maybe[string] `json:"model"`
}

// contents are the blocks of a whole answer. A text stands for one block, as in requests.
type contents []lenient.Maybe[content]

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (c *contents) UnmarshalJSON(data []byte) error {
	var text lenient.Maybe[string]
	var list lenient.Maybe[lenient.List[lenient.Maybe[content]]]
	_ = json.Unmarshal(data, &text) // which never fails
	_ = json.Unmarshal(data, &list) // likewise
	*c = contents(list.Value)
	if text.Given {
		block := content{Type: lenient.Maybe[string]{Value: "text", Given: true}, Text: text}
		*c = contents{{Value: block, Given: true}}
	}
	return nil
}

// content is a block of an answer. Each type has its own members.
type content struct {
	Type      lenient.Maybe[string] `json:"type"`
	Text      lenient.Maybe[string] `json:"text"`
	Thinking  lenient.Maybe[string] `json:"thinking"`
	Signature lenient.Maybe[string] `json:"signature"`
	Data      lenient.Maybe[string] `json:"data"`
	ID        lenient.Maybe[string] `json:"id"`
	Name      lenient.Maybe[string] `json:"name"`
	Input     json.RawMessage       `json:"input"`
}

// delta is a part of a block, or of the message.
type delta struct {
	Text        lenient.Maybe[string] `json:"text"`
	Thinking    lenient.Maybe[string] `json:"thinking"`
	Signature   lenient.Maybe[string] `json:"signature"`
	PartialJSON lenient.Maybe[string] `json:"partial_json"`
	StopReason  lenient.Maybe[string] `json:"stop_reason"`
}

// usage counts tokens. Input does not include the tokens that are read from the cache or written to it.
type usage struct {
	Input      lenient.Maybe[lenient.Number] `json:"input_tokens"`
	Output     lenient.Maybe[lenient.Number] `json:"output_tokens"`
	CacheWrite lenient.Maybe[lenient.Number] `json:"cache_creation_input_tokens"`
	CacheRead  lenient.Maybe[lenient.Number] `json:"cache_read_input_tokens"`
	Details    lenient.Maybe[struct {
		Thinking lenient.Maybe[lenient.Number] `json:"thinking_tokens"`
	}] `json:"output_tokens_details"`
}

// tokens returns the usage in the engine's terms.
func (u *usage) tokens() model.Usage {
	return model.Usage{
		InputTokens:  int64(u.Input.Value + u.CacheWrite.Value + u.CacheRead.Value),
		OutputTokens: int64(u.Output.Value), ReasoningTokens: int64(u.Details.Value.Thinking.Value),
		CacheReadTokens: int64(u.CacheRead.Value), CacheCreationTokens: int64(u.CacheWrite.Value),
	}
}

// decoder reads one answer.
type decoder struct {
	// answerTool is true if the model answers by a call of the answer tool.
	answerTool bool
	// lasting is true if later Turns need the thoughts, too. Servers with models of other makers, such as DeepSeek,
	// refuse any call without its thoughts. Claude needs the thoughts of the current Turn only.
	lasting bool
	// unsigned is true if thoughts without a signature are sent back, too.
	unsigned bool
	// answered is true once a call of the answer tool has begun, and answer is the index of its block.
	answered bool
	answer   lenient.Number
	// open is the index of the call that has begun and has no arguments yet, or nil.
	open *lenient.Number
	// ignored is the index of the newest block if its type is not known, such as a call of a tool that the endpoint
	// itself makes, or nil.
	ignored *lenient.Number
	// blocks are the blocks so far, in their order. Beyond maxBlocks, no more are noted. thoughts are the thoughts so
	// far.
	blocks   []receivedBlock
	thoughts []*thinkingBlock
}

// receivedBlock is a block of the reply.
type receivedBlock struct {
	kind blockKind
	// bytes is the number of bytes of a text.
	bytes int
	// thought is the thought if the block is one, or nil.
	thought *thinkingBlock
}

// blockKind is the kind of a received block.
type blockKind int

// The kinds of received blocks. A dropped block is not a part of the reply: a call of the answer tool, or a block of an
// unknown type.
const (
	droppedBlock blockKind = iota
	textBlock
	callBlock
	thoughtBlock
)

// thinkingBlock is a thought that is being received.
type thinkingBlock struct {
	index                 lenient.Number
	isRedacted            bool
	text, signature, data strings.Builder
}

// Decode adds an event to the answer.
func (d *decoder) Decode(data []byte, out *endpoint.Answer) (failure []byte, err error) {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	out.RaiseUsage(e.Usage.Value.tokens()) // also that of an error
	if e.HasFailed() {
		return slices.Clone(data), nil
	}
	switch e.Type.Value {
	case "error":
		return slices.Clone(data), nil
	case "message_start":
		var start answer
		_ = json.Unmarshal(e.Message, &start) // a message of another form has no usage
		out.SetModel(start.Model.Value)
		out.RaiseUsage(start.Usage.Value.tokens())
	case "content_block_start":
		d.begin(e.Index.Value, &e.Block.Value, out)
	case "content_block_delta":
		d.add(e.Index.Value, &e.Delta.Value, out)
	case "content_block_stop":
		d.closeCall(out)
	case "message_delta":
		d.finish(e.Delta.Value.StopReason.Value, out)
	case "message_stop":
		out.SetComplete()
	case "message":
		d.whole(&e.answer, out)
	default:
		if endpoint.IsPresent(e.Error) || e.Type.Value == "" && e.HasText() {
			return slices.Clone(data), nil
		}
	}
	return nil, nil
}

// whole adds a whole answer.
func (d *decoder) whole(a *answer, out *endpoint.Answer) {
	out.SetModel(a.Model.Value)
	out.RaiseUsage(a.Usage.Value.tokens())
	for i := range a.Content {
		d.begin(lenient.Number(i), &a.Content[i].Value, out)
	}
	d.finish(a.StopReason.Value, out)
	out.SetComplete()
}

// begin adds the beginning of a block. Some servers send the whole block as its beginning.
func (d *decoder) begin(index lenient.Number, b *content, out *endpoint.Answer) {
	d.closeCall(out)
	d.ignored = nil
	switch b.Type.Value {
	case "text":
		d.note(receivedBlock{kind: textBlock})
		d.addText(b.Text.Value, out)
	case "thinking", "redacted_thinking":
		if len(d.thoughts) <= maxThoughts {
			t := &thinkingBlock{index: index, isRedacted: b.Type.Value == "redacted_thinking"}
			d.thoughts = append(d.thoughts, t)
			d.note(receivedBlock{kind: thoughtBlock, thought: t})
		}
		d.addThought(index, b.Thinking.Value, b.Signature.Value, b.Data.Value, out)
	case "tool_use":
		arguments := string(b.Input)
		if !endpoint.IsPresent(b.Input) {
			arguments = ""
		}
		if d.answerTool && b.Name.Value == answerTool {
			d.answered, d.answer = true, index
			out.ResetText()
			out.AddText(arguments)
			d.note(receivedBlock{kind: droppedBlock})
			return
		}
		d.note(receivedBlock{kind: callBlock})
		out.AddCall(endpoint.CallPiece{Index: given(index), ID: b.ID.Value, Name: b.Name.Value, Arguments: arguments})
		if arguments == "" {
			d.open = &index
		}
	default:
		d.ignored = &index
		d.note(receivedBlock{kind: droppedBlock})
	}
}

// note notes a block of the reply.
func (d *decoder) note(b receivedBlock) {
	if len(d.blocks) <= maxBlocks {
		d.blocks = append(d.blocks, b)
	}
}

// add adds a part of a block.
func (d *decoder) add(index lenient.Number, part *delta, out *endpoint.Answer) {
	d.addText(part.Text.Value, out)
	d.addThought(index, part.Thinking.Value, part.Signature.Value, "", out)
	switch arguments := part.PartialJSON.Value; {
	case arguments == "", d.ignored != nil && *d.ignored == index:
	case d.answered && index == d.answer:
		out.AddText(arguments)
	default:
		d.open = nil
		out.AddCall(endpoint.CallPiece{Index: given(index), Arguments: arguments})
	}
}

// addText adds a piece of text. If the model answers by a call of the answer tool, other text is not a part of the
// answer.
func (d *decoder) addText(piece string, out *endpoint.Answer) {
	if d.answered || piece == "" {
		return
	}
	if len(d.blocks) == 0 || d.blocks[len(d.blocks)-1].kind != textBlock {
		d.note(receivedBlock{kind: textBlock})
	}
	d.blocks[len(d.blocks)-1].bytes += len(piece)
	out.AddText(piece)
}

// addThought adds pieces of the thought with this index.
func (d *decoder) addThought(index lenient.Number, text, signature, data string, out *endpoint.Answer) {
	if text == "" && signature == "" && data == "" {
		return
	}
	out.AddReasoning(text)
	for _, t := range slices.Backward(d.thoughts) {
		if t.index == index {
			t.text.WriteString(out.KeepData(text))
			t.signature.WriteString(out.KeepData(signature))
			t.data.WriteString(out.KeepData(data))
			return
		}
	}
}

// closeCall adds the arguments {} to a call that has ended without arguments, because the loop expects an object.
func (d *decoder) closeCall(out *endpoint.Answer) {
	if d.open != nil {
		out.AddCall(endpoint.CallPiece{Index: given(*d.open), Arguments: "{}"})
		d.open = nil
	}
}

// finish notes why the model stopped. A call of the answer tool ends the answer normally. But if the model called other
// tools, too, the answer is dropped, because the model answered before it knew the results.
func (d *decoder) finish(reason string, out *endpoint.Answer) {
	if reason == "" {
		return
	}
	d.closeCall(out)
	if d.answered && out.HasCalls() {
		out.ResetText()
	} else if d.answered && reason == "tool_use" {
		reason = "end_turn"
	}
	out.SetFinish(reason)
}

// given returns an index that is present.
func given(index lenient.Number) lenient.Maybe[lenient.Number] {
	return lenient.Maybe[lenient.Number]{Value: index, Given: true}
}

// ProviderData returns the thoughts of a reply with calls, and the places of all its blocks. The endpoint needs the
// thoughts again, at least until the Turn has ended, and refuses them if they are in other places.
func (d *decoder) ProviderData(*endpoint.Answer) *model.ProviderData {
	if len(d.thoughts) > maxThoughts || len(d.blocks) > maxBlocks {
		return nil
	}
	all := make([]sentBlock, 0, len(d.blocks))
	hasThoughts, hasDropped := false, false
	for _, b := range d.blocks {
		switch {
		case b.kind == droppedBlock, b.kind == textBlock && d.answered:
			hasDropped = true
		case b.kind == callBlock:
			all = append(all, sentBlock{Call: true})
		case b.kind == textBlock && b.bytes > 0:
			all = append(all, sentBlock{Text: b.bytes})
		case b.kind == thoughtBlock:
			block := b.thought.block(d.unsigned)
			if block == nil {
				continue
			}
			if hasDropped { // the thought cannot be sent back in its place
				return nil
			}
			all, hasThoughts = append(all, sentBlock{Thought: block}), true
		}
	}
	if !hasThoughts {
		return nil
	}
	blocks, err := json.Marshal(all)
	if err != nil {
		return nil
	}
	return &model.ProviderData{Format: dataFormat, Lasting: d.lasting, Blocks: blocks}
}

// block returns the whole thought, or nil if it has no signature: the endpoint refuses such thoughts, unless unsigned
// is true.
func (t *thinkingBlock) block(unsigned bool) json.RawMessage {
	members := map[string]string{"type": "thinking", "thinking": t.text.String(), "signature": t.signature.String()}
	switch {
	case t.isRedacted:
		members = map[string]string{"type": "redacted_thinking", "data": t.data.String()}
	case t.signature.Len() == 0 && unsigned && t.text.Len() > 0:
		delete(members, "signature")
	case t.signature.Len() == 0:
		return nil
	}
	block, err := json.Marshal(members)
	if err != nil {
		return nil
	}
	return block
}
