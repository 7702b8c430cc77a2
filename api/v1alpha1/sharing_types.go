package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// SharedReference names an object of a known kind, in the same namespace or in another namespace that shares the
// object.
// +kubebuilder:validation:XValidation:rule="!has(self.namespace) || size(self.namespace) + size(self.name) <= 252",
// + message="namespace and name must have at most 252 characters together"
type SharedReference struct {
	// name is the name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",
	// + message="name must be a lower-case DNS name: letters, digits, '-' and '.', starting and ending with a letter or
	// +  digit"
	Name string `json:"name"`

	// namespace is the namespace of the object. Default: the namespace of the object that holds this reference. For
	// another namespace, spec.allowedNamespaces of the named object must allow the namespace that holds this reference.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",
	// + message="namespace must be a lower-case DNS label: letters, digits and '-', starting and ending with a letter or
	// +  digit"
	Namespace string `json:"namespace,omitempty"`
}

// String returns NAME, or NAMESPACE/NAME if the reference has a namespace.
func (r SharedReference) String() string {
	if r.Namespace == "" {
		return r.Name
	}
	return r.Namespace + "/" + r.Name
}

// ParseSharedReference returns the reference whose String is this text.
func ParseSharedReference(text string) SharedReference {
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		return SharedReference{Namespace: namespace, Name: name}
	}
	return SharedReference{Name: text}
}

// Key returns the namespace and the name of the object that the reference names. namespace is the namespace of the
// object that holds the reference.
func (r SharedReference) Key(namespace string) types.NamespacedName {
	if r.Namespace != "" {
		namespace = r.Namespace
	}
	return types.NamespacedName{Namespace: namespace, Name: r.Name}
}

// NamespacesFrom says which namespaces may refer to an object.
// +kubebuilder:validation:Enum=Same;All;Selector
type NamespacesFrom string

const (
	// NamespacesFromSame allows only the namespace of the object.
	NamespacesFromSame NamespacesFrom = "Same"
	// NamespacesFromAll allows all namespaces.
	NamespacesFromAll NamespacesFrom = "All"
	// NamespacesFromSelector allows the namespaces that a selector selects, and the namespace of the object.
	NamespacesFromSelector NamespacesFrom = "Selector"
)

// AllowedNamespaces says which namespaces may refer to an object. The namespace of the object always may.
// +kubebuilder:validation:XValidation:rule="has(self.selector) == (self.from == 'Selector')",
// + message="selector must be given if from is Selector, and only then",fieldPath=".selector"
type AllowedNamespaces struct {
	// from is Same (only the namespace of the object, the default), All, or Selector (also the namespaces that selector
	// selects).
	// +optional
	// +kubebuilder:default=Same
	From NamespacesFrom `json:"from,omitempty"`

	// selector selects namespaces by their labels. Each namespace has the label kubernetes.io/metadata.name with its
	// name. A change of these labels takes effect within 10 seconds.
	// +optional
	Selector *LabelSelector `json:"selector,omitempty"`
}

// LabelSelector selects the objects whose labels meet all requirements. It has the form of a label selector of
// Kubernetes, with bounds on the number and the length of the requirements.
// +kubebuilder:validation:MinProperties=1
type LabelSelector struct {
	// matchLabels are 1 to 16 labels with the values that they must have.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(key) > 0 && size(key) <= 317)",message="the name of a label
	// +  must have 1 to 317 characters"
	// +kubebuilder:validation:XValidation:rule="self.all(key, size(key) > 317 || !format.qualifiedName().validate(key).hasValue())",
	// + message="the name of a label must be valid, such as team or example.com/team"
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`

	// matchExpressions are 1 to 16 requirements on labels.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []LabelRequirement `json:"matchExpressions,omitempty"`
}

// LabelValue is the value of a label, at most 63 characters.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="!format.labelValue().validate(self).hasValue()",message="the value of a label
// +  must consist of letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
type LabelValue string

// LabelRequirement is a requirement on one label.
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
// + message="values must be set for the operators In and NotIn, and absent for Exists and DoesNotExist"
type LabelRequirement struct {
	// key is the name of the label.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self).hasValue()",message="key must be the
	// +  name of a label, such as team or example.com/team"
	Key string `json:"key"`

	// operator is In, NotIn, Exists or DoesNotExist.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// values are the 1 to 64 values for the operators In and NotIn.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Values []LabelValue `json:"values,omitempty"`
}

// Selector returns the labels.Selector with the same requirements. It returns an error if the name or the value of a
// label is not valid.
func (s *LabelSelector) Selector() (labels.Selector, error) {
	standard := metav1.LabelSelector{MatchLabels: map[string]string{}}
	for key, value := range s.MatchLabels {
		standard.MatchLabels[key] = string(value)
	}
	for _, e := range s.MatchExpressions {
		values := make([]string, len(e.Values))
		for i, value := range e.Values {
			values[i] = string(value)
		}
		standard.MatchExpressions = append(standard.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: e.Key, Operator: e.Operator, Values: values})
	}
	return metav1.LabelSelectorAsSelector(&standard)
}
