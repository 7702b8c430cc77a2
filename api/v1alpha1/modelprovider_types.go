package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ProviderType is the wire protocol of an endpoint.
// +kubebuilder:validation:Enum=OpenAI
type ProviderType string

// ProviderTypeOpenAI is OpenAI's chat-completions protocol, and all servers that speak it.
const ProviderTypeOpenAI ProviderType = "OpenAI"

// ModelProviderSpec says where models are served, with which credentials, and what they cost.
type ModelProviderSpec struct {
	// type is the protocol the endpoint speaks. OpenAI: chat completions over HTTP, as OpenAI and most servers of
	// open models offer them.
	// +required
	Type ProviderType `json:"type"`

	// baseURL of the endpoint, an http or https URL up to and including its version path, such as
	// https://llm.internal/v1. It holds no credentials.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",message="baseURL must be an http or https URL with a host, such as https://llm.internal/v1"
	// +kubebuilder:validation:XValidation:rule="!self.contains('@') && !self.contains('?') && !self.contains('#')",message="baseURL must not hold credentials, a query or a fragment: use credentialsRef for a key"
	BaseURL string `json:"baseURL"`

	// credentialsRef names the Secret key that holds the API key, sent as a bearer token. Leave it out for an endpoint
	// that asks for none.
	// +optional
	CredentialsRef *SecretKeyReference `json:"credentialsRef,omitempty"`

	// headers are sent with every request to the endpoint, at most 16; they cannot replace Authorization.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(h, self.exists_one(other, other.name.lowerAscii() == h.name.lowerAscii()))",message="headers must not repeat a name: upper and lower case are the same in HTTP"
	Headers []Header `json:"headers,omitempty"`

	// tls says whom to trust beyond the system's certificate authorities.
	// +optional
	TLS *ClientTLS `json:"tls,omitempty"`

	// models the endpoint serves that Capstan should know the prices of, at most 64. A model that is not listed can be
	// used too; its Turns then have no cost.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Models []Model `json:"models,omitempty"`

	// retry says how requests that failed for a passing reason (rate limit, overload, time-out, network, malformed
	// reply) are tried again, always within the Turn's deadline.
	// +optional
	// +kubebuilder:default={}
	Retry RetryPolicy `json:"retry,omitzero"`

	// timeouts of one request to the endpoint.
	// +optional
	// +kubebuilder:default={}
	Timeouts ProviderTimeouts `json:"timeouts,omitzero"`
}

// Header is an HTTP header with a value given here or in a Secret.
// +kubebuilder:validation:XValidation:rule="has(self.value) != has(self.valueFrom)",message="exactly one of value and valueFrom must be given"
type Header struct {
	// name of the header, 1 to 128 characters. Headers that others rely on are refused, in upper and lower case, and with '_' for '-': those
	// of the connection and the message (such as Host, Connection, Content-Type, Accept-Encoding), of identities (Authorization, Cookie,
	// Proxy-..., Impersonate-..., X-Remote-...), and of where a request comes from (Forwarded, Via, X-Forwarded-..., X-Real-IP).
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9!#$%&'*+.^_|~-]+$")`,message="name must be the name of an HTTP header: letters, digits and !#$%&'*+.^_|~-"
	// +kubebuilder:validation:XValidation:rule=`!self.lowerAscii().replace('_', '-').matches(r"^(authorization|cookie2?|set-cookie2?|host|proxy-.*|connection|keep-alive|te|trailer|transfer-encoding|upgrade|expect|content-(length|type|encoding)|accept-encoding|forwarded|via|x-forwarded(-.*)?|x-real-ip|x-client-ip|x-cluster-client-ip|true-client-ip|cf-connecting-ip|x-original-.*|x-rewrite-url|x-envoy-.*|x-remote-.*|impersonate-.*)$")`,message="name must not be authorization (use credentialsRef), cookie, host, a header of the connection or the message such as content-type, or one that speaks of users or origins, such as x-forwarded-for"
	Name string `json:"name"`

	// value of the header, at most 4096 printable characters. Put a secret into valueFrom instead.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[\t\x20-\x7e]*$")`,message="value must consist of printable ASCII characters"
	Value *string `json:"value,omitempty"`

	// valueFrom takes the value from a Secret.
	// +optional
	ValueFrom *HeaderSource `json:"valueFrom,omitempty"`
}

// HeaderSource is where the value of a header comes from.
type HeaderSource struct {
	// secretKeyRef names the Secret key that holds the value.
	// +required
	SecretKeyRef SecretKeyReference `json:"secretKeyRef"`
}

