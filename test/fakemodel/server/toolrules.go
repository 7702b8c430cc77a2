package server

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// The real API's bounds for tools, and its error codes.
const (
	maxTools       = 128
	maxToolName    = 64
	maxCallID      = 40
	codeMissing    = "missing_required_parameter"
	codeInvalid    = "invalid_value"
	codeTooLong    = "string_above_max_length"
	toolNameFormat = "^[a-zA-Z0-9_-]+$"
)

var toolNamePattern = regexp.MustCompile(toolNameFormat)

// wireTool is a tool that a request offers.
type wireTool struct {
	Type     string `json:"type"`
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// invalidTools returns the error of the tools that a request offers, or nil if they are valid.
func invalidTools(tools []wireTool) *wireError {
	if tools != nil && len(tools) == 0 {
		return refuse("tools", "empty_array",
			"Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.")
	}
	if len(tools) > maxTools {
		return refuse("tools", "array_above_max_length",
			"Invalid 'tools': array too long. Expected an array with maximum length %d, but got an array with length %d instead.",
			maxTools, len(tools))
	}
	for i, tool := range tools {
		param := fmt.Sprintf("tools[%d]", i)
		if tool.Type == "" {
			return missing(param + ".type")
		}
		if tool.Type != "function" {
			return refuse(param+".type", codeInvalid, "Invalid value: '%s'. Supported values are: 'function'.", tool.Type)
		}
		if e := invalidToolName(param+".function.name", tool.Function.Name); e != nil {
			return e
		}
		if e := invalidSchema(param+".function.parameters", tool); e != nil {
			return e
		}
	}
	return nil
}

// invalidSchema returns the error of a tool's schema, or nil if it is valid. It checks only the outermost type, which
// must be an object. A tool without a schema has no arguments.
func invalidSchema(param string, tool wireTool) *wireError {
	if len(tool.Function.Parameters) == 0 {
		return nil
	}
	var schema struct {
		Type any `json:"type"`
	}
	if err := json.Unmarshal(tool.Function.Parameters, &schema); err != nil || schema.Type != "object" {
		return refuse(param, "invalid_function_parameters",
			"Invalid schema for function '%s': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"%v\"'.",
			tool.Function.Name, schema.Type)
	}
	return nil
}

func invalidToolName(param, name string) *wireError {
	switch {
	case name == "":
		return missing(param)
	case len(name) > maxToolName:
		return tooLong(param, name, maxToolName)
	case !toolNamePattern.MatchString(name):
		return refuse(param, codeInvalid,
			"Invalid '%s': string does not match pattern. Expected a string that matches the pattern '%s'.", param, toolNameFormat)
	}
	return nil
}

// invalidToolMessages returns the error of the calls and results in a request's messages, or nil if they are valid.
// Each call must be answered exactly once, by the messages directly after it.
func invalidToolMessages(messages []wireMessage) *wireError {
	open := openCalls{}
	for i, m := range messages {
		if m.Role == "tool" {
			if e := open.answer(i, m); e != nil {
				return e
			}
			continue
		}
		if e := open.unanswered(i); e != nil {
			return e
		}
		open = openCalls{}
		if m.Role != "assistant" {
			continue
		}
		if m.Content == nil && len(m.ToolCalls) == 0 {
			return noContent(i)
		}
		if e := open.call(i, m.ToolCalls); e != nil {
			return e
		}
	}
	return open.unanswered(len(messages))
}

// openCalls are the calls of the previous assistant message.
type openCalls struct {
	// ids are the IDs of the calls, in order.
	ids []string
	// answers maps the ID of a call to the index of the message that answers it, or to a negative number.
	answers map[string]int
}

// call records the calls of the assistant message i. It returns the error of the first invalid call, or nil.
func (o *openCalls) call(i int, calls []sentToolCall) *wireError {
	o.answers = map[string]int{}
	for j, c := range calls {
		param := fmt.Sprintf("messages[%d].tool_calls[%d]", i, j)
		switch {
		case c.ID == "":
			return missing(param + ".id")
		case len(c.ID) > maxCallID:
			return tooLong(param+".id", c.ID, maxCallID)
		case c.Type != "function":
			return refuse(param+".type", codeInvalid, "Invalid value: '%s'. Supported values are: 'function'.", c.Type)
		case c.Function.Arguments == nil:
			return missing(param + ".function.arguments")
		case !isObject(*c.Function.Arguments):
			return refuse(param+".function.arguments", codeInvalid, "Invalid value: expected the text of a JSON object.")
		}
		if e := invalidToolName(param+".function.name", c.Function.Name); e != nil {
			return e
		}
		if _, twice := o.answers[c.ID]; twice {
			return refuse(param+".id", codeInvalid, "Duplicate value for 'id' of '%s' in messages[%d].tool_calls.", c.ID, i)
		}
		o.ids, o.answers[c.ID] = append(o.ids, c.ID), -1
	}
	return nil
}

// isObject reports whether the arguments of a call are a JSON object. OpenAI's API accepts any text. vLLM, Ollama
// and llama.cpp parse the arguments and reject the request if they are not an object.
func isObject(arguments string) bool {
	var object map[string]json.RawMessage
	return json.Unmarshal([]byte(arguments), &object) == nil && object != nil
}

// answer records the tool message i as the answer to a call. It returns an error if the message answers no open call.
func (o *openCalls) answer(i int, m wireMessage) *wireError {
	param := fmt.Sprintf("messages.[%d].tool_call_id", i)
	before, known := o.answers[m.ToolCallID]
	switch {
	case len(o.ids) == 0:
		return refuse(fmt.Sprintf("messages.[%d].role", i), "",
			"Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'.")
	case m.ToolCallID == "":
		return refuse(param, codeMissing, "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'.")
	case !known:
		return refuse(param, "", "Invalid parameter: 'tool_call_id' of '%s' not found in 'tool_calls' of previous message.", m.ToolCallID)
	case before >= 0:
		return refuse(param, "", "Invalid parameter: Duplicate value for 'tool_call_id' of '%s', in messages[%d] and messages[%d].",
			m.ToolCallID, before, i)
	case m.Content == nil:
		return noContent(i)
	}
	o.answers[m.ToolCallID] = i
	return nil
}

// unanswered returns the error for the calls that have no answer before message i, or nil if all have one.
func (o *openCalls) unanswered(i int) *wireError {
	var ids []string
	for _, id := range o.ids {
		if o.answers[id] < 0 {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return refuse(fmt.Sprintf("messages.[%d].role", i), "",
		"An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "+
			"The following tool_call_ids did not have response messages: %s", strings.Join(ids, ", "))
}

func noContent(i int) *wireError {
	return refuse(fmt.Sprintf("messages.[%d].content", i), "", "Invalid value for 'content': expected a string, got null.")
}

func missing(param string) *wireError {
	return refuse(param, codeMissing, "Missing required parameter: '%s'.", param)
}

func tooLong(param, text string, limit int) *wireError {
	return refuse(param, codeTooLong,
		"Invalid '%s': string too long. Expected a string with maximum length %d, but got a string with length %d instead.", param,
		limit, len(text))
}

// refuse returns the error of a bad request. If code is empty, the error's code is null.
func refuse(param, code, format string, args ...any) *wireError {
	e := &wireError{Type: typeInvalidRequest, Message: fmt.Sprintf(format, args...), Param: &param}
	if code != "" {
		e.Code = &code
	}
	return e
}
