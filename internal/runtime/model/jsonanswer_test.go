package model_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestJSONAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, text, want string
		ok                 bool
	}{
		"object":               {"a JSON object is returned unchanged", `{"a": 1}`, `{"a": 1}`, true},
		"any value":            {"any JSON value is allowed", "\n 17 ", "17", true},
		"thought before":       {"reasoning before the value is skipped", "<think>\n{\"a\":0}?\n</think>\n\n{\"a\":1}", `{"a":1}`, true},
		"thought, block":       {"reasoning and a code block together", "<think></think>```json\n[1]\n```", "[1]", true},
		"thought, not opened":  {"the chat template has opened the reasoning", "{\"a\":0}?\n</think>\n\n{\"a\":1}", `{"a":1}`, true},
		"tag in a value":       {"the tag belongs to the value", "[\"</think>\",\n1]", "[\"</think>\",\n1]", true},
		"thought, open":        {"the reasoning is not closed", `<think>{"a":1}`, "", false},
		"code block":           {"one code block may contain the value", "```json\n{\"a\":1}\n```", `{"a":1}`, true},
		"no language":          {"the code block may have no language", "```\n[1]\n```\n", "[1]", true},
		"capitals":             {"the language may be in capitals, with spaces", "``` JSON \r\n[1]\r\n  ```", "[1]", true},
		"end on the same line": {"the end of the block needs no line of its own", "```json\n[1]```", "[1]", true},
		"other language":       {"the block is declared as YAML", "```yaml\n[1]\n```", "", false},
		"open block":           {"the block is not closed", "```json\n[1]", "", false},
		"only a block":         {"the block is empty", "```json\n```", "", false},
		"three marks":          {"there is no block at all", "```", "", false},
		"two blocks":           {"the value is ambiguous", "```json\n1\n```\n```json\n2\n```", "", false},
		"text around":          {"there is text before the value", `Here it is: {"a":1}`, "", false},
		"text after":           {"there is text after the value", "```json\n1\n```\nThat is all.", "", false},
		"two values":           {"only one value is allowed", "1 2", "", false},
		"empty":                {"the empty text is not JSON", "", "", false},
		"broken":               {"the JSON is cut off", `{"a":`, "", false},
		"block in a value":     {"the marks belong to the value", "\"```json\"", "\"```json\"", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := model.JSONAnswer(tc.text)
			if string(got) != tc.want || ok != tc.ok {
				t.Errorf("JSONAnswer = %q, %t; want %q, %t: %s", got, ok, tc.want, tc.ok, tc.reason)
			}
		})
	}
}
