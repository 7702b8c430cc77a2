package anthropic

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Roles of the protocol.
const (
	roleUser      = "user"
	roleAssistant = "assistant"
)

// Fences around a system message that follows a message with another role. The protocol has no role for such a message.
const (
	noteOpens  = "<system_message>"
	noteCloses = "</system_message>"
)

// fence matches the beginning of a fence. escapeFences replaces it in the messages of users, in results of tools, and
// in later system messages.
var fence = regexp.MustCompile(`(?i)<(\s*/?\s*system_message)`)

// Texts of the user that are added to a conversation. The protocol requires that a conversation begins with a message
// of the user, and newer models require that it also ends with one.
const (
	conversationBegins = noteOpens + "\nThe conversation so far follows.\n" + noteCloses
	continueReply      = noteOpens + "\nContinue.\n" + noteCloses
)

type message struct {
	Role    string  `json:"role"`
	Content []block `json:"content"`
}

// block is a part of a message. Each type has its own members.
type block struct {
	Type string `json:"type"`
	Text string `json:"text,omitempty"`

	ID    string          `json:"id,omitempty"`
	Name  string          `json:"name,omitempty"`
	Input json.RawMessage `json:"input,omitempty"`

	ToolUseID string `json:"tool_use_id,omitempty"`
	Content   string `json:"content,omitempty"`

	Source *source `json:"source,omitempty"`
	Title  string  `json:"title,omitempty"`

	CacheControl *cacheControl `json:"cache_control,omitempty"`
	// raw is the whole block if it came from the endpoint and is sent back unchanged.
	raw json.RawMessage
}

// source is the content of an image or a PDF.
type source struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type"`
	Data      string `json:"data"`
}

// MarshalJSON implements json.Marshaler.
func (b block) MarshalJSON() ([]byte, error) {
	if b.raw != nil {
		return b.raw, nil
	}
	type members block
	return json.Marshal(members(b))
}

// messagesOf returns the system prompt and the other messages. The system prompt consists of the system messages before
// the first other message. Later system messages become fenced texts of the user in the same place. So the beginning of
// a conversation stays the same, and the endpoint finds it in its cache.
func messagesOf(messages []model.Message, c *endpoint.Contents) (system []block, out []message) {
	add := func(role string, blocks ...block) {
		switch {
		case len(blocks) == 0:
		case len(out) > 0 && out[len(out)-1].Role == role:
			out[len(out)-1].Content = append(out[len(out)-1].Content, blocks...)
		default:
			out = append(out, message{role, blocks})
		}
	}
	messages = withUniqueCalls(messages)
	hasSystem := false
	for i := range messages {
		m := &messages[i]
		switch m.Role {
		case model.RoleSystem:
			if len(out) == 0 {
				system = append(system, systemBlocks(m)...)
				hasSystem = true
				continue
			}
			add(roleUser, noteBlocks(m.Content)...)
		case model.RoleUser:
			add(roleUser, attachmentBlocks(m, c)...)
			add(roleUser, textBlocks(escapeFences(c.Text(m)))...)
		case model.RoleTool:
			add(roleUser, block{
				Type: "tool_result", ToolUseID: endpoint.CallID(m.ToolCallID, endpoint.CallIDsPlain), Content: escapeFences(m.Content),
			})
		case model.RoleAssistant:
			if len(out) == 0 {
				add(roleUser, textBlocks(conversationBegins)...)
			}
			add(roleAssistant, assistantBlocks(m)...)
		}
	}
	switch {
	case len(out) == 0 && hasSystem: // a conversation needs a message
		return system, []message{{roleUser, textBlocks(continueReply)}}
	case len(out) > 0 && out[len(out)-1].Role == roleAssistant: // newer models do not continue their own message
		add(roleUser, textBlocks(continueReply)...)
	}
	return system, out
}

// withUniqueCalls gives a new ID to each call whose ID a call in an earlier reply has, and to its result. The protocol
// refuses such repeated IDs. They occur if a server sends no IDs: Capstan then makes the IDs, and the calls of each
// Turn of a Session get the same ones. A new ID depends only on earlier messages, so that the beginning of a
// conversation stays the same.
func withUniqueCalls(messages []model.Message) []model.Message {
	messages = slices.Clone(messages) // the messages belong to the caller
	taken := map[string]bool{}
	// before are those calls of the last reply whose results have not been found yet, with their old IDs. after are the
	// same calls with their new IDs.
	var before, after []model.ToolCall
	for i := range messages {
		m := &messages[i]
		if len(m.ToolCalls) > 0 {
			before, after = slices.Clone(m.ToolCalls), slices.Clone(m.ToolCalls)
			model.IdentifyCalls(after, func(id string) bool { return taken[id] })
			m.ToolCalls = slices.Clone(after)
			for _, c := range after {
				taken[c.ID] = true
			}
		}
		if m.Role != model.RoleTool {
			continue
		}
		if n := slices.IndexFunc(before, func(c model.ToolCall) bool { return c.ID == m.ToolCallID }); n >= 0 {
			m.ToolCallID = after[n].ID
			before, after = slices.Delete(before, n, n+1), slices.Delete(after, n, n+1)
		}
	}
	return messages
}

