package model

import (
	"slices"
	"strings"
)

// callEnds are the ends of the forms in which models write calls. Servers that do not recognize a call send this form
// as the text of the answer, with the finish reason of an answer.
var callEnds = []string{
	"</tool_call>",               // Qwen, GLM and others
	"<tool_call|>",               // Gemma: github.com/osaurus-ai/osaurus/pull/1505
	"<|tool_calls_section_end|>", // Kimi: github.com/MoonshotAI/Kimi-K2/issues/26
	"</minimax:tool_call>",       // MiniMax: github.com/zoedolan/Vybn/pull/2077
	"</｜DSML｜tool_calls>",        // DeepSeek: github.com/sgl-project/sglang/issues/40236
	"</｜｜DSML｜｜tool_calls>",      // DeepSeek: github.com/tinyhumansai/opencompany/pull/2093
	"</｜DSML｜function_calls>", "<｜tool▁calls▁end｜>",
}

// EndsWithCall reports whether a text ends with a call that the server did not recognize. An answer that only shows the
// form of a call seldom ends with it.
func EndsWithCall(text string) bool {
	text = strings.TrimSpace(text)
	return slices.ContainsFunc(callEnds, func(end string) bool { return strings.HasSuffix(text, end) })
}
