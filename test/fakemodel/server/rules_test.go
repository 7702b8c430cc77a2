package server

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// request returns a request with messages of several roles.
func request() *completionRequest {
	return &completionRequest{
		Model: "demo-small",
		Messages: []wireMessage{
			{Role: "system", Name: "system_prompt", Content: new(wireContent("You translate."))},
			{Role: "user", Content: new(wireContent("An old question"))},
			{Role: "assistant", Content: new(wireContent("An old answer"))},
			{Role: "system", Name: "context_pack", Content: new(wireContent("- [a] One &amp; only. (source: x.md)\n- [b] Two"))},
			{Role: "tool", ToolCallID: "call_7", Content: new(wireContent("17 degrees"))},
			{Role: "user", Name: "user_message", Content: new(wireContent("What is NEW?"))},
			{Role: "assistant", ToolCalls: []sentToolCall{{ID: "call_8"}, {ID: "call_9"}}},
			{Role: "tool", ToolCallID: "call_8", Content: new(wireContent("18 degrees"))},
			{Role: "tool", ToolCallID: "call_9", Content: new(wireContent(""))},
		},
		Tools: []wireTool{{Type: "function"}},
	}
}

func TestConditions(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		when   When
		want   bool
	}{
		"Empty":              {"a rule without conditions always matches", When{}, true},
		"Model":              {"the name is the same", When{Model: "demo-small"}, true},
		"OtherModel":         {"a part of the name is not enough", When{Model: "demo"}, false},
		"Contains":           {"a part of the last user message", When{Contains: "is NEW"}, true},
		"ContainsCase":       {"case counts", When{Contains: "is new"}, false},
		"ContainsOld":        {"earlier user messages do not count", When{Contains: "old"}, false},
		"Matches":            {"a pattern within the last user message", When{Matches: "(?i)new.$"}, true},
		"MatchesNot":         {"a pattern that is not there", When{Matches: "^is"}, false},
		"SystemContains":     {"any system message", When{SystemContains: "[b] Two"}, true},
		"SystemContainsUser": {"a user message is no system message", When{SystemContains: "NEW"}, false},
		"AnyContains":        {"a tool's result counts", When{AnyContains: "17 deg"}, true},
		"AnyContainsNot":     {"a text that is nowhere", When{AnyContains: "16 deg"}, false},
		"ToolMessages":       {"the number of tool messages after the last user message", When{ToolMessages: new(2)}, true},
		"ToolMessagesOld":    {"earlier tool messages do not count", When{ToolMessages: new(3)}, false},
		"ToolMessagesFewer":  {"the number is exact", When{ToolMessages: new(1)}, false},
		"ToolMessagesNone":   {"0 is a number, too", When{ToolMessages: new(0)}, false},
		"HasTools":           {"tools are offered", When{HasTools: new(true)}, true},
		"HasNoTools":         {"tools are offered, so the condition does not hold", When{HasTools: new(false)}, false},
		"All":                {"all conditions hold", When{Model: "demo-small", Contains: "NEW", AnyContains: "old"}, true},
		"AllButOne":          {"one condition does not hold", When{Model: "demo-small", Contains: "NEW", AnyContains: "nothing"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			rule, err := compileRule(0, Rule{When: tc.when})
			if err != nil {
				t.Fatal(err)
			}
			if got := rule.holds(newView(1, request())); got != tc.want {
				t.Errorf("%s: want %v, have %v", tc.reason, tc.want, got)
			}
		})
	}
}

func TestToolConditionsOfARequestWithoutTools(t *testing.T) {
	view := newView(1, &completionRequest{Messages: []wireMessage{{Role: "user"}}})
	for name, when := range map[string]When{"no tool messages": {ToolMessages: new(0)}, "no tools": {HasTools: new(false)}} {
		rule, err := compileRule(0, Rule{When: when})
		if err != nil {
			t.Fatal(err)
		}
		if !rule.holds(view) {
			t.Errorf("%s: the condition must hold for a request that has none", name)
		}
	}
}

