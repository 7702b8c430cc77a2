package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ToolServerType is the protocol of a tool server.
// +kubebuilder:validation:Enum=MCP
type ToolServerType string

// ToolServerTypeMCP is the Model Context Protocol over streamable HTTP.
const ToolServerTypeMCP ToolServerType = "MCP"

// ToolEffect is the effect of a call outside Capstan.
// +kubebuilder:validation:Enum=ReadOnly;Idempotent;Destructive
type ToolEffect string

const (
	// ToolEffectReadOnly calls change nothing.
	ToolEffectReadOnly ToolEffect = "ReadOnly"
	// ToolEffectIdempotent calls have the same effect whether they are made once or twice.
	ToolEffectIdempotent ToolEffect = "Idempotent"
	// ToolEffectDestructive calls must not be made twice. A tool without a declared effect is Destructive.
	ToolEffectDestructive ToolEffect = "Destructive"
)

// ToolRole is the purpose of a tool.
// +kubebuilder:validation:Enum=WebSearch;LocalSearch;ContextPack;Other
type ToolRole string

const (
	// ToolRoleWebSearch tools search the web.
	ToolRoleWebSearch ToolRole = "WebSearch"
	// ToolRoleLocalSearch tools search data of the organization.
	ToolRoleLocalSearch ToolRole = "LocalSearch"
	// ToolRoleContextPack tools are called before the model is asked. Their results are facts in the prompt.
	ToolRoleContextPack ToolRole = "ContextPack"
	// ToolRoleOther tools have any other purpose.
	ToolRoleOther ToolRole = "Other"
)

// RetryOnTimeout says whether a call that gave no result in time is repeated.
// +kubebuilder:validation:Enum=Never;Once
type RetryOnTimeout string

const (
	// RetryOnTimeoutNever does not repeat the call; the model decides how to continue.
	RetryOnTimeoutNever RetryOnTimeout = "Never"
	// RetryOnTimeoutOnce repeats the call once if its effect is ReadOnly or Idempotent.
	RetryOnTimeoutOnce RetryOnTimeout = "Once"
)

// EndsTurn says whether a successful call ends the Turn.
// +kubebuilder:validation:Enum=Never;OnSuccess
type EndsTurn string

const (
	// EndsTurnNever lets the model continue.
	EndsTurnNever EndsTurn = "Never"
	// EndsTurnOnSuccess ends the Turn, with the result of the call as its answer.
	EndsTurnOnSuccess EndsTurn = "OnSuccess"
)

// ToolServerSpec defines a tool server, and the properties of its tools.
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || !has(self.tls.clientCertificateRef) || !has(self.mcp)
// +  || self.mcp.url.lowerAscii().startsWith('https:')",
// + message="a client certificate needs TLS: set mcp.url to an https URL",fieldPath=".tls.clientCertificateRef"
// +kubebuilder:validation:XValidation:rule="self.type != 'MCP' || has(self.mcp)",
// + message="mcp must be given for a server of type MCP",fieldPath=".mcp"
type ToolServerSpec struct {
	// allowedNamespaces says which other namespaces may use the server in their Agents. They cannot read its Secrets.
	// Default: none. If a namespace is no longer allowed, that takes effect at the next call.
	// +optional
	AllowedNamespaces *AllowedNamespaces `json:"allowedNamespaces,omitempty"`

	// type is the protocol of the server. MCP: the Model Context Protocol over streamable HTTP.
	// +required
	Type ToolServerType `json:"type"`

	// mcp is the endpoint of a server of type MCP. It is required for that type.
	// +optional
	MCP *MCPEndpoint `json:"mcp,omitempty"`

	// credentialsRef names the Secret key with a token, which is sent as a bearer token. Omit it if the server requires
	// no token.
	// +optional
	CredentialsRef *SecretKeyReference `json:"credentialsRef,omitempty"`

	// headers are sent with every request to the server, at most 16. They cannot replace Authorization.
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

	// callTimeoutSeconds is the time limit of a call, in seconds, from 1 to 3600. Default 45. The remaining time of the
	// Turn also limits each call.
	// +optional
	// +kubebuilder:default=45
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	CallTimeoutSeconds int32 `json:"callTimeoutSeconds,omitempty"`

	// connectTimeoutSeconds is the time limit for connecting to the server and getting its tools, in seconds, from 1 to
	// 60. It includes TLS, the request initialize, and all pages of the list of tools. Default 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	ConnectTimeoutSeconds int32 `json:"connectTimeoutSeconds,omitempty"`

	// tools declares properties of the server's tools, at most 256 tools. Tools that are not declared can be used, too.
	// They count as Destructive, whatever the server's own hints say.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Tools []ToolDeclaration `json:"tools,omitempty"`
}

