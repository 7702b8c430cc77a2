package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BudgetPeriod is the length of the periods of a budget.
// +kubebuilder:validation:Enum=Hour;Day;Month
type BudgetPeriod string

const (
	// BudgetPeriodHour is one hour, from one full hour to the next in the time zone of the budget.
	BudgetPeriodHour BudgetPeriod = "Hour"
	// BudgetPeriodDay is one day in the time zone of the budget.
	BudgetPeriodDay BudgetPeriod = "Day"
	// BudgetPeriodMonth is one calendar month in the time zone of the budget.
	BudgetPeriodMonth BudgetPeriod = "Month"
)

// OnBudgetExceeded says what happens to a Turn that exceeds a budget.
// +kubebuilder:validation:Enum=Queue;Reject
type OnBudgetExceeded string

const (
	// OnBudgetExceededQueue makes the Turn wait for the next period.
	OnBudgetExceededQueue OnBudgetExceeded = "Queue"
	// OnBudgetExceededReject ends the Turn.
	OnBudgetExceededReject OnBudgetExceeded = "Reject"
)

// BudgetSpec limits what the Turns of a namespace use in each period.
type BudgetSpec struct {
	// selector selects the Turns that the budget applies to. Without it, the budget applies to all Turns of its
	// namespace.
	// +optional
	Selector *BudgetSelector `json:"selector,omitempty"`

	// period is the length of the periods: Hour, Day or Month. At the beginning of each period, nothing is spent. If
	// this field changes, a new period begins.
	// +required
	Period BudgetPeriod `json:"period"`

	// timeZone is the time zone in which hours, days and months begin, as an IANA name such as Europe/Berlin. Default
	// UTC. A day on which the clocks change is longer or shorter than 24 hours, usually by one hour.
	// +optional
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z][A-Za-z0-9_+/-]*$")`,
	// + message="timeZone must be an IANA name, such as Europe/Berlin or UTC"
	TimeZone string `json:"timeZone,omitempty"`

	// currency is the currency in which costs count, as an ISO 4217 code. Default USD. Costs in another currency are
	// not converted: their requests count in unpricedRequests. If limits.cost is set, no request is sent to a model
	// with prices in another currency.
	// +optional
	// +kubebuilder:default=USD
	// +kubebuilder:validation:MaxLength=3
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Z]{3}$")`,
	// + message="currency must be an ISO 4217 code, such as USD"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="currency must not change: create another budget"
	Currency string `json:"currency,omitempty"`

	// limits are the limits of each period. A new limit takes effect with the next request. What was already spent in
	// the period counts towards it.
	// +required
	Limits BudgetLimits `json:"limits"`

	// onExceeded says what happens to a Turn whose next request exceeds the budget. Reject (the default): a shorter
	// reply and the next models of the chain are tried; if nothing fits, the Turn ends with reason BudgetExceeded and
	// the result so far. Queue: the Turn waits for the next period with reason WaitingForBudget, and holds no slot; if
	// the request cannot fit the next period either, it is handled as with Reject.
	// +optional
	// +kubebuilder:default=Reject
	OnExceeded OnBudgetExceeded `json:"onExceeded,omitempty"`

	// warnPercent is the percentage of a limit from which the condition Warning is True, from 1 to 100. Default 80.
	// +optional
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	WarnPercent *int32 `json:"warnPercent,omitempty"`
}

// BudgetSelector selects Turns.
// +kubebuilder:validation:MinProperties=1
type BudgetSelector struct {
	// agents selects the Turns of these Agents.
	// +optional
	Agents *BudgetAgents `json:"agents,omitempty"`

	// requesters selects the Turns of these users, by spec.requestedBy.username, 1 to 64 names. If agents is also set,
	// a Turn must match both. A name counts only if the API server has checked it with Capstan's admission policy for
	// requesters (requesterPolicy in the Helm chart). A Turn without a requester, or whose requester was not checked,
	// always matches: no user can avoid a budget by leaving out the name or by writing another one.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	Requesters []string `json:"requesters,omitempty"`
}

// BudgetAgents selects Agents by name, by label, or both. If both are set, an Agent must match both.
// +kubebuilder:validation:MinProperties=1
type BudgetAgents struct {
	// names are the names of 1 to 64 Agents. NAME is an Agent of the namespace of the budget, and NAMESPACE/NAME an
	// Agent of another namespace, which Turns of this namespace use as a sub-agent.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="!format.dns1123Subdomain().validate(
	// + self.substring(self.lastIndexOf('/') + 1)).hasValue() && (!self.contains('/') ||
	// +  !format.dns1123Label().validate(self.substring(0, self.lastIndexOf('/'))).hasValue())",
	// + message="names must be NAME or NAMESPACE/NAME: a lower-case DNS name, after a lower-case DNS label for the
	// +  namespace"
	Names []string `json:"names,omitempty"`

	// labelSelector selects Agents by their labels. It also selects Agents of other namespaces, whose owners control
	// the labels.
	// +optional
	LabelSelector *LabelSelector `json:"labelSelector,omitempty"`
}

