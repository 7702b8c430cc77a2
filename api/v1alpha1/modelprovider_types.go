package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ProviderType is the wire protocol of an endpoint.
// +kubebuilder:validation:Enum=OpenAI;Anthropic
type ProviderType string

// The protocols.
const (
	// ProviderTypeOpenAI is the chat-completions protocol of OpenAI, which many other servers offer, too.
	ProviderTypeOpenAI ProviderType = "OpenAI"
	// ProviderTypeAnthropic is the Messages protocol of Anthropic.
	ProviderTypeAnthropic ProviderType = "Anthropic"
)

// ModelProviderSpec defines an endpoint for models: its address, its credentials and its prices.
// +kubebuilder:validation:XValidation:rule="!has(self.workloadToken) || !has(self.credentialsRef)",
// + message="workloadToken and credentialsRef exclude each other: remove one of them",fieldPath=".workloadToken"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || !has(self.tls.clientCertificateRef)
// +  || self.baseURL.lowerAscii().startsWith('https:')",
// + message="a client certificate needs TLS: set baseURL to an https URL",fieldPath=".tls.clientCertificateRef"
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.dialect) || self.dialect != 'Mistral'
// +  || ((!has(self.requests.systemMessages) || self.requests.systemMessages != 'InPlace')
// +  && (!has(self.requests.messageNames) || self.requests.messageNames != 'On') && (!has(self.requests.toolCallIDs)
// +  || self.requests.toolCallIDs == 'NineCharacters') && (!has(self.requests.returnedData)
// +  || self.requests.returnedData == 'Nothing'))",
// + message="Mistral refuses system messages after replies, names of messages, IDs of calls in another form and
// +  returned data: remove systemMessages, messageNames, toolCallIDs or returnedData, or use the dialect Generic",
// + fieldPath=".requests"
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.dialect) || self.dialect != 'XAI'
// +  || !has(self.requests.messageNames) || self.requests.messageNames != 'On'",
// + message="xAI refuses names of messages: remove messageNames, or use the dialect Generic",
// + fieldPath=".requests.messageNames"
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.dialect)
// +  || !(self.dialect in ['Mistral', 'DeepSeek']) || !has(self.requests.developerRole)
// +  || self.requests.developerRole != 'On'",
// + message="Mistral and DeepSeek refuse the role developer: remove developerRole, or use the dialect Generic",
// + fieldPath=".requests.developerRole"
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.dialect) || self.dialect != 'Cohere'
// +  || !has(self.requests.strictSchemas) || self.requests.strictSchemas != 'On'",
// + message="Cohere refuses strict schemas: remove strictSchemas, or use the dialect Generic",
// + fieldPath=".requests.strictSchemas"
// +kubebuilder:validation:XValidation:rule="self.type == 'OpenAI' || !has(self.dialect)",
// + message="only the type OpenAI has dialects: remove dialect",fieldPath=".dialect"
// +kubebuilder:validation:XValidation:rule="self.type == 'OpenAI' || !has(self.requests)
// +  || (!has(self.requests.outputLimit) && !has(self.requests.systemMessages) && !has(self.requests.messageNames)
// +  && !has(self.requests.streamOptions) && !has(self.requests.toolCallIDs) && !has(self.requests.developerRole)
// +  && !has(self.requests.returnedData) && !has(self.requests.answerSchemas) && !has(self.requests.answerSchemaForm)
// +  && !has(self.requests.seed) && !has(self.requests.serviceTiers) && !has(self.requests.stopSequences)
// +  && !has(self.requests.endMarks))",
// + message="the type Anthropic has one form of these: remove outputLimit, systemMessages, messageNames, streamOptions,
// +  toolCallIDs, developerRole, returnedData, answerSchemas, answerSchemaForm, seed, serviceTiers, stopSequences and
// +  endMarks",fieldPath=".requests"
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.requests.thinking)
// +  || (self.type == 'Anthropic') == (self.requests.thinking in ['Budget', 'Adaptive'])",
// + message="thinking must be Budget or Adaptive with the type Anthropic, and Effort, Switch or ChatTemplate with the
// +  type OpenAI",fieldPath=".requests.thinking"
// +kubebuilder:validation:XValidation:rule="self.type != 'Anthropic' || !has(self.requests)
// +  || !has(self.requests.extraFields) || !self.requests.extraFields.exists(f, f.name.lowerAscii() in ['system',
// +  'thinking', 'output_config', 'cache_control'])",
// + message="extraFields must not set system, thinking, output_config or cache_control, which Capstan sends: use the
// +  Agent's parameters and the other fields of requests",fieldPath=".requests.extraFields"
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.requests.apiVersion) || (has(self.dialect)
// +  && self.dialect == 'AzureOpenAI')",message="only Azure has versions of the API: set dialect to AzureOpenAI, or
// +  remove apiVersion",fieldPath=".requests.apiVersion"
type ModelProviderSpec struct {
	// type is the protocol of the endpoint. OpenAI: chat completions over HTTP, as offered by OpenAI and by most
	// servers of open models. Anthropic: the Messages protocol of Anthropic.
	// +required
	Type ProviderType `json:"type"`

	// baseURL is the URL of the endpoint, with the scheme http or https, up to and including the version path, such
	// as https://llm.internal/v1. It must not contain credentials, a query or a fragment.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https']
	// +  && url(self).getHostname() != ''",message="baseURL must be an http or https URL with a host, such as
	// +  https://llm.internal/v1"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/]*//[^/]*@') && !self.contains('?')
	// +  && !self.contains('#')",
	// + message="baseURL must not contain credentials, a query or a fragment: use credentialsRef for a key"
	BaseURL string `json:"baseURL"`

	// dialect names the server or service behind the endpoint. Servers accept different forms of the chat-completions
	// protocol, and the dialect sets the form of the requests. Generic is the form that most servers accept. Default:
	// the dialect of the service, if the host of baseURL belongs to OpenAI, AzureOpenAI, Mistral, DeepSeek, Moonshot,
	// Gemini, OpenRouter, XAI, Groq, Cohere or Bedrock; otherwise Generic. Only the type OpenAI has dialects.
	// +optional
	Dialect Dialect `json:"dialect,omitempty"`

	// requests replaces settings of the dialect, for an endpoint that needs another form of requests.
	// +optional
	Requests *RequestOptions `json:"requests,omitempty"`

	// allowedNamespaces says which other namespaces may use the provider in their Agents. They cannot read its Secrets.
	// Default: none. If a namespace is no longer allowed, that takes effect at the next request.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`

	// credentialsRef names the Secret key with the API key, which is sent as a bearer token, or in the header X-Api-Key
	// if the type is Anthropic. Omit it if the endpoint requires no key.
	// +optional
	CredentialsRef *SecretKeyReference `json:"credentialsRef,omitempty"`

	// workloadToken is the name of a workload identity token, 1 to 63 characters. The token is sent as a bearer token,
	// in place of the key in credentialsRef. The operator of the cluster offers tokens to a namespace, each for certain
	// hosts, with the manager's flag --workload-tokens. A renewed token is used within 10 seconds.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",
	// + message="workloadToken must be a lower-case DNS label: letters, digits and '-', starting and ending with a
	// +  letter or digit"
	WorkloadToken string `json:"workloadToken,omitempty"`

	// headers are sent with every request to the endpoint, at most 16. They cannot replace Authorization.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(h, self.exists_one(other, other.name.lowerAscii() ==
	// +  h.name.lowerAscii()))",message="headers must not repeat a name: upper and lower case are the same in HTTP"
	Headers []Header `json:"headers,omitempty"`

	// tls names certificate authorities that are trusted in addition to those of the system, and the certificate by
	// which Capstan identifies itself.
	// +optional
	TLS *ClientTLS `json:"tls,omitempty"`

	// models declares models of the endpoint with their prices and properties, at most 64. Models that are not listed
	// can be used too; the cost of Turns on them is unknown, unless Capstan's table of list prices has them.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Models []Model `json:"models,omitempty"`

	// retry says how failed requests are repeated. Only requests that failed for a temporary reason are repeated: rate
	// limit, overload, time-out, network error or malformed reply. A failed request that the endpoint may bill, such as
	// one that timed out after it was sent, is repeated at most once. All attempts stay within the Turn's deadline.
	// +optional
	// +kubebuilder:default={}
	Retry RetryPolicy `json:"retry,omitzero"`

	// timeouts limit the time of one request to the endpoint.
	// +optional
	// +kubebuilder:default={}
	Timeouts ProviderTimeouts `json:"timeouts,omitzero"`

	// limits bound the requests to all models of the endpoint together. A Turn whose request must wait is Queued.
	// Without limits here, only the limits that the endpoint states in its answers apply.
	// +optional
	Limits *RateLimits `json:"limits,omitempty"`
}

// RateLimits bound requests to an endpoint. They apply to all executors together: each executor has an equal share. The
// share of maxConcurrentRequests is rounded down, but is at least 1.
// +kubebuilder:validation:MinProperties=1
type RateLimits struct {
	// requestsPerMinute is the maximum number of requests in a minute, from 1 to 10000000. Requests are spread evenly
	// over the minute.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	RequestsPerMinute *int64 `json:"requestsPerMinute,omitempty"`

	// tokensPerMinute is the maximum number of tokens in a minute, of prompts and replies together, from 1 to
	// 1000000000000. A prompt counts with its estimated size before its request is sent; the real usage counts
	// afterwards.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000000
	TokensPerMinute *int64 `json:"tokensPerMinute,omitempty"`

	// maxConcurrentRequests is the maximum number of requests that run at the same time, from 1 to 1000000.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxConcurrentRequests *int64 `json:"maxConcurrentRequests,omitempty"`
}

// Header is an HTTP header whose value is given here or in a Secret.
// +kubebuilder:validation:XValidation:rule="has(self.value) != has(self.valueFrom)",
// + message="exactly one of value and valueFrom must be given"
type Header struct {
	// name is the name of the header, 1 to 128 characters. These headers are rejected, in upper and lower case, and
	// also with '_' instead of '-': headers of the connection and the message, such as Host, Connection, Content-Type
	// and Accept-Encoding; headers of identities (Authorization, Cookie, Proxy-..., Impersonate-..., X-Remote-...); and
	// headers of the request's origin (Forwarded, Via, X-Forwarded-..., X-Real-IP).
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9!#$%&'*+.^_|~-]+$")`,
	// + message="name must be the name of an HTTP header: letters, digits and !#$%&'*+.^_|~-"
	// +kubebuilder:validation:XValidation:rule=`!self.lowerAscii().replace('_',
	// +  '-').matches(r"^(authorization|cookie2?|set-cookie2?|host|proxy-.*|connection|keep-alive|te|trailer|
	// + transfer-encoding|upgrade|expect|content-(length|type|encoding)|accept-encoding|forwarded|via|
	// + x-forwarded(-.*)?|x-real-ip|x-client-ip|x-cluster-client-ip|true-client-ip|cf-connecting-ip|x-original-.*|
	// + x-rewrite-url|x-envoy-.*|x-remote-.*|impersonate-.*)$")`,
	// + message="name must not be authorization (use credentialsRef), cookie, host, a header of the connection or the
	// +  message, such as content-type, or a header about users or origins, such as x-forwarded-for"
	Name string `json:"name"`

	// value is the value of the header, at most 4096 printable ASCII characters. For a secret value, use valueFrom.
	// Exactly one of value and valueFrom must be given.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[\t\x20-\x7e]*$")`,
	// + message="value must consist of printable ASCII characters"
	Value *string `json:"value,omitempty"`

	// valueFrom reads the value from a Secret.
	// +optional
	ValueFrom *HeaderSource `json:"valueFrom,omitempty"`
}

// HeaderSource refers to the value of a header.
type HeaderSource struct {
	// secretKeyRef names the Secret key with the value.
	// +required
	SecretKeyRef SecretKeyReference `json:"secretKeyRef"`
}

// Model describes one model of an endpoint.
type Model struct {
	// name is the name of the model, as the endpoint knows it, 1 to 256 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`

	// contextWindow is the number of tokens that the model accepts, prompt and reply together, from 1 to 100000000.
	// Without it, a conversation is shortened only after the endpoint has reported that it is too long.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000000
	ContextWindow *int64 `json:"contextWindow,omitempty"`

	// maxOutputTokens is the maximum number of tokens in a reply, from 1 to 100000000. It limits how much of the
	// context window is reserved for the reply.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000000
	MaxOutputTokens *int64 `json:"maxOutputTokens,omitempty"`

	// capabilities are abilities of the model. StructuredOutput: it can restrict its answer to a JSON Schema.
	// Reasoning: it has a setting for the amount of reasoning. ReasoningOff: it has a setting that turns reasoning off,
	// which is sent if the Agent's thinking is Off. Images: it accepts images. Files: it accepts PDFs. Tools and
	// Streaming are assumed for every model and need not be listed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	Capabilities []ModelCapability `json:"capabilities,omitempty"`

	// limits bound the requests to this model, in addition to the limits of the provider.
	// +optional
	Limits *RateLimits `json:"limits,omitempty"`

	// pricing is the price of tokens, from which the cost of a Turn is computed. Default: the list price in Capstan's
	// table if the host of baseURL is that of a public service. If neither is known, the cost of a Turn on this model
	// is unknown.
	// +optional
	Pricing *Pricing `json:"pricing,omitempty"`
}

// ModelCapability is an ability of a model.
// +kubebuilder:validation:Enum=Tools;Streaming;StructuredOutput;Reasoning;ReasoningOff;Images;Files
type ModelCapability string

// The capabilities of models.
const (
	CapabilityTools            ModelCapability = "Tools"
	CapabilityStreaming        ModelCapability = "Streaming"
	CapabilityStructuredOutput ModelCapability = "StructuredOutput"
	CapabilityReasoning        ModelCapability = "Reasoning"
	CapabilityReasoningOff     ModelCapability = "ReasoningOff"
	CapabilityImages           ModelCapability = "Images"
	CapabilityFiles            ModelCapability = "Files"
)

// Pricing is the price of a million tokens of a model.
type Pricing struct {
	// currency is the currency of the prices, as an ISO 4217 code. Default USD.
	// +optional
	// +kubebuilder:default=USD
	// +kubebuilder:validation:MaxLength=3
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Z]{3}$")`,message="currency must be an ISO 4217 code, such as USD"
	Currency string `json:"currency,omitempty"`

	// inputPerMillion is the price of a million input tokens that were not read from a cache, as a decimal.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,9}(\.[0-9]{1,9})?$")`,
	// + message="inputPerMillion must be a decimal with at most 9 digits before and 9 after the point, such as 0.25"
	InputPerMillion string `json:"inputPerMillion"`

	// outputPerMillion is the price of a million output tokens, as a decimal.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,9}(\.[0-9]{1,9})?$")`,
	// + message="outputPerMillion must be a decimal with at most 9 digits before and 9 after the point, such as 0.25"
	OutputPerMillion string `json:"outputPerMillion"`

	// cacheReadPerMillion is the price of a million input tokens that were read from the provider's cache, as a
	// decimal. Default: inputPerMillion.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,9}(\.[0-9]{1,9})?$")`,
	// + message="cacheReadPerMillion must be a decimal with at most 9 digits before and 9 after the point, such as
	// +  0.25"
	CacheReadPerMillion *string `json:"cacheReadPerMillion,omitempty"`

	// cacheWritePerMillion is the price of a million input tokens that were written to the provider's cache, as a
	// decimal. Default: inputPerMillion.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,9}(\.[0-9]{1,9})?$")`,
	// + message="cacheWritePerMillion must be a decimal with at most 9 digits before and 9 after the point, such as
	// +  0.25"
	CacheWritePerMillion *string `json:"cacheWritePerMillion,omitempty"`

	// reasoningPerMillion is the price of a million output tokens that the model uses for reasoning, as a decimal.
	// Default: outputPerMillion.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,9}(\.[0-9]{1,9})?$")`,
	// + message="reasoningPerMillion must be a decimal with at most 9 digits before and 9 after the point, such as
	// +  0.25"
	ReasoningPerMillion *string `json:"reasoningPerMillion,omitempty"`
}