// MCPEndpoint is the address of an MCP server.
type MCPEndpoint struct {
	// url is the URL of the server's streamable HTTP endpoint, such as http://tickets.tools:8080/mcp. It must not
	// contain credentials or a fragment.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https']
	// +  && url(self).getHostname() != ''",message="url must be an http or https URL with a host, such as
	// +  http://tickets.tools:8080/mcp"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/]*//[^/?]*@') && !self.contains('#')",
	// + message="url must not contain credentials or a fragment: use credentialsRef for a token"
	URL string `json:"url"`
}

// ToolDeclaration declares properties of one tool.
// +kubebuilder:validation:XValidation:rule="!has(self.compensation) || !has(self.effect) || self.effect != 'ReadOnly'",
// + message="compensation must be absent if effect is ReadOnly: such a call changes nothing",fieldPath=".compensation"
type ToolDeclaration struct {
	// name is the name of the tool, as its server knows it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// effect is the effect of a call. ReadOnly: it changes nothing. Idempotent: a second identical call changes nothing
	// more. Destructive (the default): it must not be made twice. Hints of the server can only make the effect
	// stricter: a hint that contradicts ReadOnly or Idempotent makes the tool Destructive. After a restart or a
	// time-out, only ReadOnly and Idempotent calls may be repeated.
	// +optional
	Effect ToolEffect `json:"effect,omitempty"`

	// role is the purpose of the tool. WebSearch: it searches the web, and its calls are refused if a Turn's webMode is
	// Off. LocalSearch: it searches data of the organization. ContextPack: Capstan calls it with the message and topK
	// before it asks the model, and adds the result to the prompt as facts. The model is not offered such a tool.
	// Capstan only calls it if its effect is ReadOnly. Other (the default): any other purpose.
	// +optional
	Role ToolRole `json:"role,omitempty"`

	// callTimeoutSeconds is the time limit of a call of this tool, in seconds, from 1 to 3600. Default:
	// spec.callTimeoutSeconds.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	CallTimeoutSeconds *int32 `json:"callTimeoutSeconds,omitempty"`

	// retryOnTimeout is Never or Once. With Once, a call that gave no result in time is repeated once if its effect is
	// ReadOnly or Idempotent. Default: Once for a tool whose effect is ReadOnly, Never for any other tool.
	// +optional
	RetryOnTimeout RetryOnTimeout `json:"retryOnTimeout,omitempty"`

	// endsTurn is Never (the default) or OnSuccess. With OnSuccess, a successful call ends the Turn, and its result
	// is the answer.
	// +optional
	EndsTurn EndsTurn `json:"endsTurn,omitempty"`

	// compensation is the call of another tool of this server that undoes a successful call of this tool. Its arguments
	// are computed when the result arrives, and kept in the journal with that result, so a later change of the
	// ToolServer does not change them. capstan undo makes the call. Default: calls of this tool cannot be undone.
	// +optional
	Compensation *Compensation `json:"compensation,omitempty"`
}

// Compensation is the call that undoes a call.
type Compensation struct {
	// tool is the name of the tool that undoes the call, as the server knows it, 1 to 128 characters. It need not be
	// among the tools that Agents allow, because no model calls it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Tool string `json:"tool"`

	// arguments are the arguments with which the tool is called, at most 32. Each is computed from the call to undo and
	// its result. Default: no arguments.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Arguments []CompensationArgument `json:"arguments,omitempty"`
}

