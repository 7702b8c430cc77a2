package openai_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestKeyIsRemovedFromReplies checks that the key is removed from replies, because they become part of the journal,
// the status and the next request.
func TestKeyIsRemovedFromReplies(t *testing.T) {
	hidden := strings.Join(strings.Split(key, ""), "\u200b")
	pieces := func(member, text string) []string {
		var all []string
		for _, r := range text { // an event for each character
			quoted, err := json.Marshal(string(r))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, delta(fmt.Sprintf("%q:%s", member, quoted)))
		}
		return all
	}
	ended := []string{finishEvent("stop"), `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`, "[DONE]"}
	used := model.Usage{InputTokens: 9, OutputTokens: 4}
	stop := func(text, reasoning string) model.Reply {
		return model.Reply{Text: text, Reasoning: reasoning, FinishReason: model.FinishStop, Usage: used}
	}
	for name, tc := range map[string]struct {
		reason string
		events []string
		want   model.Reply
	}{
		"text": {"the key is in one event", []string{delta(`"content":"your key is ` + key + `!"`)}, stop("your key is [redacted]!", "")},
		"in pieces": {
			"each event contains one character of the key", pieces("content", "your key is "+key+"!"),
			stop("your key is [redacted]!", ""),
		},
		"hidden": {
			"a reader sees the key despite invisible characters", pieces("content", "your key is "+hidden+"!"),
			stop("your key is [redacted]!", ""),
		},
		"tags": {
			"tag characters are invisible, too", pieces("content", strings.Join(strings.Split(key, ""), "\U000e0041\ufe0f")),
			stop("[redacted]", ""),
		},
		"base64": {
			"an encoded key can be decoded",
			[]string{delta(`"content":"` + base64.RawURLEncoding.EncodeToString([]byte(key+"..")) + `"`)},
			stop("[redacted]ouLg", ""),
		},
		"earlier key": {
			"an earlier key may still be valid",
			[]string{delta(`"content":"was sk-earlier-0123456789abcdef"`)},
			stop("was [redacted]", ""),
		},
		"reasoning": {
			"reasoning is part of the journal",
			append(pieces("reasoning", hidden), delta(`"content":"fine"`)), stop("fine", "[redacted]"),
		},
		"without a key": {"other text stays unchanged", pieces("content", "café\u200b \u202e"), stop("café\u200b \u202e", "")},
		"a call": {
			"a tool must not receive the key",
			[]string{callPart(0, "id-"+key, "count", `{"h":"`+hidden+`"}`), callPart(1, "b", key, `{}`)},
			model.Reply{ToolCalls: []model.ToolCall{
				{ID: "call_0", Name: "count", Arguments: `{"h":"[redacted]"}`},
				{ID: "b", Name: "[redacted]", Arguments: "{}"},
			}, FinishReason: model.FinishToolCalls, Usage: used},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := provider(t, serve(t, respond(200, events(append(tc.events, ended...)...), stream)),
				func(cfg *openai.Config) { cfg.Earlier = []string{"sk-earlier-0123456789abcdef"} })
			got, err := generate(t.Context(), p, withTools("hello"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}