// BudgetLimits are the limits of one period.
// +kubebuilder:validation:MinProperties=1
type BudgetLimits struct {
	// tokens is the maximum number of tokens that all requests of a period may use, input and output together, from 0
	// to 1000000000000. The value 0 stops all requests until the limit is raised.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000000
	Tokens *int64 `json:"tokens,omitempty"`

	// cost is the maximum cost of all requests of a period in the currency of the budget, a decimal such as 25 or 0.50.
	// The value 0 stops all requests until the limit is raised. A model without a price in this currency is not asked.
	// +optional
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[0-9]{1,12}(\.[0-9]{1,10})?$")`,message="cost must be a decimal
	// +  with at most 12 digits before and 10 after the point, such as 0.50"
	Cost *string `json:"cost,omitempty"`

	// turns is the maximum number of Turns that may send their first request in a period, from 0 to 1000000000. The
	// Turns of sub-agents count, too.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000
	Turns *int64 `json:"turns,omitempty"`
}

// BudgetStatus is the state of the current period. It is written at most every 5 seconds; the limits are checked for
// each request.
type BudgetStatus struct {
	// observedGeneration is the generation of the spec that this status describes. It is -1 before the first
	// reconciliation.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the conditions of the budget. Ready is True while the budget applies as its spec says.
	// Stalled is True if only a change of the spec can make the budget Ready, and absent otherwise. Exceeded is True if
	// a limit is reached. Warning is True if warnPercent of a limit is spent.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",
	// + message="each lastTransitionTime must be a time"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// periodStartTime is the time at which the current period began.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][01][0-9]:[0-5][0-9])$`
	PeriodStartTime *metav1.Time `json:"periodStartTime,omitempty"`

	// resetTime is the time at which the next period begins.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][01][0-9]:[0-5][0-9])$`
	ResetTime *metav1.Time `json:"resetTime,omitempty"`

	// spent is the usage in the current period: tokens, cost and Turns.
	// +optional
	Spent *BudgetSpent `json:"spent,omitempty"`

	// reserved is the maximum usage of the requests that have been sent and have not ended.
	// +optional
	Reserved *BudgetReserved `json:"reserved,omitempty"`
}

// BudgetSpent is the usage in a period.
type BudgetSpent struct {
	// tokens is the number of tokens, input and output together.
	// +required
	// +kubebuilder:validation:Minimum=0
	Tokens int64 `json:"tokens"`

	// cost is the cost in spec.currency, as a decimal.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Cost string `json:"cost"`

	// turns is the number of Turns that have sent their first request.
	// +required
	// +kubebuilder:validation:Minimum=0
	Turns int64 `json:"turns"`

	// unpricedRequests is the number of requests whose cost is not in the field cost, because it is unknown or in
	// another currency.
	// +optional
	// +kubebuilder:validation:Minimum=0
	UnpricedRequests int64 `json:"unpricedRequests,omitempty"`
}

// BudgetReserved is the maximum usage of the requests that have been sent and have not ended.
type BudgetReserved struct {
	// tokens is the number of tokens.
	// +required
	// +kubebuilder:validation:Minimum=0
	Tokens int64 `json:"tokens"`

	// cost is the cost in spec.currency, as a decimal.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Cost string `json:"cost"`
}

// Budget limits the tokens, the cost and the number of the Turns of a namespace in each hour, day or month. If several
// budgets apply to a Turn, the limits of all of them apply.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=bg,categories=capstan
// +kubebuilder:printcolumn:name="Period",type=string,JSONPath=`.spec.period`
// +kubebuilder:printcolumn:name="Tokens",type=integer,JSONPath=`.status.spent.tokens`
// +kubebuilder:printcolumn:name="Cost",type=string,JSONPath=`.status.spent.cost`
// +kubebuilder:printcolumn:name="Turns",type=integer,JSONPath=`.status.spent.turns`
// +kubebuilder:printcolumn:name="Exceeded",type=string,JSONPath=`.status.conditions[?(@.type=="Exceeded")].status`
// +kubebuilder:printcolumn:name="Reset",type=string,JSONPath=`.status.resetTime`
// +kubebuilder:printcolumn:name="State",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Exceeded")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Budget struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec defines the budget.
	// +required
	Spec BudgetSpec `json:"spec,omitzero"`

	// status is the state of the current period.
	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status BudgetStatus `json:"status,omitzero"`
}

// BudgetList is a list of Budgets.
// +kubebuilder:object:root=true
type BudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Budget `json:"items"`
}
