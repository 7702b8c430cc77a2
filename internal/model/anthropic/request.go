package anthropic

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"slices"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// defaultOutput is the output limit for a model whose maximum is not known, in tokens. The protocol requires a limit,
// and all current models of Anthropic accept this one.
const defaultOutput = 8192

// minBudget is the minimum number of tokens for thinking that the protocol accepts.
const minBudget = 1024

// budgets are the numbers of tokens for thinking, by effort.
var budgets = map[string]int{"low": 2048, "medium": 8192, "high": 16384}

// answerTool is the name of the tool that the model calls to give an answer with a schema.
const answerTool = "give_final_answer"

const answerDescription = "Gives the final answer. Call it once you have all you need, with the whole answer as its arguments."

// messagesRequest is the body of a request. Its fields are sent in this order, from those that seldom change to those
// that each request changes. Vertex AI selects the cache of a request by the beginning of its body, so it would not
// find the cache of the last request behind longer messages: github.com/anthropics/anthropic-sdk-python/pull/1927.
type messagesRequest struct {
	Model        string        `json:"model"`
	Stream       bool          `json:"stream"`
	Tools        []tool        `json:"tools,omitempty"`
	System       []block       `json:"system,omitempty"`
	ToolChoice   *toolChoice   `json:"tool_choice,omitempty"`
	Thinking     *thinking     `json:"thinking,omitempty"`
	OutputConfig *outputConfig `json:"output_config,omitempty"`
	Temperature  *float64      `json:"temperature,omitempty"`
	Stop         []string      `json:"stop_sequences,omitempty"`
	ServiceTier  string        `json:"service_tier,omitempty"`
	MaxTokens    int           `json:"max_tokens"`
	Messages     []message     `json:"messages"`
}

type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema"`
	Strict      bool            `json:"strict,omitempty"`
	// Eager makes the endpoint send arguments while the model writes them. Without Eager, nothing arrives until an
	// argument is complete, which may take longer than the idle timeout. The endpoint does not check eager arguments,
	// but the loop does. Other servers may refuse the field: platform.claude.com, fine-grained tool streaming.
	Eager        bool          `json:"eager_input_streaming,omitempty"`
	CacheControl *cacheControl `json:"cache_control,omitempty"`
}

type toolChoice struct {
	Type            string `json:"type"`
	Name            string `json:"name,omitempty"`
	DisableParallel *bool  `json:"disable_parallel_tool_use,omitempty"`
}

type thinking struct {
	Type    string `json:"type"`
	Budget  int    `json:"budget_tokens,omitempty"`
	Display string `json:"display,omitempty"`
}

type outputConfig struct {
	Effort string        `json:"effort,omitempty"`
	Format *outputFormat `json:"format,omitempty"`
}

type outputFormat struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

// bodyOf returns the body of a request. The same request always gives the same bytes.
func bodyOf(req *model.Request, p *protocol, c *endpoint.Contents) ([]byte, error) {
	o := &p.options
	if unsupported := Check(req.Model, &req.Parameters, o); unsupported != nil {
		return nil, endpoint.Unsendable("%s", unsupported)
	}
	out := messagesRequest{Model: req.Model, Stream: true, Stop: req.Parameters.Stop, ServiceTier: req.Parameters.ServiceTier}
	out.System, out.Messages = messagesOf(req.Messages, c)
	if err := out.addTools(req, p); err != nil {
		return nil, err
	}
	if err := out.addOutput(req, o); err != nil {
		return nil, err
	}
	for i := range out.Tools {
		out.Tools[i].Eager = p.isAnthropic && !o.StrictSchemas
	}
	out.addParameters(req, o)
	out.markForCache(req)
	body, err := json.Marshal(&out)
	if err != nil {
		return nil, err
	}
	return endpoint.WithExtra(body, o.Extra, req.Parameters.Extra)
}

// addTools adds the tools. For a request without tools that has calls in its history, it declares the tools of these
// calls, but forbids new calls. Many servers refuse the request otherwise:
// github.com/anthropics/anthropic-sdk-python/issues/494. Anthropic itself receives all tools that must not be called,
// because it has them and the system prompt in its cache: platform.claude.com, tool use with prompt caching, and
// github.com/dust-tt/dust/pull/28498. Other servers may ignore the tool choice.
func (r *messagesRequest) addTools(req *model.Request, p *protocol) error {
	o, tools := &p.options, req.Offered()
	if p.isAnthropic {
		tools = req.Tools
	}
	for _, t := range tools {
		schema, err := toolSchema(t.Parameters, false)
		if err != nil {
			return endpoint.Unsendable("the parameters of tool %q are not a JSON object", t.Name)
		}
		r.Tools = append(r.Tools, tool{Name: t.Name, Description: t.Description, InputSchema: schema, Strict: o.StrictSchemas})
	}
	if len(req.Offered()) > 0 {
		if o.ParallelCalls != nil {
			isDisabled := !*o.ParallelCalls
			r.ToolChoice = &toolChoice{Type: "auto", DisableParallel: &isDisabled}
		}
		return nil
	}
	if len(r.Tools) == 0 {
		r.declareCalled(req.Messages)
	}
	if len(r.Tools) > 0 {
		r.ToolChoice = &toolChoice{Type: "none"}
	}
	return nil
}

// declareCalled adds a tool for each name in the calls of messages.
func (r *messagesRequest) declareCalled(messages []model.Message) {
	declared := map[string]bool{}
	for i := range messages {
		for _, call := range messages[i].ToolCalls {
			if name := endpoint.ToolName(call.Name); !declared[name] {
				declared[name] = true
				r.Tools = append(r.Tools, tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)})
			}
		}
	}
}