// RetryPolicy limits how often and how fast a request is repeated. Waits grow exponentially from
// initialBackoffMilliseconds to maxBackoffSeconds, with jitter. If the endpoint asks for a longer wait, for example
// with the header Retry-After, that wait applies.
// +kubebuilder:validation:XValidation:rule="!has(self.initialBackoffMilliseconds) || !has(self.maxBackoffSeconds)
// +  || self.initialBackoffMilliseconds <= self.maxBackoffSeconds * 1000",
// + message="initialBackoffMilliseconds must be at most maxBackoffSeconds",fieldPath=".initialBackoffMilliseconds"
type RetryPolicy struct {
	// maxAttempts is the maximum number of times that one request is sent, from 1 (no retry) to 10. Default 4.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	MaxAttempts int32 `json:"maxAttempts,omitempty"`

	// initialBackoffMilliseconds is the wait before the second attempt, in milliseconds, from 10 to 60000. Default
	// 500.
	// +optional
	// +kubebuilder:default=500
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	InitialBackoffMilliseconds int32 `json:"initialBackoffMilliseconds,omitempty"`

	// maxBackoffSeconds is the longest wait between two attempts, in seconds, from 1 to 300. Default 20.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	MaxBackoffSeconds int32 `json:"maxBackoffSeconds,omitempty"`
}

