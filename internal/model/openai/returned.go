package openai

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/lenient"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// ReturnedData is the part of a reply with calls that the endpoint needs again in later requests. If the part is
// missing, the endpoint refuses the next request, or the model continues without its reasoning.
type ReturnedData int

const (
	// ReturnNothing sends nothing back.
	ReturnNothing ReturnedData = iota
	// ReturnReasoningContent sends the text of the reasoning back as reasoning_content.
	ReturnReasoningContent
	// ReturnReasoningDetails sends the blocks of reasoning_details back, which may be signed.
	ReturnReasoningDetails
	// ReturnSignatures sends the extra_content of each call back, which has the signature of the model's thoughts.
	ReturnSignatures
)

// Formats of model.ProviderData.
var returnedFormats = map[ReturnedData]string{
	ReturnReasoningContent: "openai/reasoning_content",
	ReturnReasoningDetails: "openai/reasoning_details",
	ReturnSignatures:       "openai/extra_content",
}

// Replacements for data that is missing, because another model made the reply or because the data was not kept.
const (
	// noReasoning is sent instead of reasoning. To Moonshot, an empty text is missing reasoning:
	// github.com/earendil-works/pi/issues/4251.
	noReasoning = " "
	// noSignature is Gemini's own value for calls without a signature:
	// ai.google.dev/gemini-api/docs/thought-signatures.
	noSignature = `{"google":{"thought_signature":"skip_thought_signature_validator"}}`
)

// thoughtMark separates the ID of a call from the signature of the thoughts behind the call. LiteLLM sends both as the
// ID for Gemini 3, which refuses calls without their signatures: github.com/BerriAI/litellm/pull/16895. A signature has
// several KiB, so it is kept as the data of the call, and its ID without it.
const thoughtMark = "__thought__"

// formatThoughts is the format of model.ProviderData if only the IDs of calls have data.
const formatThoughts = "openai/thought_ids"

// splitThought returns a piece of a call whose data is the end of its ID from thoughtMark on. It reports whether the ID
// has such an end.
func splitThought(piece endpoint.CallPiece) (endpoint.CallPiece, bool) {
	id, signature, found := strings.Cut(piece.ID, thoughtMark)
	if !found {
		return piece, false
	}
	data, err := json.Marshal(thoughtMark + signature)
	if err != nil {
		return piece, false // impossible for a text
	}
	piece.ID, piece.Data = id, string(data)
	return piece, true
}

// thoughtOf returns the end of the ID of a call that splitThought has split off, or an empty text.
func thoughtOf(c *model.ToolCall) string {
	var end string
	if json.Unmarshal(c.ProviderData, &end) != nil || !strings.HasPrefix(end, thoughtMark) {
		return ""
	}
	return end
}

// ProviderData returns the data of a reply with calls that the endpoint needs again, or nil if it needs none.
func (d *decoder) ProviderData(answer *endpoint.Answer) *model.ProviderData {
	data := &model.ProviderData{Format: returnedFormats[d.dialect.Returned], Lasting: d.dialect.ReturnInLaterTurns}
	switch d.dialect.Returned {
	case ReturnNothing:
	case ReturnReasoningContent:
		data.Text = answer.Reasoning()
	case ReturnReasoningDetails:
		data.Blocks = d.details.blocks()
	case ReturnSignatures:
		return data // it has only the format, so that addReturned adds no replacement; the signatures are in the calls
	}
	switch {
	case data.Size() > 0:
		return data
	case d.hasThoughts:
		return &model.ProviderData{Format: formatThoughts}
	}
	return nil
}

// addReturned adds the data of an earlier reply with calls to its message, or a replacement if the data is missing.
// current is true for messages after the last message of the user. The endpoint checks the signatures only of these
// messages.
func (d *Dialect) addReturned(sent *chatMessage, m *model.Message, current bool) {
	data := m.ProviderData
	if data != nil && data.Format != returnedFormats[d.Returned] {
		data = nil
	}
	switch d.Returned {
	case ReturnNothing:
	case ReturnReasoningContent:
		sent.ReasoningContent = noReasoning
		if data != nil {
			sent.ReasoningContent = cmp.Or(data.Text, noReasoning)
		}
	case ReturnReasoningDetails:
		if data != nil {
			sent.ReasoningDetails = data.Blocks
		}
	case ReturnSignatures:
		for i := range sent.ToolCalls {
			if data != nil {
				sent.ToolCalls[i].ExtraContent = m.ToolCalls[i].ProviderData
			}
		}
		if data == nil && current {
			sent.ToolCalls[0].ExtraContent = json.RawMessage(noSignature) // one for all parallel calls
		}
	}
}

// details joins reasoning_details from their pieces. The pieces of one block have the same type and index; the text
// comes in parts and the signature last: github.com/agno-agi/agno/issues/8794.
type details struct{ list []*detail }

type detail struct {
	fields map[string]json.RawMessage
	// texts are the fields that come in parts.
	texts map[string]*strings.Builder
}

// maxDetails bounds the blocks of one reply. Further blocks are dropped.
const maxDetails = 1 << 10

// maxFields bounds the fields of a block. Further fields are dropped.
const maxFields = 64

// detailTexts are the names of the fields that come in parts.
var detailTexts = []string{"text", "summary", "data"}

// add adds one piece. keep counts a text towards the size of the reply, and returns the part of the text that is kept.
func (d *details) add(piece json.RawMessage, keep func(text string) string) {
	fields := lenient.Members(piece, maxFields)
	if fields == nil {
		return
	}
	block := d.find(fields)
	if block == nil && len(d.list) == maxDetails {
		return
	}
	if block == nil {
		block = &detail{map[string]json.RawMessage{}, map[string]*strings.Builder{}}
		d.list = append(d.list, block)
	}
	for name, value := range fields {
		var text string
		isNull := string(value) == "null"
		switch known := block.fields[name]; {
		case !isNull && slices.Contains(detailTexts, name) && json.Unmarshal(value, &text) == nil:
			whole := block.texts[name]
			if whole == nil {
				whole = &strings.Builder{}
				block.texts[name] = whole
			}
			whole.WriteString(keep(text))
		case known == nil && len(block.fields) == maxFields:
		case known == nil, !isNull && string(value) != string(known):
			if keep(name) == "" {
				return // the reply is too long
			}
			block.fields[name] = json.RawMessage(keep(string(value)))
		}
	}
}

// find returns the block that a piece belongs to, or nil if the piece begins a new block.
func (d *details) find(fields map[string]json.RawMessage) *detail {
	if !endpoint.IsPresent(fields["index"]) {
		return nil
	}
	for _, block := range slices.Backward(d.list) {
		same := func(name string) bool { return string(block.fields[name]) == string(fields[name]) }
		otherID := endpoint.IsPresent(block.fields["id"]) && endpoint.IsPresent(fields["id"]) && !same("id")
		if same("index") && same("type") && !otherID {
			return block
		}
	}
	return nil
}

// blocks returns the blocks as a JSON list, or nil if there are none.
func (d *details) blocks() json.RawMessage {
	if len(d.list) == 0 {
		return nil
	}
	all := make([]map[string]json.RawMessage, 0, len(d.list))
	for _, block := range d.list {
		for name, text := range block.texts {
			block.fields[name], _ = json.Marshal(text.String()) // which never fails for a string
		}
		all = append(all, block.fields)
	}
	blocks, err := json.Marshal(all)
	if err != nil {
		return nil // a field was cut off because the reply is too long
	}
	return blocks
}
