package turn

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/shared"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Thousands of Turns of one Agent may wait at the same time. They have the same tools and mostly the same system
// prompt. Each value is kept once, and is found by its digest.
var (
	sharedTools   shared.Values[[sha256.Size]byte, []tool.Tool]
	sharedPrompts shared.Values[[sha256.Size]byte, []prompt.Tool]
	sharedTexts   shared.Values[[sha256.Size]byte, string]
)

// minShared is the minimum length of a shared text, in bytes. Sharing a shorter text costs as much memory as it
// saves.
const minShared = 512

// shares holds the values that a run shares with other runs. A value is shared for as long as a run holds it.
type shares struct {
	tools, contextTools *[]tool.Tool
	prompted            *[]prompt.Tool
	texts               []*string
}

// share replaces a list by the equal list that other runs hold, and returns the pointer that the caller must hold.
// The list must not be changed any more.
func share[T any](among *shared.Values[[sha256.Size]byte, []T], list *[]T) *[]T {
	if len(*list) == 0 {
		return nil
	}
	data, err := json.Marshal(*list)
	if err != nil { // cannot happen: the journal has the list as JSON
		return nil
	}
	held := among.Of(sha256.Sum256(data), new(*list))
	*list = *held
	return held
}

// shareTools shares the tools of an exposure.
func (s *shares) shareTools(x *tool.Exposure) {
	s.tools, s.contextTools = share(&sharedTools, &x.Tools), share(&sharedTools, &x.ContextTools)
}

// sharePrompt shares the tools in the prompt and the long system messages.
func (s *shares) sharePrompt(tools *[]prompt.Tool, messages []model.Message) {
	s.prompted, s.texts = share(&sharedPrompts, tools), nil
	for i := range messages {
		if m := &messages[i]; m.Role == model.RoleSystem && len(m.Content) >= minShared {
			held := sharedTexts.Of(sha256.Sum256([]byte(m.Content)), new(m.Content))
			m.Content, s.texts = *held, append(s.texts, held)
		}
	}
}
