package v1alpha1

// Usage counts tokens and their cost. The counts are the provider's figures, or estimates if it reports none.
type Usage struct {
	// inputTokens is the number of tokens in all requests, including those read from a cache.
	// +required
	// +kubebuilder:validation:Minimum=0
	InputTokens int64 `json:"inputTokens"`

	// outputTokens is the number of tokens in all replies, including reasoning.
	// +required
	// +kubebuilder:validation:Minimum=0
	OutputTokens int64 `json:"outputTokens"`

	// totalTokens is the sum of inputTokens and outputTokens.
	// +required
	// +kubebuilder:validation:Minimum=0
	TotalTokens int64 `json:"totalTokens"`

	// reasoningTokens is the part of outputTokens that the model used for reasoning.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReasoningTokens int64 `json:"reasoningTokens,omitempty"`

	// cacheReadTokens is the part of inputTokens that was read from the provider's cache.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheReadTokens int64 `json:"cacheReadTokens,omitempty"`

	// cacheCreationTokens is the part of inputTokens that was written to the provider's cache. Providers that do not
	// charge for this do not report it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CacheCreationTokens int64 `json:"cacheCreationTokens,omitempty"`

	// estimated is true if Capstan estimated some of the tokens, because an endpoint did not report them, or because a
	// request was interrupted. The cost then contains this estimate.
	// +optional
	Estimated bool `json:"estimated,omitempty"`

	// cost is the cost of these tokens at the providers' prices. It is absent if it is unknown.
	// +optional
	Cost *Cost `json:"cost,omitempty"`

	// costUnknown is true if the cost is unknown, because one of the models has no price or the prices are in several
	// currencies.
	// +optional
	CostUnknown bool `json:"costUnknown,omitempty"`

	// knownCost is the known part of a cost that is unknown, as a decimal such as 0.0123. Amounts in several currencies
	// are added without conversion. Like cost, it counts against the limits.maxCost of the Turn that called a
	// sub-agent, and against the budget.maxCost of the Session.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	KnownCost string `json:"knownCost,omitempty"`
}

// PriceSource says where the prices of a model are from.
// +kubebuilder:validation:Enum=ModelProvider;ListPrice;Unknown
type PriceSource string

// The sources of prices.
const (
	// PriceSourceModelProvider means that the ModelProvider declares the prices.
	PriceSourceModelProvider PriceSource = "ModelProvider"
	// PriceSourceListPrice means that the prices are from Capstan's table of list prices.
	PriceSourceListPrice PriceSource = "ListPrice"
	// PriceSourceUnknown means that a request has no price, so the cost of the Turn is unknown.
	PriceSourceUnknown PriceSource = "Unknown"
)

// UsedPrice says which prices of a model were used.
type UsedPrice struct {
	// provider is the name of the ModelProvider, or NAMESPACE/NAME if the Agent names its namespace.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Provider string `json:"provider"`

	// model is the name of the model as the provider knows it.
	// +required
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model"`

	// source says where the prices are from. ModelProvider: its spec.models[].pricing. ListPrice: Capstan's table of
	// list prices of public services, which capstan prices prints. Unknown: the model has no price.
	// +required
	Source PriceSource `json:"source"`

	// date is the day on which the list price was read, as YYYY-MM-DD. It is absent for other sources.
	// +optional
	// +kubebuilder:validation:MaxLength=10
	Date string `json:"date,omitempty"`
}

// Cost is an amount of money.
type Cost struct {
	// amount is the amount as a decimal, such as 0.0123.
	// +required
	// +kubebuilder:validation:MaxLength=40
	Amount string `json:"amount"`

	// currency is the currency as an ISO 4217 code, such as USD.
	// +required
	// +kubebuilder:validation:MaxLength=3
	Currency string `json:"currency"`
}
