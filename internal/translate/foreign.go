package translate

import (
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// maxSharedName is the maximum length of NAMESPACE/NAME in a status.
const maxSharedName = 253

// Foreign returns a copy of an Agent for the Turns of another namespace. Each reference of the copy names its
// namespace, so that it names the same object there, and so that messages, records and metrics of the Turn identify the
// object. References to ConfigMaps do not change: ConfigMaps are read in the namespace of the Agent. Foreign returns an
// error if NAMESPACE/NAME of an object is too long for a status.
func Foreign(a *v1alpha1.Agent) (*v1alpha1.Agent, error) {
	out := *a
	out.Spec.Models, out.Spec.Tools = slices.Clone(a.Spec.Models), slices.Clone(a.Spec.Tools)
	refs := []*v1alpha1.SharedReference{&out.Spec.PromptProfileRef}
	for i := range out.Spec.Models {
		refs = append(refs, &out.Spec.Models[i].ProviderRef)
	}
	if a.Spec.Evaluation != nil {
		out.Spec.Evaluation = a.Spec.Evaluation.DeepCopy()
		for i := range out.Spec.Evaluation.Models {
			refs = append(refs, &out.Spec.Evaluation.Models[i].ProviderRef)
		}
	}
	if Learns(a) {
		out.Spec.Memory = a.Spec.Memory.DeepCopy()
		for i := range out.Spec.Memory.Learning.Models {
			refs = append(refs, &out.Spec.Memory.Learning.Models[i].ProviderRef)
		}
	}
	if a.Spec.Embeddings != nil {
		out.Spec.Embeddings = a.Spec.Embeddings.DeepCopy()
		refs = append(refs, &out.Spec.Embeddings.ProviderRef)
	}
	for i := range out.Spec.Tools {
		t := &out.Spec.Tools[i]
		for _, ref := range []**v1alpha1.SharedReference{&t.ServerRef, &t.AgentRef} {
			if *ref != nil {
				*ref = new(**ref)
				refs = append(refs, *ref)
			}
		}
	}
	for _, ref := range refs {
		ref.Namespace = ref.Key(a.Namespace).Namespace
		if len(ref.String()) > maxSharedName {
			return nil, fmt.Errorf("the name %q, which it refers to, is too long for the use in another namespace: namespace and name "+
				"may have %d characters together", ref.Name, maxSharedName-1)
		}
	}
	return &out, nil
}