// propertyName matches the names of properties that the protocol accepts. One other name makes it refuse all tools.
var propertyName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// toolSchema returns a schema in the form that the protocol accepts: with a type, and at the top level without
// alternatives and without properties whose names it refuses. The loop checks arguments with the whole schema. The
// schema of an answer keeps its properties: an answer without them would be paid for and rejected.
func toolSchema(schema json.RawMessage, isAnswer bool) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if len(schema) > 0 {
		if err := json.Unmarshal(schema, &fields); err != nil {
			return nil, err
		}
	}
	isObject := string(fields["type"]) == `"object"`
	for _, name := range []string{"oneOf", "anyOf", "allOf"} {
		_, refused := fields[name]
		isObject = isObject && !refused
		delete(fields, name)
	}
	if (isAnswer || !dropProperties(fields)) && isObject {
		return schema, nil
	}
	if fields == nil { // the schema is null
		fields = map[string]json.RawMessage{}
	}
	fields["type"] = json.RawMessage(`"object"`)
	return json.Marshal(fields)
}

// dropProperties removes the properties whose names the protocol refuses, and reports whether there were any.
func dropProperties(fields map[string]json.RawMessage) bool {
	var properties map[string]json.RawMessage
	if json.Unmarshal(fields["properties"], &properties) != nil {
		return false // the schema has no properties
	}
	all := len(properties)
	maps.DeleteFunc(properties, func(name string, _ json.RawMessage) bool { return !propertyName.MatchString(name) })
	if len(properties) == all {
		return false
	}
	fields["properties"], _ = json.Marshal(properties) // which never fails for values that were JSON
	var required []string
	if json.Unmarshal(fields["required"], &required) == nil {
		required = slices.DeleteFunc(required, func(name string) bool { return !propertyName.MatchString(name) })
		fields["required"], _ = json.Marshal(required) // likewise
	}
	return true
}

// answersWithTool reports whether the answer's schema is sent as a tool. A tool accepts every schema of an object,
// while output_config accepts only a part of JSON Schema.
func answersWithTool(req *model.Request, o *Options) bool {
	var schema struct {
		Type string `json:"type"`
	}
	if len(req.Output) == 0 || o.StrictSchemas || json.Unmarshal(req.Output, &schema) != nil || schema.Type != "object" {
		return false
	}
	for _, t := range req.Tools {
		if t.Name == answerTool {
			return false
		}
	}
	return true
}

// addOutput adds the schema of the answer.
func (r *messagesRequest) addOutput(req *model.Request, o *Options) error {
	switch {
	case len(req.Output) == 0:
		return nil
	case !json.Valid(req.Output):
		return endpoint.Unsendable("the schema of the answer is not JSON")
	case !answersWithTool(req, o):
		r.OutputConfig = &outputConfig{Format: &outputFormat{Type: "json_schema", Schema: req.Output}}
		return nil
	}
	schema, err := toolSchema(req.Output, true)
	if err != nil {
		return endpoint.Unsendable("the schema of the answer is not a JSON object")
	}
	r.Tools = append(r.Tools, tool{Name: answerTool, Description: answerDescription, InputSchema: schema})
	if len(req.Offered()) == 0 {
		r.ToolChoice = &toolChoice{Type: "tool", Name: answerTool}
		return nil
	}
	if r.ToolChoice == nil {
		r.ToolChoice = &toolChoice{}
	}
	r.ToolChoice.Type = "any"
	return nil
}

// outputLimit returns the output limit that the parameters or the model give a request, the lower one if both do, or 0
// if they give none.
func (o *Options) outputLimit(name string, p *model.Parameters) int {
	limit := o.MaxOutput[name]
	if own := p.MaxOutputTokens; own != nil && (limit == 0 || *own < limit) {
		return *own
	}
	return limit
}

// DefaultOutput returns the output limit of a request whose parameters have none. It includes the tokens for thinking
// with this effort.
func (o *Options) DefaultOutput(name, effort string) int {
	if limit := o.MaxOutput[name]; limit > 0 {
		return limit
	}
	if o.isAdaptive(name) {
		return defaultOutput
	}
	return defaultOutput + budgets[effort]
}

// addParameters adds the limit of the reply, the temperature and the setting for reasoning. With reasoning, it lets the
// model decide whether to call a tool, because the protocol refuses a tool choice that forces a call.
func (r *messagesRequest) addParameters(req *model.Request, o *Options) {
	limit := cmp.Or(req.OutputLimit, o.outputLimit(req.Model, &req.Parameters))
	isKnown := limit > 0
	if !isKnown {
		limit = defaultOutput
	}
	switch effort := req.Parameters.Effort; {
	case effort == "":
	case effort == model.EffortNone: // platform.claude.com, thinking: some models think unless it is disabled
		r.Thinking = &thinking{Type: "disabled"}
	case o.isAdaptive(req.Model):
		r.Thinking = &thinking{Type: "adaptive", Display: "summarized"} // otherwise nothing arrives while the model thinks
		if r.OutputConfig == nil {
			r.OutputConfig = &outputConfig{}
		}
		r.OutputConfig.Effort = effort
	case mayHaveThinkingBudget(req.Messages):
		budget := budgets[effort]
		if isKnown {
			budget = min(budget, limit/2) // the limit includes the thoughts
		} else {
			limit += budget
		}
		if budget >= minBudget { // less only if the request lowers the output limit
			r.Thinking = &thinking{Type: "enabled", Budget: budget}
		}
	}
	r.MaxTokens, r.Temperature = limit, req.Parameters.Temperature
	if r.Thinking != nil && thinks(&req.Parameters) && r.ToolChoice != nil && (r.ToolChoice.Type == "any" || r.ToolChoice.Type == "tool") {
		r.ToolChoice.Type, r.ToolChoice.Name = "auto", ""
	}
}
