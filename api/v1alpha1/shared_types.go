package v1alpha1

// ObjectReference names an object of a known kind in the same namespace.
type ObjectReference struct {
	// name is the name of the object. It is in the same namespace as the object that holds this reference.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",
	// + message="name must be a lower-case DNS name: letters, digits, '-' and '.', starting and ending with a letter or
	// +  digit"
	Name string `json:"name"`
}

// SecretKeyReference names one key of a Secret in the same namespace.
type SecretKeyReference struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",
	// + message="name must be a lower-case DNS name: letters, digits, '-' and '.', starting and ending with a letter or
	// +  digit"
	Name string `json:"name"`

	// key is the key within the Secret's data. Its value is used without surrounding white space.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[-._a-zA-Z0-9]+$")`,
	// + message="key must consist of letters, digits, '-', '_' and '.'"
	Key string `json:"key"`
}

// ClientTLS configures TLS for the connections of a client: the authorities that it trusts, and its own certificate.
// +kubebuilder:validation:MinProperties=1
type ClientTLS struct {
	// caBundleRef names the Secret key with the certificates of certificate authorities, in PEM, with at most 256 KiB.
	// Capstan trusts these authorities in addition to those of the system.
	// +optional
	CABundleRef *SecretKeyReference `json:"caBundleRef,omitempty"`

	// clientCertificateRef names the Secret with the certificate by which Capstan identifies itself to the server. The
	// Secret has the keys tls.crt and tls.key, in PEM, with at most 64 KiB each, like all Secrets of type
	// kubernetes.io/tls. A changed certificate is used within 10 seconds.
	// +optional
	ClientCertificateRef *ObjectReference `json:"clientCertificateRef,omitempty"`
}

// Limits are the limits of a Turn. Each limit can be set in the Turn, in its Agent and in the manager's flag
// --limits. The lowest value applies, so a Turn can lower a limit of its Agent and never raise it.
// +kubebuilder:validation:MinProperties=1
type Limits struct {
	// timeoutSeconds is the time limit of the whole Turn, in seconds, from 1 to 86400. The time counts from
	// status.startTime, across restarts; for the Turn of a sub-agent, it counts like startingDeadlineSeconds, so a wait
	// for a slot counts, too. While the Turn, or the Turn of a sub-agent that it waits for, waits for approvals or for
	// the reset of a Budget, the time does not run. Default 60 if neither Turn nor Agent sets it. A Turn that reaches
	// the limit ends with reason DeadlineExceeded.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// startingDeadlineSeconds is how long the Turn may wait for its Agent, its Session and a free slot before it
	// starts, and for a Budget before its first request, in seconds, from 1 to 604800. The time counts from the
	// creation of the Turn, or from the end of a suspension. Default 600 if neither Turn nor Agent sets it. A Turn that
	// waits longer ends with reason DeadlineExceeded.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	StartingDeadlineSeconds *int32 `json:"startingDeadlineSeconds,omitempty"`

	// maxSteps is the number of steps that the Turn may take, from 1 to 100. A step is one reply of a model, together
	// with the tool calls that the reply requests. Default 6 if neither Turn nor Agent sets it. When all steps are
	// used, the model is asked once more for its best answer, and cannot call tools. The Turn then ends with reason
	// StepLimitExceeded.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxSteps *int32 `json:"maxSteps,omitempty"`

	// maxToolCalls is the number of tool calls that the Turn may make, from 0 (none) to 1000. Default 25 if neither
	// Turn nor Agent sets it. Further calls are refused, and the model receives the reason.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxToolCalls *int32 `json:"maxToolCalls,omitempty"`

	// maxTokens is the number of tokens that all requests of the Turn may use, input and output together, from 1 to
	// 1000000000. Default 1000000 if neither Turn nor Agent sets it. A request that would probably exceed the limit is
	// not sent, and no tool is called once the tokens are used up. The Turn then ends with reason BudgetExceeded and
	// the result that it has so far. The usage of requests that a restart interrupted is estimated.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	MaxTokens *int64 `json:"maxTokens,omitempty"`

	// maxCost is the cost that all requests of the Turn may cause, a decimal above 0 in the currency of the models'
	// prices. A request that would probably exceed the limit is not sent: the Turn ends with reason BudgetExceeded and
	// the result that it has so far. Default if neither Turn nor Agent sets it: 5 if all prices of the Agent's models
	// are in USD, EUR, GBP or CHF; otherwise the cost has no limit. Requests whose price is unknown do not count.
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,12}(\.[0-9]{1,10})?$")
	// +  && self.matches(r"[1-9]")`,message="maxCost must be a decimal above 0 with at most 12 digits before and 10
	// +  after the point, such as 0.50"
	MaxCost *string `json:"maxCost,omitempty"`

	// maxDepth is the greatest depth that the Turn of a sub-agent may have, from 0 (no sub-agents) to 8. A user's Turn
	// has depth 0, and the Turns of its sub-agents have depth 1. Default 3 if neither Turn nor Agent sets it. At the
	// greatest depth, the model is not offered sub-agents.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=8
	MaxDepth *int32 `json:"maxDepth,omitempty"`

	// maxDescendants is the number of Turns that may be created for sub-agents below the Turn, at any depth, from 0 (no
	// sub-agents) to 1000. Default 25 if the Agent does not set it; a Turn can lower the limit and never raise it.
	// While a sub-agent runs, it may use all Turns that remain within the limit; when it ends, the unused ones are
	// available again. If no Turn is left, calls of sub-agents are refused, and the model receives the reason.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxDescendants *int32 `json:"maxDescendants,omitempty"`

	// approvalTimeoutSeconds is how long a call may wait for an approval, in seconds, from 1 to 2592000. Default 86400
	// if neither Turn nor Agent sets it. When the time is over, the call is denied. The wait does not count against
	// timeoutSeconds.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	ApprovalTimeoutSeconds *int32 `json:"approvalTimeoutSeconds,omitempty"`
}

