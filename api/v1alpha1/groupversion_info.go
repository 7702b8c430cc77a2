// Package v1alpha1 holds the API types of the group capstan.dev, version v1alpha1.
//
// No kind has a phase: its conditions are its state. conditions.go has the types of the conditions, their reasons
// and the cause of each. A marker continues on the lines after it that begin with "// + " (see hack/crds).
// +kubebuilder:object:generate=true
// +groupName=capstan.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Version is the API version of this package, without its group.
const Version = "v1alpha1"

var (
	// GroupVersion is capstan.dev/v1alpha1.
	GroupVersion = schema.GroupVersion{Group: "capstan.dev", Version: Version}

	// SchemeBuilder registers the kinds of this package.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&Agent{}, &AgentList{},
		&Budget{}, &BudgetList{},
		&ModelProvider{}, &ModelProviderList{},
		&PromptProfile{}, &PromptProfileList{},
		&Session{}, &SessionList{},
		&ToolApproval{}, &ToolApprovalList{},
		&ToolServer{}, &ToolServerList{},
		&Turn{}, &TurnList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
