package turn

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/shared"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Thousands of Turns of one Agent wait at the same time. They have the same tools, and mostly the same system prompt. Each is kept
// once, and found by its digest.
var (
	sharedTools   shared.Values[[sha256.Size]byte, []tool.Tool]
	sharedPrompts shared.Values[[sha256.Size]byte, []prompt.Tool]
	sharedTexts   shared.Values[[sha256.Size]byte, string]
)

// minShared is the length of the shortest text that is shared, in bytes: to share a shorter one takes as much as it saves.
const minShared = 512

// shares holds what a run shares with others, which is shared while it is held.
type shares struct {
	tools, packs *[]tool.Tool
	prompted     *[]prompt.Tool
	texts        []*string
}

// share puts in the place of a list the one that others hold, and returns what is to be held. The list must not be changed any more.
func share[T any](among *shared.Values[[sha256.Size]byte, []T], list *[]T) *[]T {
	if len(*list) == 0 {
		return nil
	}
	data, err := json.Marshal(*list)
	if err != nil { // it came as JSON
		return nil
	}
	held := among.Of(sha256.Sum256(data), new(*list))
	*list = *held
	return held
}

// exposed shares the tools of an exposure.
func (s *shares) exposed(x *tool.Exposure) {
	s.tools, s.packs = share(&sharedTools, &x.Tools), share(&sharedTools, &x.Packs)
}

// prepared shares what the model is told of tools, and the long texts of the system.
func (s *shares) prepared(tools *[]prompt.Tool, messages []model.Message) {
	s.prompted, s.texts = share(&sharedPrompts, tools), nil
	for i := range messages {
		if m := &messages[i]; m.Role == model.RoleSystem && len(m.Content) >= minShared {
			held := sharedTexts.Of(sha256.Sum256([]byte(m.Content)), new(m.Content))
			m.Content, s.texts = *held, append(s.texts, held)
		}
	}
}