const (
	// DefaultMaxSteps is the limit on the steps of a Turn if neither the Turn nor its Agent sets a limit.
	DefaultMaxSteps int32 = 6
	// DefaultMaxToolCalls is the limit on the tool calls of a Turn if neither the Turn nor its Agent sets a limit.
	DefaultMaxToolCalls int32 = 25
	// DefaultMaxTokens is the limit on the tokens of a Turn if neither the Turn nor its Agent sets a limit. The
	// requests of DefaultMaxSteps steps and of a last answer use less, even if each fills a context window of 140,000
	// tokens.
	DefaultMaxTokens int64 = 1_000_000
	// DefaultMaxCost is the limit on the cost of a Turn, in each of DefaultCostCurrencies, if neither the Turn nor its
	// Agent sets a limit. A million tokens of a large model cost about this amount.
	DefaultMaxCost = "5"
	// DefaultMaxDepth is the greatest depth of sub-agents if neither the Turn nor its Agent sets a limit.
	DefaultMaxDepth int32 = 3
	// DefaultMaxDescendants is the limit on the Turns that may be created for sub-agents below a Turn if its Agent sets
	// no limit.
	DefaultMaxDescendants int32 = 25
	// DefaultApprovalTimeoutSeconds is how long a call waits for an approval if neither the Turn nor its Agent sets
	// a limit.
	DefaultApprovalTimeoutSeconds int32 = 86_400
	// DefaultTimeoutSeconds is the time limit of a Turn if neither the Turn nor its Agent sets one.
	DefaultTimeoutSeconds int32 = 60
	// DefaultStartingDeadlineSeconds is how long a Turn waits for its start if neither the Turn nor its Agent sets a
	// limit.
	DefaultStartingDeadlineSeconds int32 = 600
)

// DefaultCostCurrencies returns the currencies for which DefaultMaxCost applies. limits.maxCost has no currency of its
// own: it is in the currency of the models' prices. In a currency such as JPY, one request may cost more than 5 units.
func DefaultCostCurrencies() []string { return []string{"USD", "EUR", "GBP", "CHF"} }
