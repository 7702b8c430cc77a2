package v1alpha1

// Dialect names a server or a service whose form of the chat-completions protocol is known.
// +kubebuilder:validation:Enum=Generic;OpenAI;AzureOpenAI;VLLM;SGLang;Ollama;LlamaCpp;LMStudio;LiteLLM;Mistral;
// + DeepSeek;Moonshot;Gemini;OpenRouter;XAI;Groq;Cohere;Bedrock
type Dialect string

// The dialects.
const (
	// DialectGeneric is the form that most servers accept.
	DialectGeneric     Dialect = "Generic"
	DialectOpenAI      Dialect = "OpenAI"
	DialectAzureOpenAI Dialect = "AzureOpenAI"
	DialectVLLM        Dialect = "VLLM"
	DialectSGLang      Dialect = "SGLang"
	DialectOllama      Dialect = "Ollama"
	DialectLlamaCpp    Dialect = "LlamaCpp"
	DialectLMStudio    Dialect = "LMStudio"
	DialectLiteLLM     Dialect = "LiteLLM"
	DialectMistral     Dialect = "Mistral"
	DialectDeepSeek    Dialect = "DeepSeek"
	DialectMoonshot    Dialect = "Moonshot"
	DialectGemini      Dialect = "Gemini"
	DialectOpenRouter  Dialect = "OpenRouter"
	DialectXAI         Dialect = "XAI"
	DialectGroq        Dialect = "Groq"
	DialectCohere      Dialect = "Cohere"
	// DialectBedrock is Amazon Bedrock behind a gateway, or its own chat-completions endpoint.
	DialectBedrock Dialect = "Bedrock"
)

// Switch turns a part of a request on or off.
// +kubebuilder:validation:Enum="On";"Off"
type Switch string

// The values of a Switch.
const (
	SwitchOn  Switch = "On"
	SwitchOff Switch = "Off"
)