// CompensationArgument is one argument of the call that undoes another call.
type CompensationArgument struct {
	// name is the name of the argument, 1 to 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// value is a CEL expression, 1 to 1024 characters. It can read two variables: arguments, the arguments of the call
	// to undo, and result, its result (a JSON value if the result is JSON, otherwise the text). Examples: result.id,
	// arguments.path. If the expression names a value that the call and its result do not have, the call cannot be
	// undone.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Value string `json:"value"`
}

// ToolServerStatus is the result of the last check of a server.
type ToolServerStatus struct {
	// observedGeneration is the generation of the spec that this status describes. It is -1 before the first
	// reconciliation.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the conditions of the server. Ready is True if the server answered the last request for its tools.
	// Stalled is True if only a change of the spec can make the server Ready, and absent otherwise.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",
	// + message="each lastTransitionTime must be a time"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// serverName is the name that the server reports.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`

	// serverVersion is the version that the server reports.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ServerVersion string `json:"serverVersion,omitempty"`

	// protocolVersion is the version of the protocol that was negotiated with the server.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	ProtocolVersion string `json:"protocolVersion,omitempty"`

	// toolCount is the number of tools that the server had when it last answered, without those whose names cannot be
	// used: a name must be UTF-8 of 1 to 128 bytes without a credential. A name that the server lists twice counts
	// once.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolCount int32 `json:"toolCount,omitempty"`

	// tools are the tools that the server had when it last answered, sorted by name; at most 256. The list stays
	// unchanged while the server cannot be reached.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Tools []DiscoveredTool `json:"tools,omitempty"`

	// lastDiscoveryTime is the time of the server's first answer, or of the last answer that changed toolCount or
	// tools.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][01][0-9]:[0-5][0-9])$`
	LastDiscoveryTime *metav1.Time `json:"lastDiscoveryTime,omitempty"`
}

// DiscoveredTool is a tool that a server has.
type DiscoveredTool struct {
	// name is the name of the tool, as its server knows it.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// description is the server's description of the tool, on one line, at most 256 characters. The server wrote it, so
	// do not trust it.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Description string `json:"description,omitempty"`

	// effect is the effect that applies: ReadOnly, Idempotent or Destructive. Normally, it is the declared effect. If
	// no effect is declared, it is Destructive. If the server's hints contradict the declaration, it is Destructive,
	// too, and the message of the condition Ready says so.
	// +required
	Effect ToolEffect `json:"effect"`

	// role is the role that the spec declares: WebSearch, LocalSearch, ContextPack or Other.
	// +optional
	Role ToolRole `json:"role,omitempty"`

	// schemaHash is the first 16 hexadecimal digits of the SHA-256 of the JSON Schema of the tool's arguments. It
	// changes when the schema changes.
	// +required
	// +kubebuilder:validation:MaxLength=16
	SchemaHash string `json:"schemaHash"`

	// unusable says why this tool cannot be offered to any model, for example because of the schema of its arguments.
	// It is one line of at most 256 characters, and empty for a usable tool. It says what is wrong, and often where, as
	// a path in the schema, such as /properties/*/pattern. It has no text of the server: in the path, * stands for each
	// name that is not a keyword of JSON Schema. The log of the manager has the details.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Unusable string `json:"unusable,omitempty"`
}

// ToolServer is a server of tools: its address, its credentials and the properties of its tools.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ts,categories=capstan
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Tools",type=integer,JSONPath=`.status.toolCount`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="URL",type=string,priority=1,JSONPath=`.spec.mcp.url`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ToolServer struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec defines the server.
	// +required
	Spec ToolServerSpec `json:"spec"`

	// status is the result of the last check of the server.
	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status ToolServerStatus `json:"status,omitzero"`
}

// ToolServerList is a list of ToolServers.
// +kubebuilder:object:root=true
type ToolServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []ToolServer `json:"items"`
}
