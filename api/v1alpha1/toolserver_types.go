package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ToolServerType is the protocol of a server of tools.
// +kubebuilder:validation:Enum=MCP
type ToolServerType string

// ToolServerTypeMCP is the Model Context Protocol over streamable HTTP.
const ToolServerTypeMCP ToolServerType = "MCP"

// ToolEffect is what a call of a tool does to the world.
// +kubebuilder:validation:Enum=ReadOnly;Idempotent;Destructive
type ToolEffect string

const (
	// ToolEffectReadOnly calls change nothing.
	ToolEffectReadOnly ToolEffect = "ReadOnly"
	// ToolEffectIdempotent calls change no more when they are made twice.
	ToolEffectIdempotent ToolEffect = "Idempotent"
	// ToolEffectDestructive calls must not be made twice. A tool of unknown effect is Destructive.
	ToolEffectDestructive ToolEffect = "Destructive"
)

// ToolRole is what a tool is used for.
// +kubebuilder:validation:Enum=WebSearch;LocalSearch;ContextPack;Other
type ToolRole string

const (
	// ToolRoleWebSearch tools look things up on the web.
	ToolRoleWebSearch ToolRole = "WebSearch"
	// ToolRoleLocalSearch tools look things up in what the organisation has.
	ToolRoleLocalSearch ToolRole = "LocalSearch"
	// ToolRoleContextPack tools are called before the model is asked, and fill the prompt's context.
	ToolRoleContextPack ToolRole = "ContextPack"
	// ToolRoleOther tools are all others.
	ToolRoleOther ToolRole = "Other"
)

// RetryOnTimeout says whether a call without a result in time is made once more.
// +kubebuilder:validation:Enum=Never;Once
type RetryOnTimeout string

const (
	// RetryOnTimeoutNever leaves it to the model.
	RetryOnTimeoutNever RetryOnTimeout = "Never"
	// RetryOnTimeoutOnce makes the call once more if its effect is ReadOnly or Idempotent.
	RetryOnTimeoutOnce RetryOnTimeout = "Once"
)

// EndsTurn says whether a call ends the Turn.
// +kubebuilder:validation:Enum=Never;OnSuccess
type EndsTurn string

const (
	// EndsTurnNever lets the model go on.
	EndsTurnNever EndsTurn = "Never"
	// EndsTurnOnSuccess ends the Turn with the result of the call as its answer.
	EndsTurnOnSuccess EndsTurn = "OnSuccess"
)

// ToolServerSpec says where tools are served, and what Capstan may do with each.
// +kubebuilder:validation:XValidation:rule="self.type != 'MCP' || has(self.mcp)",message="mcp must be given for a server of type MCP",fieldPath=".mcp"
type ToolServerSpec struct {
	// type is the protocol of the server. MCP: the Model Context Protocol over streamable HTTP.
	// +required
	Type ToolServerType `json:"type"`

	// mcp is where a server of type MCP is.
	// +optional
	MCP *MCPEndpoint `json:"mcp,omitempty"`

	// credentialsRef names the Secret key that holds a token, sent as a bearer token. Leave it out for a server that asks for
	// none.
	// +optional
	CredentialsRef *SecretKeyReference `json:"credentialsRef,omitempty"`

	// headers are sent with every request to the server, at most 16; they cannot replace Authorization.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(h, self.exists_one(other, other.name.lowerAscii() == h.name.lowerAscii()))",message="headers must not repeat a name: upper and lower case are the same in HTTP"
	Headers []Header `json:"headers,omitempty"`

	// tls says whom to trust beyond the system's certificate authorities.
	// +optional
	TLS *ClientTLS `json:"tls,omitempty"`

	// callTimeoutSeconds bounds a call of a tool, in seconds, from 1 to 3600. Default 45. The time that the Turn has left bounds
	// it, too.
	// +optional
	// +kubebuilder:default=45
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	CallTimeoutSeconds int32 `json:"callTimeoutSeconds,omitempty"`

	// connectTimeoutSeconds is the time to connect to the server, TLS included, from 1 to 60. Default 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60
	ConnectTimeoutSeconds int32 `json:"connectTimeoutSeconds,omitempty"`

	// tools says what Capstan may assume of tools, at most 256 of them. Tools that are not listed can be used too, and are
	// Destructive: the server's own hints grant nothing.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Tools []ToolDeclaration `json:"tools,omitempty"`
}