// RequestOptions set the form of requests. Each field replaces one setting of the dialect.
type RequestOptions struct {
	// outputLimit is the name of the parameter that limits the tokens of a reply: MaxTokens (max_tokens), or
	// MaxCompletionTokens (max_completion_tokens).
	// +optional
	OutputLimit OutputLimit `json:"outputLimit,omitempty"`

	// systemMessages says where system messages may be. InPlace: anywhere. BeforeReplies: only before the first message
	// of the assistant or of a tool; later system messages are merged into one, which follows the first system
	// messages. Merged: all are merged into one message at the front. With BeforeReplies and Merged, system messages at
	// the end of the conversation that follow a message of the assistant are sent as user messages.
	// +optional
	SystemMessages SystemMessages `json:"systemMessages,omitempty"`

	// messageNames says whether system messages are sent with names, such as system_prompt.
	// +optional
	MessageNames Switch `json:"messageNames,omitempty"`

	// streamOptions says whether requests have the parameter stream_options, which asks the endpoint for the usage at
	// the end of a reply.
	// +optional
	StreamOptions Switch `json:"streamOptions,omitempty"`

	// toolCallIDs is the form of the call IDs in requests. Any: as the model sent them, up to 40 characters. Plain: up
	// to 40 letters, digits, '_' and '-'. NineCharacters: 9 letters and digits. IDs of another form are replaced.
	// +optional
	ToolCallIDs ToolCallIDForm `json:"toolCallIDs,omitempty"`

	// strictSchemas says whether the schemas of tools and of the answer are marked as strict. Servers accept only a
	// part of JSON Schema in strict schemas. With the type Anthropic, unless strictSchemas is On, the schema of the
	// answer is sent as the schema of a tool, which the model calls to answer.
	// +optional
	StrictSchemas Switch `json:"strictSchemas,omitempty"`

	// parallelToolCalls says whether the model may request several calls in one reply. It is sent as
	// parallel_tool_calls, or as disable_parallel_tool_use with the type Anthropic, in requests with tools. Without
	// this field, the parameter is not sent.
	// +optional
	ParallelToolCalls Switch `json:"parallelToolCalls,omitempty"`

	// developerRole says whether system messages are sent with the role developer.
	// +optional
	DeveloperRole Switch `json:"developerRole,omitempty"`

	// returnedData says which data of a reply with tool calls is sent back in later requests, in addition to the text
	// and the calls. Nothing: no other data. ReasoningContent: the text of the reasoning, as reasoning_content.
	// ReasoningDetails: the blocks of reasoning_details, which may be signed. ThoughtSignatures: the extra_content of
	// each call. The data is sent only to the model that made the reply.
	// +optional
	ReturnedData ReturnedData `json:"returnedData,omitempty"`

	// apiVersion is the version of Azure's deployment-based API, such as 2024-10-21, for baseURLs like
	// https://example.openai.azure.com/openai. With apiVersion, requests go to deployments/NAME, where NAME is the
	// model of the Agent, and the key is sent in the header Api-Key. Without apiVersion, the dialect AzureOpenAI uses
	// Azure's newer API, which needs none: baseURL must then end with /openai/v1. Other dialects must not set
	// apiVersion.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(-[a-z0-9]+)?$")`,
	// + message="apiVersion must be a date, such as 2024-10-21 or 2025-04-01-preview"
	APIVersion string `json:"apiVersion,omitempty"`

	// thinking is the form of the setting for reasoning. With the type OpenAI, Effort: reasoning_effort, the default of
	// most dialects. Switch: thinking with the type enabled, the default of Moonshot. ChatTemplate: enable_thinking in
	// chat_template_kwargs, for models such as Qwen on servers such as vLLM. With the type Anthropic, Budget: a number
	// of tokens, for Claude models up to version 4.5 and for models that are not from Anthropic. Adaptive: the effort;
	// the model decides about the number of tokens. Default with the type Anthropic: by the name of the model.
	// +optional
	Thinking ThinkingForm `json:"thinking,omitempty"`

	// answerSchemas says which requests may send the schema of the answer in response_format. Always: all requests.
	// WithoutTools: requests without tools, for endpoints that reject a schema together with tools, or whose models
	// then call no tools. Never: no requests. In all other requests, the schema is in the prompt.
	// +optional
	AnswerSchemas AnswerSchemas `json:"answerSchemas,omitempty"`

	// answerSchemaForm is the form of the schema in response_format. JSONSchema: in json_schema, with the type
	// json_schema. JSONObject: in schema, with the type json_object.
	// +optional
	AnswerSchemaForm AnswerSchemaForm `json:"answerSchemaForm,omitempty"`

	// seed is the name of the parameter for a seed. Seed: seed. RandomSeed: random_seed. None: the endpoint has no such
	// parameter, so a seed in an Agent is rejected.
	// +optional
	Seed SeedParameter `json:"seed,omitempty"`

	// serviceTiers says whether the endpoint has service tiers. On: the endpoint decides which names it accepts. Off: a
	// serviceTier in an Agent is rejected.
	// +optional
	ServiceTiers Switch `json:"serviceTiers,omitempty"`

	// stopSequences says whether the models of the endpoint accept stop sequences. On: they are sent to every model.
	// Off: stopSequences in an Agent are rejected.
	// +optional
	StopSequences Switch `json:"stopSequences,omitempty"`

	// endMarks says whether the endpoint marks the end of each answer with a finish reason or [DONE]. On: an answer
	// without either counts as cut off. Off: an answer is complete if the HTTP response ends properly.
	// +optional
	EndMarks Switch `json:"endMarks,omitempty"`

	// images says whether the endpoint accepts images, in data URLs, for models with the capability Images.
	// +optional
	Images Switch `json:"images,omitempty"`

	// files says whether the endpoint accepts PDFs, in data URLs, for models with the capability Files.
	// +optional
	Files Switch `json:"files,omitempty"`

	// extraFields are further fields of the request's body, at most 16, such as top_k or chat_template_kwargs. They
	// cannot replace the fields that Capstan sends.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ExtraFields []ExtraField `json:"extraFields,omitempty"`
}

// AnswerSchemas says which requests may have the schema of an answer.
// +kubebuilder:validation:Enum=Always;WithoutTools;Never
type AnswerSchemas string

// The requests that may have the schema of an answer.
const (
	AnswerSchemasAlways       AnswerSchemas = "Always"
	AnswerSchemasWithoutTools AnswerSchemas = "WithoutTools"
	AnswerSchemasNever        AnswerSchemas = "Never"
)