// Model describes one model of an endpoint.
type Model struct {
	// name of the model as the endpoint knows it, 1 to 256 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`

	// contextWindow is how many tokens the model takes, prompt and reply together, from 1 to 100000000. Without it a
	// conversation is shortened only when the endpoint says that it is too long.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000000
	ContextWindow *int64 `json:"contextWindow,omitempty"`

	// maxOutputTokens is how many tokens a reply may have, from 1 to 100000000. It bounds what is set aside of the context
	// window for the reply.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000000
	MaxOutputTokens *int64 `json:"maxOutputTokens,omitempty"`

	// capabilities of the model beyond plain chat. StructuredOutput: it keeps to a JSON Schema by itself; Reasoning: it has a
	// setting for how long it thinks. Tools and Streaming are taken for granted and may be listed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	Capabilities []ModelCapability `json:"capabilities,omitempty"`

	// pricing turns the tokens of a Turn into its cost. Without it, the Turns of this model have no cost.
	// +optional
	Pricing *Pricing `json:"pricing,omitempty"`
}

// ModelCapability is something that a model can do.
// +kubebuilder:validation:Enum=Tools;Streaming;StructuredOutput;Reasoning
type ModelCapability string

// The capabilities of models.
const (
	CapabilityTools            ModelCapability = "Tools"
	CapabilityStreaming        ModelCapability = "Streaming"
	CapabilityStructuredOutput ModelCapability = "StructuredOutput"
	CapabilityReasoning        ModelCapability = "Reasoning"
)

// Pricing is what a million tokens of a model cost.
type Pricing struct {
	// currency of the prices, as an ISO 4217 code. Default USD.
	// +optional
	// +kubebuilder:default=USD
	// +kubebuilder:validation:MaxLength=3
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Z]{3}$")`,message="currency must be an ISO 4217 code, such as USD"
	Currency string `json:"currency,omitempty"`

	// inputPerMillion is the price of a million input tokens that were not read from a cache, as a decimal.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,9}(\.[0-9]{1,9})?$")`,message="inputPerMillion must be a decimal with at most 9 digits before and 9 after the point, such as 0.25"
	InputPerMillion string `json:"inputPerMillion"`

	// outputPerMillion is the price of a million output tokens, reasoning included, as a decimal.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,9}(\.[0-9]{1,9})?$")`,message="outputPerMillion must be a decimal with at most 9 digits before and 9 after the point, such as 0.25"
	OutputPerMillion string `json:"outputPerMillion"`

	// cacheReadPerMillion is the price of a million input tokens that were read from the provider's cache, as a
	// decimal. Where it is absent they cost inputPerMillion.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,9}(\.[0-9]{1,9})?$")`,message="cacheReadPerMillion must be a decimal with at most 9 digits before and 9 after the point, such as 0.25"
	CacheReadPerMillion *string `json:"cacheReadPerMillion,omitempty"`
}

// RetryPolicy bounds how often and how fast a request is tried again. Waits grow exponentially from
// initialBackoffMilliseconds to maxBackoffSeconds, with jitter; a Retry-After of the endpoint goes before them.
// +kubebuilder:validation:XValidation:rule="!has(self.initialBackoffMilliseconds) || !has(self.maxBackoffSeconds) || self.initialBackoffMilliseconds <= self.maxBackoffSeconds * 1000",message="initialBackoffMilliseconds must be at most maxBackoffSeconds",fieldPath=".initialBackoffMilliseconds"
type RetryPolicy struct {
	// maxAttempts is how often one request is sent in all, from 1 (never again) to 10. Default 4.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	MaxAttempts int32 `json:"maxAttempts,omitempty"`

	// initialBackoffMilliseconds is the wait before the second attempt, from 10 to 60000. Default 500.
	// +optional
	// +kubebuilder:default=500
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	InitialBackoffMilliseconds int32 `json:"initialBackoffMilliseconds,omitempty"`

	// maxBackoffSeconds is the longest wait between two attempts, from 1 to 300. Default 20.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	MaxBackoffSeconds int32 `json:"maxBackoffSeconds,omitempty"`
}

// ProviderTimeouts bound one request. Answers are streamed, so there is no total time-out but the Turn's.
type ProviderTimeouts struct {
	// connectSeconds is the time to connect to the endpoint, TLS included, from 1 to 60. Default 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	ConnectSeconds int32 `json:"connectSeconds,omitempty"`

	// idleSeconds is how long the endpoint may take to the first event of its answer, and from one event to the next, from 1 to
	// 600. Default 60. Comments of the stream and single bytes are no events.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
}

// ModelProviderStatus is what Capstan last found out about an endpoint.
type ModelProviderStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of; -1 before anybody has looked.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the provider. Ready is True when its Secrets are there and the endpoint answered the last probe.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
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

	// spec is the endpoint as it should be used.
	// +required
	Spec ModelProviderSpec `json:"spec"`

	// status is what Capstan last found out about the endpoint.
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

// Model returns the description of a model by its name, nil where the provider does not list it.
func (p *ModelProvider) Model(name string) *Model {
	for i := range p.Spec.Models {
		if p.Spec.Models[i].Name == name {
			return &p.Spec.Models[i]
		}
	}
	return nil
}