// MCPEndpoint is where an MCP server is.
type MCPEndpoint struct {
	// url of the server's streamable HTTP endpoint, such as http://tickets.tools:8080/mcp. It holds no credentials.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",message="url must be an http or https URL with a host, such as http://tickets.tools:8080/mcp"
	// +kubebuilder:validation:XValidation:rule="!self.contains('@') && !self.contains('#')",message="url must not hold credentials or a fragment: use credentialsRef for a token"
	URL string `json:"url"`
}

// ToolDeclaration says what Capstan may assume of one tool.
type ToolDeclaration struct {
	// name of the tool, as its server has it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// effect of a call. ReadOnly: it changes nothing; Idempotent: made twice, it changes no more than made once; Destructive: it
	// must not be made twice. Default: Destructive, whatever the server says. A hint of the server that contradicts ReadOnly or
	// Idempotent makes the tool Destructive, too. After a restart, and after a time-out, only calls of the first two may be made
	// again.
	// +optional
	Effect ToolEffect `json:"effect,omitempty"`

	// role of the tool. WebSearch: it looks things up on the web, and is refused where a Turn's webMode is Off; LocalSearch: it
	// looks things up in what the organisation has; ContextPack: it is not offered to the model but called before, with the
	// message and topK, and its result fills the context, which needs the effect ReadOnly; Other (the default).
	// +optional
	Role ToolRole `json:"role,omitempty"`

	// callTimeoutSeconds bounds a call of this tool, in seconds, from 1 to 3600. Default: that of the server.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	CallTimeoutSeconds *int32 `json:"callTimeoutSeconds,omitempty"`

	// retryOnTimeout is Never (the default), or Once: a call without a result in time is made once more, if its effect is
	// ReadOnly or Idempotent.
	// +optional
	RetryOnTimeout RetryOnTimeout `json:"retryOnTimeout,omitempty"`

	// endsTurn is Never (the default), or OnSuccess: a call that succeeds ends the Turn, with its result as the answer.
	// +optional
	EndsTurn EndsTurn `json:"endsTurn,omitempty"`
}

// ToolServerStatus is what Capstan last found out about a server.
type ToolServerStatus struct {
	// observedGeneration is the generation of the spec that this status speaks of; -1 before anybody has looked.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the server. Ready is True when it answered the last look at its tools.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// serverName is what the server calls itself.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`

	// serverVersion is the version that the server says it has.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ServerVersion string `json:"serverVersion,omitempty"`

	// protocolVersion that was agreed upon.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	ProtocolVersion string `json:"protocolVersion,omitempty"`

	// toolCount is how many tools the server had when it last answered.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ToolCount int32 `json:"toolCount,omitempty"`

	// tools of the server when it last answered, sorted by name; the first 256. They stay while the server is away.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Tools []DiscoveredTool `json:"tools,omitempty"`

	// lastDiscoveryTime is when tools was last found to differ from what it had been before.
	// +optional
	LastDiscoveryTime *metav1.Time `json:"lastDiscoveryTime,omitempty"`
}

// DiscoveredTool is a tool that a server has.
type DiscoveredTool struct {
	// name of the tool, as its server has it.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`

	// description of the tool by its server, on one line, its first 256 characters. It is not to be trusted.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Description string `json:"description,omitempty"`

	// effect of a call, ReadOnly, Idempotent or Destructive: what the spec declares, else Destructive. It is Destructive also where
	// the server's hints contradict the spec; the message of the condition Ready says so.
	// +required
	Effect ToolEffect `json:"effect"`

	// role of the tool, as the spec says: WebSearch, LocalSearch, ContextPack or Other.
	// +optional
	Role ToolRole `json:"role,omitempty"`

	// schemaHash is the first 16 hexadecimal digits of the SHA-256 of the JSON Schema of the tool's arguments: it changes when
	// they do.
	// +required
	// +kubebuilder:validation:MaxLength=16
	SchemaHash string `json:"schemaHash"`

	// unusable says why no model can be offered this tool, such as that the schema of its arguments cannot be used: on one line,
	// its first 256 characters, which may quote the schema and are not to be trusted. Empty for a tool that can be offered.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Unusable string `json:"unusable,omitempty"`
}

// ToolServer is a server of tools: where it is, and what Capstan may do with each.
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

	// spec is the server as it should be used.
	// +required
	Spec ToolServerSpec `json:"spec"`

	// status is what Capstan last found out about the server.
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