// AnswerSchemaForm is the form of the schema of an answer.
// +kubebuilder:validation:Enum=JSONSchema;JSONObject
type AnswerSchemaForm string

// The forms of the schema of an answer.
const (
	AnswerSchemaFormJSONSchema AnswerSchemaForm = "JSONSchema"
	AnswerSchemaFormJSONObject AnswerSchemaForm = "JSONObject"
)

// SeedParameter names the parameter for a seed.
// +kubebuilder:validation:Enum=Seed;RandomSeed;None
type SeedParameter string

// The names of the parameter for a seed.
const (
	SeedParameterSeed       SeedParameter = "Seed"
	SeedParameterRandomSeed SeedParameter = "RandomSeed"
	SeedParameterNone       SeedParameter = "None"
)

// ThinkingForm is a form of the setting for reasoning.
// +kubebuilder:validation:Enum=Budget;Adaptive;Effort;Switch;ChatTemplate
type ThinkingForm string

// The forms of the setting for reasoning.
const (
	ThinkingFormBudget       ThinkingForm = "Budget"
	ThinkingFormAdaptive     ThinkingForm = "Adaptive"
	ThinkingFormEffort       ThinkingForm = "Effort"
	ThinkingFormSwitch       ThinkingForm = "Switch"
	ThinkingFormChatTemplate ThinkingForm = "ChatTemplate"
)

// OutputLimit names the parameter that limits the tokens of a reply.
// +kubebuilder:validation:Enum=MaxTokens;MaxCompletionTokens
type OutputLimit string

// The names of the output limit.
const (
	OutputLimitMaxTokens           OutputLimit = "MaxTokens"
	OutputLimitMaxCompletionTokens OutputLimit = "MaxCompletionTokens"
)

// SystemMessages says where system messages may be.
// +kubebuilder:validation:Enum=InPlace;BeforeReplies;Merged
type SystemMessages string

// The places of system messages.
const (
	SystemMessagesInPlace       SystemMessages = "InPlace"
	SystemMessagesBeforeReplies SystemMessages = "BeforeReplies"
	SystemMessagesMerged        SystemMessages = "Merged"
)

// ToolCallIDForm is the form of the IDs of calls.
// +kubebuilder:validation:Enum=Any;Plain;NineCharacters
type ToolCallIDForm string

// The forms of the IDs of calls.
const (
	ToolCallIDsAny            ToolCallIDForm = "Any"
	ToolCallIDsPlain          ToolCallIDForm = "Plain"
	ToolCallIDsNineCharacters ToolCallIDForm = "NineCharacters"
)

// ReturnedData is a part of a reply that is sent back.
// +kubebuilder:validation:Enum=Nothing;ReasoningContent;ReasoningDetails;ThoughtSignatures
type ReturnedData string

// The parts of a reply that can be sent back.
const (
	ReturnedDataNothing           ReturnedData = "Nothing"
	ReturnedDataReasoningContent  ReturnedData = "ReasoningContent"
	ReturnedDataReasoningDetails  ReturnedData = "ReasoningDetails"
	ReturnedDataThoughtSignatures ReturnedData = "ThoughtSignatures"
)

// ExtraField is a further field of a request's body.
type ExtraField struct {
	// name is the name of the field, 1 to 64 letters, digits, '_', '-' and '.'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9_.-]+$")`,
	// + message="name must consist of letters, digits, '_', '-' and '.'"
	// +kubebuilder:validation:XValidation:rule="!(self.lowerAscii() in ['model', 'messages', 'stream',
	// +  'stream_options', 'tools', 'tool_choice', 'functions', 'function_call', 'response_format', 'max_tokens',
	// +  'max_completion_tokens', 'temperature', 'reasoning_effort', 'parallel_tool_calls', 'n'])",
	// + message="name must not be a field that Capstan sends or depends on: use the Agent's parameters and the other
	// +  fields of requests"
	Name string `json:"name"`

	// value is the value of the field as JSON, 1 to 4096 characters, such as 20 or {"enable_thinking": false}.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value"`
}