// ProviderTimeouts limit the time of one request. Answers are streamed, so the Turn's deadline alone limits the
// total time.
type ProviderTimeouts struct {
	// connectSeconds is the time limit for connecting to the endpoint, including TLS, in seconds, from 1 to 60.
	// Default 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	ConnectSeconds int32 `json:"connectSeconds,omitempty"`

	// firstEventSeconds is the maximum time from a request to the first part of its answer, in seconds, from 1 to 3600.
	// By default, a request may wait until the deadline of its Turn, or for half of the time that is left if the chain
	// has another model. In spite of the field's name, an event without a part of the answer does not end this time.
	// Comments and single bytes do not count either.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	FirstEventSeconds *int32 `json:"firstEventSeconds,omitempty"`

	// idleSeconds is the maximum time between two parts of an answer, in seconds, from 1 to 600. Default 60. Each ping
	// event restarts this time, so with pings, up to ten times idleSeconds may pass between two parts. Comments and
	// single bytes do not count as parts of an answer.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
}

// ModelProviderStatus is the result of the last check of an endpoint.
type ModelProviderStatus struct {
	// observedGeneration is the generation of the spec that this status describes. It is -1 before the first
	// reconciliation.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the conditions of the provider. Ready is True if its Secrets exist and the endpoint answered the
	// last probe. Stalled is True if only a change of the spec can make the provider Ready, and absent otherwise.
	// Available is False while a circuit breaker holds requests back.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",
	// + message="each lastTransitionTime must be a time"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ModelProvider is an endpoint that serves models: its protocol, address, credentials and prices.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=mp,categories=capstan
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="URL",type=string,priority=1,JSONPath=`.spec.baseURL`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ModelProvider struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec defines the endpoint.
	// +required
	Spec ModelProviderSpec `json:"spec"`

	// status is the result of the last check of the endpoint.
	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status ModelProviderStatus `json:"status,omitzero"`
}

// ModelProviderList is a list of ModelProviders.
// +kubebuilder:object:root=true
type ModelProviderList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []ModelProvider `json:"items"`
}

// Model returns the declaration of the model with this name, or nil if the provider does not list it.
func (p *ModelProvider) Model(name string) *Model {
	for i := range p.Spec.Models {
		if p.Spec.Models[i].Name == name {
			return &p.Spec.Models[i]
		}
	}
	return nil
}
