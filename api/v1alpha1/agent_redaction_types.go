package v1alpha1

// AgentRedaction says which texts are removed from the Turns of an agent.
// +kubebuilder:validation:MinProperties=1
type AgentRedaction struct {
	// patterns are regular expressions, at most 32. Each match is replaced, also if the text has escapes or invisible
	// characters, and in numbers of JSON. All patterns together have at most 1000 characters after their repetitions
	// are expanded: a{3} counts as aaa.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Patterns []RedactionPattern `json:"patterns,omitempty"`

	// jsonPaths select the values in JSON that are replaced by "[redacted]", at most 32 paths of at most 128
	// characters. They apply to the arguments and results of calls, and to JSON in any other text. A path begins with
	// $, and consists of names and wildcards: $.customer.iban, $..password, $.items[*].email, $['e-mail'].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:XValidation:rule="self.startsWith('$')",
	// + message="jsonPaths must begin with $, such as $.customer.iban or $..password"
	JSONPaths []string `json:"jsonPaths,omitempty"`
}

// RedactionPattern is a pattern for texts that are removed.
type RedactionPattern struct {
	// name identifies the pattern in counts and replacements: 1 to 32 lower-case letters, digits and '-'.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')`,
	// + message="name must consist of lower-case letters, digits and '-', and begin and end with a letter or digit"
	Name string `json:"name"`

	// pattern is the regular expression in RE2 syntax, 1 to 256 characters. It must match neither the empty text nor
	// the replacement of any rule. After its repetitions are expanded, it has at most 100 characters: a{3} counts as
	// aaa.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Pattern string `json:"pattern"`

	// replacement replaces each match, 1 to 64 printable ASCII characters without '"' and backslashes. Default
	// [redacted:NAME].
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches('^[ !#-\\[\\]-~]+$')`,
	// + message="replacement must consist of printable ASCII characters without quotation marks and backslashes"
	Replacement string `json:"replacement,omitempty"`
}

// RedactionCount is the number of matches of a rule.
type RedactionCount struct {
	// rule is the name of the pattern, or the JSON path, at most 128 characters.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Rule string `json:"rule"`

	// matches is the number of texts that the rule has removed, from 1. A text that was received twice counts twice.
	// +required
	// +kubebuilder:validation:Minimum=1
	Matches int64 `json:"matches"`
}