func TestFirstMatchWinsAndTimesFallsThrough(t *testing.T) {
	set, err := compile(Config{Rules: []Rule{
		{When: When{Contains: "nothing like it"}},
		{Times: new(int64(2))},
		{When: When{Model: "demo-small"}, Times: new(int64(1))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	match4 := func() []int {
		var got []int
		for range 4 {
			got = append(got, set.match(newView(1, request())).index)
		}
		return got
	}
	want := []int{1, 1, 2, -1}
	if diff := cmp.Diff(want, match4()); diff != "" {
		t.Errorf("rules must be used up in order, then the default (-want +got):\n%s", diff)
	}
	set.reset()
	if diff := cmp.Diff(want, match4()); diff != "" {
		t.Errorf("after a reset, each rule must match again (-want +got):\n%s", diff)
	}
}

func TestTemplates(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want string
	}{
		"User":     {"{{ .User }}", "What is NEW?"},
		"Model":    {"{{ .Model }}", "demo-small"},
		"Number":   {"{{ .Request }}", "3"},
		"System":   {"{{ len .System }}{{ with .System }} {{ index . 0 }}{{ end }}", "2 You translate."},
		"Messages": {"{{ range .Messages }}{{ .Role }} {{ end }}", "system user assistant system tool user assistant tool tool "},
		"Count":    {`{{ .Count "user" }} {{ .Count "developer" }}`, "2 0"},
		"Named":    {`{{ (.Named "user_message").Content }}`, "What is NEW?"},
		"NotNamed": {`[{{ (.Named "nobody").Content }}]`, "[]"},
		"Call":     {`{{ range .Messages }}{{ .ToolCallID }}{{ end }}`, "call_7call_8call_9"},
		"Tools":    {`{{ add .ToolMessages 1 }} of {{ .Count "tool" }}`, "3 of 3"},
		"First":    {`{{ first "is (\\w+)" .User }} {{ first "W\\w+" .User }} [{{ first "(x)(y)" .User }}]`, "NEW What []"},
		"JSON":     {`{{ json "a \"b\"" }} {{ json 7 }} {{ json .Tools }}`, `"a \"b\"" 7 ["f","g"]`},
		"Functions": {
			`{{ add 2 3 }} {{ sub 2 3 }} {{ upper "a" }}{{ lower "B" }} {{ trim " x " }} {{ trimEnd ".!" "y!." }}`,
			"5 -1 Ab x y",
		},
		"Join":     {`{{ join .Tools "," }}|{{ contains .User "NEW" }}`, "f,g|true"},
		"Truncate": {`{{ truncate 4 "äöüß" }} {{ truncate 3 "äöüß" }} {{ truncate 0 "ab" }}`, "äöüß äö… ab"},
		"Groups": {
			`{{ range groups "- \\[(.)\\] (.*)" (.Named "context_pack").Content }}{{ index . 1 }}={{ index . 2 | unescape }};{{ end }}`,
			"a=One & only. (source: x.md);b=Two;",
		},
	} {
		t.Run(name, func(t *testing.T) {
			rule, err := compileRule(0, Rule{Reply: Reply{Text: &tc.text}})
			if err != nil {
				t.Fatal(err)
			}
			view := newView(3, request())
			view.Tools = []string{"f", "g"}
			got, err := render(rule.text, view)
			if err != nil || got != tc.want {
				t.Errorf("want %q, have %q and error %v", tc.want, got, err)
			}
		})
	}
}

func TestAnswer(t *testing.T) {
	long := strings.Repeat("ä", 9)
	for name, tc := range map[string]struct {
		reason     string
		reply      Reply
		req        completionRequest
		want       string
		finish     FinishReason
		completion int
	}{
		"Default":   {"no text repeats the user", Reply{}, completionRequest{Model: "m"}, "This is m. You said: ", FinishStop, 6},
		"Empty":     {"an empty text is kept", Reply{Text: new("")}, completionRequest{}, "", FinishStop, 0},
		"RoundedUp": {"9 characters are 3 tokens", Reply{Text: &long}, completionRequest{}, long, FinishStop, 3},
		"Repeat":    {"the text is repeated", Reply{Text: new("ab"), Repeat: 3}, completionRequest{}, "ababab", FinishStop, 2},
		"MaxTokens": {"the limit cuts", Reply{Text: &long}, completionRequest{MaxTokens: 2}, long[:16], FinishLength, 2},
		"NewLimit": {
			"the newer limit wins",
			Reply{Text: &long},
			completionRequest{MaxTokens: 9, MaxCompletionTokens: 1},
			long[:8], FinishLength, 1,
		},
		"AtLimit": {"a text as long as the limit is not cut", Reply{Text: &long}, completionRequest{MaxTokens: 3}, long, FinishStop, 3},
		"NoLimit": {
			"the rule ignores the limit",
			Reply{Text: &long, IgnoreMaxTokens: true},
			completionRequest{MaxTokens: 1},
			long, FinishStop, 3,
		},
		"Finish": {
			"the rule sets the finish reason",
			Reply{Text: &long, FinishReason: FinishContentFilter},
			completionRequest{},
			long, FinishContentFilter, 3,
		},
		"Reasoning": {
			"reasoning is added",
			Reply{Text: &long, Usage: UsageOverride{ReasoningTokens: new(10)}},
			completionRequest{},
			long, FinishStop, 13,
		},
		"Overridden": {
			"the number of the rule replaces the estimate",
			Reply{Text: &long, Usage: UsageOverride{CompletionTokens: new(99)}},
			completionRequest{},
			long, FinishStop, 99,
		},
	} {
		t.Run(name, func(t *testing.T) {
			rule, err := compileRule(0, Rule{Reply: tc.reply})
			if err != nil {
				t.Fatal(err)
			}
			got, err := rule.answer(newView(1, &tc.req), &tc.req)
			if err != nil {
				t.Fatal(err)
			}
			if *got.text != tc.want || got.finish != tc.finish || got.usage.CompletionTokens != tc.completion {
				t.Errorf("%s: want %q, %s, %d tokens; have %q, %s, %d tokens", tc.reason,
					tc.want, tc.finish, tc.completion, *got.text, got.finish, got.usage.CompletionTokens)
			}
		})
	}
}

func TestAnswerThatIsTooLargeIsAnError(t *testing.T) {
	rule, err := compileRule(0, Rule{Reply: Reply{Text: new(strings.Repeat("x", 100)), Repeat: maxRepeat}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rule.answer(View{}, &completionRequest{}); err == nil || !strings.Contains(err.Error(), "reply.repeat") {
		t.Errorf("want an error that names reply.repeat, have: %v", err)
	}
}

func TestChunksNeverCutACharacter(t *testing.T) {
	for name, tc := range map[string]struct {
		text  string
		chars int
		want  []string
	}{
		"Empty": {"", 3, nil},
		"Short": {"ab", 3, []string{"ab"}},
		"Exact": {"abcdef", 3, []string{"abc", "def"}},
		"Rest":  {"äöü€ß", 2, []string{"äö", "ü€", "ß"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for piece := range chunks(tc.text, tc.chars) {
				got = append(got, piece)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("chunks (-want +got):\n%s", diff)
			}
		})
	}
}
