package server

import (
	"encoding/json"
	"html"
	"regexp"
	"strings"
	"text/template"
)

// View holds the data of a request that templates can use.
type View struct {
	// Request is the number of the request since the server started or was reset, from 1.
	Request int64
	// Model is the model's name.
	Model string
	// User is the text of the last user message, or empty if there is none.
	User string
	// System are the texts of the system and developer messages, in order.
	System []string
	// Messages are all messages, in order.
	Messages []Message
	// ToolMessages is the number of tool messages after the last user message.
	ToolMessages int
	// Tools are the names of the functions that the request offers, in order.
	Tools []string
	// ResponseFormat is the type of the answer that the request asks for; the default is text.
	ResponseFormat ResponseFormat
	// Stream reports whether the client asked for a stream.
	Stream bool
	// embeddings is true for a request for embeddings.
	embeddings bool
}

// Message is one message of a request.
type Message struct {
	// Role is system, developer, user, assistant or tool.
	Role string
	// Name is the author's name, which is usually empty.
	Name string
	// Content is the text of the message. Other parts, such as images, are left out.
	Content string
	// ToolCallID is the ID of the call that a tool message answers.
	ToolCallID string
}

// Named returns the first message with this name, or an empty message if there is none. A template uses it as
// {{ with (.Named "x").Content }}.
func (v View) Named(name string) Message {
	for _, m := range v.Messages {
		if m.Name == name {
			return m
		}
	}
	return Message{}
}

// Count returns the number of messages with this role.
func (v View) Count(role string) int {
	n := 0
	for _, m := range v.Messages {
		if m.Role == role {
			n++
		}
	}
	return n
}

// newView returns the View of a request. Templates and conditions use it.
func newView(number int64, req *completionRequest) View {
	v := View{Request: number, Model: req.Model, Stream: req.Stream, ResponseFormat: req.format()}
	for _, m := range req.Messages {
		text := m.text()
		v.Messages = append(v.Messages, Message{Role: m.Role, Name: m.Name, Content: text, ToolCallID: m.ToolCallID})
		switch m.Role {
		case "user":
			v.User, v.ToolMessages = text, 0
		case "tool":
			v.ToolMessages++
		case "system", "developer":
			v.System = append(v.System, text)
		}
	}
	if string(req.ToolChoice) == `"none"` { // the model must not call them
		return v
	}
	for _, tool := range req.Tools {
		v.Tools = append(v.Tools, tool.Function.Name)
	}
	return v
}

// sampleView is the smallest request. Every template must render for it, so that a misspelled field fails when the
// rules are loaded, and not during a request.
func sampleView() View {
	const text = "Hello"
	return View{Request: 1, Model: "sample", User: text, ResponseFormat: ResponseText, Messages: []Message{{Role: "user", Content: text}}}
}

// functions are the template functions in addition to those of text/template.
var functions = template.FuncMap{
	"add":      func(a, b int) int { return a + b },
	"sub":      func(a, b int) int { return a - b },
	"join":     strings.Join,
	"lower":    strings.ToLower,
	"upper":    strings.ToUpper,
	"trim":     strings.TrimSpace,
	"trimEnd":  func(cutset, text string) string { return strings.TrimRight(text, cutset) },
	"contains": strings.Contains,
	"groups":   groups,
	"first":    first,
	"json":     asJSON,
	"truncate": truncate,
	"unescape": html.UnescapeString,
}

// groups returns each match of the pattern in text: the whole match, then its groups.
func groups(pattern, text string) ([][]string, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	return re.FindAllStringSubmatch(text, -1), nil
}

// first returns the first group of the pattern's first match in text. A pattern without groups returns the whole
// match, and no match returns an empty text.
func first(pattern, text string) (string, error) {
	all, err := groups(pattern, text)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[0][min(1, len(all[0])-1)], nil
}

// asJSON returns a value as JSON. A text has quotes.
func asJSON(value any) (string, error) {
	data, err := json.Marshal(value)
	return string(data), err
}

// truncate cuts text to at most limit characters. The last character of a text that was cut is an ellipsis.
func truncate(limit int, text string) string {
	runes := []rune(text)
	if limit < 1 || len(runes) <= limit {
		return text
	}
	return string(runes[:limit-1]) + "…"
}