// attachmentBlocks returns the images and PDFs of a message. They come before the text of the message, as Anthropic
// advises.
func attachmentBlocks(m *model.Message, c *endpoint.Contents) []block {
	var blocks []block
	for _, a := range endpoint.NonTextAttachments(m) {
		b := block{Type: "image", Source: &source{Type: "base64", MediaType: a.MediaType, Data: c.Base64(a)}}
		if model.KindOf(a.MediaType) == model.AttachedFile {
			b.Type, b.Title = "document", a.Name
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// textBlocks returns one block with a text, or no block if the text is blank: the protocol refuses blank texts.
func textBlocks(text string) []block {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return []block{{Type: "text", Text: text}}
}

// noteBlocks returns a block with a later system message, or no block if the message is blank.
func noteBlocks(text string) []block {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return textBlocks(noteOpens + "\n" + escapeFences(text) + "\n" + noteCloses)
}

// escapeFences escapes the fences of system messages in a text.
func escapeFences(text string) string { return fence.ReplaceAllString(text, "&lt;$1") }

// systemBlocks returns a system message as two blocks: its first StableChars characters, and the rest. If StableChars
// is 0, it returns one block.
func systemBlocks(m *model.Message) []block {
	stable := len(m.Content)
	n := 0
	for i := range m.Content {
		if n == m.StableChars {
			stable = i
			break
		}
		n++
	}
	if m.StableChars == 0 {
		return textBlocks(m.Content)
	}
	return append(textBlocks(m.Content[:stable]), textBlocks(m.Content[stable:])...)
}

// assistantBlocks returns the blocks of a reply: its text and its calls, with the thoughts in their original places.
func assistantBlocks(m *model.Message) []block {
	calls := make([]block, 0, len(m.ToolCalls))
	for _, c := range m.ToolCalls {
		input := json.RawMessage(c.Arguments)
		if !strings.HasPrefix(strings.TrimSpace(c.Arguments), "{") || !json.Valid(input) {
			input = json.RawMessage("{}")
		}
		calls = append(calls, block{
			Type: "tool_use", ID: endpoint.CallID(c.ID, endpoint.CallIDsPlain), Name: endpoint.ToolName(c.Name), Input: input,
		})
	}
	if blocks := originalBlocks(m, calls); blocks != nil {
		return blocks
	}
	blocks := append(textBlocks(m.Content), calls...)
	for _, t := range slices.Backward(earlierThoughts(m)) {
		blocks = slices.Insert(blocks, min(t.At, len(blocks)), block{raw: t.Block})
	}
	return blocks
}

// originalBlocks returns the blocks of a reply in their original order. It returns nil if their places are not known,
// or if the reply no longer has the same calls or the same texts: then no thoughts are sent. The only text of a reply
// may have changed, because its place is still known.
func originalBlocks(m *model.Message, calls []block) []block {
	var sent []sentBlock
	if !hasData(m, dataFormat, &sent) {
		return nil
	}
	texts := 0
	for _, b := range sent {
		if b.Text > 0 {
			texts++
		}
	}
	blocks := make([]block, 0, len(sent))
	rest := m.Content
	for _, b := range sent {
		switch {
		case b.Thought != nil:
			blocks = append(blocks, block{raw: b.Thought})
		case b.Call:
			if len(calls) == 0 {
				return nil
			}
			blocks, calls = append(blocks, calls[0]), calls[1:]
		default:
			n := b.Text
			if texts == 1 {
				n = len(rest)
			}
			if n > len(rest) || !utf8.ValidString(rest[:n]) {
				return nil
			}
			blocks, rest = append(blocks, textBlocks(rest[:n])...), rest[n:]
		}
	}
	if rest != "" || len(calls) > 0 {
		return nil
	}
	return blocks
}

// earlierFormat is the format of model.ProviderData of earlier versions: a list of thoughts without the places of the
// other blocks. Journals may contain it.
const earlierFormat = "anthropic/thinking"

// earlierThought is a thought in the earlier format.
type earlierThought struct {
	// At is the number of other blocks before the thought: the text of the reply, if there is one, and calls.
	At    int             `json:"at"`
	Block json.RawMessage `json:"block"`
}

// earlierThoughts returns the thoughts of a reply in their order, or nil if it has none in the earlier format.
func earlierThoughts(m *model.Message) []earlierThought {
	var thoughts []earlierThought
	if !hasData(m, earlierFormat, &thoughts) {
		return nil
	}
	return thoughts
}

// hasData reports whether a reply has data in this format, and reads it. A reply of an endpoint with another protocol
// has none.
func hasData(m *model.Message, format string, into any) bool {
	d := m.ProviderData
	return d != nil && d.Format == format && json.Unmarshal(d.Blocks, into) == nil
}

// mayHaveThinkingBudget reports whether a request may have a budget for thinking. With such a budget, the protocol
// requires that the first reply after the last message of the user starts with a thought if it has calls. A reply of
// another model has no thoughts. A text of the user right after results is in one message with them, which the protocol
// regards as a message with results.
func mayHaveThinkingBudget(messages []model.Message) bool {
	may := true
	for i := range slices.Backward(messages) {
		switch m := &messages[i]; m.Role {
		case model.RoleUser:
			if i == 0 || messages[i-1].Role != model.RoleTool {
				return may
			}
		case model.RoleAssistant:
			may = len(m.ToolCalls) == 0 || assistantBlocks(m)[0].raw != nil
		case model.RoleSystem, model.RoleTool:
		}
	}
	return may
}
