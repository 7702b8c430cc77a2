package v1alpha1

// ObjectReference names an object of a known kind in the same namespace.
type ObjectReference struct {
	// name of the object, in the namespace of the object that holds this reference.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be a lower-case DNS name: letters, digits, '-' and '.', starting and ending with a letter or digit"
	Name string `json:"name"`
}

// SecretKeyReference names one key of a Secret in the same namespace.
type SecretKeyReference struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="name must be a lower-case DNS name: letters, digits, '-' and '.', starting and ending with a letter or digit"
	Name string `json:"name"`

	// key within the Secret's data whose value is used, without surrounding white space.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[-._a-zA-Z0-9]+$")`,message="key must consist of letters, digits, '-', '_' and '.'"
	Key string `json:"key"`
}

// ClientTLS says whom to trust.
type ClientTLS struct {
	// caBundleRef names the Secret key that holds certificates of authorities, in PEM. They are trusted beside those of the
	// system.
	// +required
	CABundleRef SecretKeyReference `json:"caBundleRef"`
}

// Limits bound a Turn. They come from the Turn, its Agent and the manager's flag --limits; the lowest of each wins,
// so a Turn may lower a limit of its Agent and never raise it.
// +kubebuilder:validation:MinProperties=1
type Limits struct {
	// timeoutSeconds is the wall time of the whole Turn, in seconds, from status.startTime; restarts do not
	// extend it. From 1 to 86400; 60 where neither Turn nor Agent gives one.
	// A Turn that reaches it ends with reason DeadlineExceeded.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// startingDeadlineSeconds is how long the Turn may wait to start (for its Agent, its Session, or a free place), in
	// seconds, from its creation or from the end of a suspension. From 1 to 604800; 600 where neither Turn nor
	// Agent gives one. A Turn that waits longer ends with reason DeadlineExceeded.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	StartingDeadlineSeconds *int32 `json:"startingDeadlineSeconds,omitempty"`

	// maxSteps is how many replies of a model the Turn goes on from, from 1 to 100; 6 where neither Turn nor Agent gives
	// one. A Turn that is out of steps asks once more, without tools, for the best answer from what is known, and ends
	// with reason StepLimitExceeded.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxSteps *int32 `json:"maxSteps,omitempty"`

	// maxToolCalls is how many calls of tools the Turn makes, from 0 (none) to 1000; 25 where neither Turn nor Agent gives
	// one. Further calls are refused, and the model is told so.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxToolCalls *int32 `json:"maxToolCalls,omitempty"`

	// maxTokens is how many tokens all requests of the Turn may take, input and output together, from 1 to 1000000000;
	// 1000000 where neither Turn nor Agent gives one. A request that would probably go beyond it is not sent, and no tool is
	// called once it is used up: the Turn ends with reason BudgetExceeded and what there is. Requests that a restart cut off
	// count by estimate.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000000
	MaxTokens *int64 `json:"maxTokens,omitempty"`

	// maxCost is what all requests of the Turn may cost, a decimal above 0 in the currency of the models' prices. Where
	// neither Turn nor Agent gives one it is 5 if all prices of the Agent's models are in USD, EUR, GBP or CHF, else there is no
	// bound. A request that would probably go beyond it is not sent: the Turn ends with
	// reason BudgetExceeded and what there is. Models without a price cost nothing here.
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,12}(\.[0-9]{1,10})?$") && self.matches(r"[1-9]")`,message="maxCost must be a decimal above 0 with at most 12 digits before and 10 after the point, such as 0.50"
	MaxCost *string `json:"maxCost,omitempty"`

	// maxDepth is how many agents deep the Turn may hand work on, from 0 (to no sub-agent) to 8; 3 where neither Turn nor
	// Agent gives one. At the last depth no sub-agent is offered.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=8
	MaxDepth *int32 `json:"maxDepth,omitempty"`

	// maxDescendants is how many Turns the whole tree of sub-agents below the Turn may have, theirs included, from 0 (no
	// sub-agent) to 1000; 25 where the Agent gives none, which a Turn may lower and not raise. A sub-agent receives all that is
	// left, and gives back what it has not used when it ends. Further calls of sub-agents are refused, and the model is told so.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxDescendants *int32 `json:"maxDescendants,omitempty"`

	// approvalTimeoutSeconds is how long a call waits for somebody's decision, in seconds, from 1 to 2592000; 86400 where
	// neither Turn nor Agent gives one. Its end is a denial. The Turn's own time does not run meanwhile.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	ApprovalTimeoutSeconds *int32 `json:"approvalTimeoutSeconds,omitempty"`
}

const (
	// DefaultMaxSteps is how many replies a Turn goes on from where neither it nor its Agent says.
	DefaultMaxSteps int32 = 6
	// DefaultMaxToolCalls is how many calls of tools a Turn makes where neither it nor its Agent says.
	DefaultMaxToolCalls int32 = 25
	// DefaultMaxTokens is how many tokens a Turn takes where neither it nor its Agent says: six steps and the last answer that
	// each fill a context window of 128,000 tokens, and some more. No Turn with the other defaults is stopped by it.
	DefaultMaxTokens int64 = 1_000_000
	// DefaultMaxCost is what a Turn may cost where neither it nor its Agent says, in each of DefaultCostCurrencies: a million
	// tokens at the prices of large models.
	DefaultMaxCost = "5"
	// DefaultMaxDepth is how many agents deep a Turn hands work on where neither it nor its Agent says.
	DefaultMaxDepth int32 = 3
	// DefaultMaxDescendants is how many Turns the tree of sub-agents below a Turn may have where its Agent does not say.
	DefaultMaxDescendants int32 = 25
	// DefaultApprovalTimeoutSeconds is how long a call waits for a decision where neither the Turn nor its Agent says.
	DefaultApprovalTimeoutSeconds int32 = 86_400
	// DefaultTimeoutSeconds is the wall time of a Turn where neither it nor its Agent gives one.
	DefaultTimeoutSeconds int32 = 60
	// DefaultStartingDeadlineSeconds is how long a Turn waits to start where neither it nor its Agent says.
	DefaultStartingDeadlineSeconds int32 = 600
)

// DefaultCostCurrencies returns the currencies in which DefaultMaxCost is a sensible amount. A limit of cost has no currency of its
// own, and 5 of another one may be worth less than a single request.
func DefaultCostCurrencies() []string { return []string{"USD", "EUR", "GBP", "CHF"} }
