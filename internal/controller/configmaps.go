package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// profileConfigMaps returns the names of the ConfigMaps that a profile takes texts from.
func profileConfigMaps(o client.Object) []string {
	p, ok := o.(*v1alpha1.PromptProfile)
	if !ok {
		return nil
	}
	names := contributionConfigMaps(p.Spec.Contributions)
	names = append(names, sourceConfigMaps(p.Spec.InstructionsFrom)...)
	if p.Spec.Identity != nil {
		names = append(names, sourceConfigMaps(p.Spec.Identity.SystemPromptFrom)...)
	}
	for _, s := range p.Spec.Skills {
		if s.ContentFrom != nil {
			names = append(names, s.ContentFrom.ConfigMapKeyRef.Name)
		}
	}
	return names
}

// agentConfigMaps returns the names of the ConfigMaps that an Agent takes texts from. It leaves out the ConfigMaps that
// only the Agent's profile names.
func agentConfigMaps(o client.Object) []string {
	a, ok := o.(*v1alpha1.Agent)
	if !ok {
		return nil
	}
	return append(contributionConfigMaps(a.Spec.Contributions), sourceConfigMaps(a.Spec.InstructionsFrom)...)
}

// awaitedConfigMaps returns the names of the ConfigMaps that must exist before a Turn is bound. The journal of a
// Turn that was bound before may hold the texts already, unless the Turn was handed back without a prompt. A suspended
// Turn awaits none until it is to continue.
func awaitedConfigMaps(o client.Object) []string {
	t, ok := o.(*v1alpha1.Turn)
	if !ok || t.IsFinished() || t.Spec.DesiredState == v1alpha1.DesiredStateSuspended || t.Epoch() > 0 && !lacksPrompt(t) {
		return nil
	}
	var names []string
	for _, ref := range turnConfigMaps(t) {
		names = append(names, ref.name)
	}
	return names
}

// configMapField is a field of a Turn that names a ConfigMap.
type configMapField struct{ field, name string }

// turnConfigMaps returns the fields of a Turn that name ConfigMaps.
func turnConfigMaps(t *v1alpha1.Turn) []configMapField {
	var all []configMapField
	if from := t.Spec.MessageFrom; from != nil {
		all = append(all, configMapField{"spec.messageFrom.configMapKeyRef", from.ConfigMapKeyRef.Name})
	}
	for i, p := range t.Spec.Parameters {
		if from := p.ValueFrom; from != nil {
			all = append(all, configMapField{fmt.Sprintf("spec.parameters[%d].valueFrom.configMapKeyRef", i), from.ConfigMapKeyRef.Name})
		}
	}
	if t.Spec.Context != nil {
		for i, c := range t.Spec.Context.Contributions {
			if ref := c.ConfigMapKeyRef; ref != nil {
				all = append(all, configMapField{fmt.Sprintf("spec.context.contributions[%d].configMapKeyRef", i), ref.Name})
			}
		}
	}
	for i, a := range t.Spec.Attachments {
		if ref := a.ConfigMapKeyRef; ref != nil {
			all = append(all, configMapField{fmt.Sprintf("spec.attachments[%d].configMapKeyRef", i), ref.Name})
		}
	}
	return all
}

// sourceConfigMaps returns the name of the ConfigMap of a source, or nil if there is no source.
func sourceConfigMaps(from *v1alpha1.ContentSource) []string {
	if from == nil {
		return nil
	}
	return []string{from.ConfigMapKeyRef.Name}
}

func contributionConfigMaps(list []v1alpha1.Contribution) []string {
	var names []string
	for _, c := range list {
		if c.ConfigMapKeyRef != nil {
			names = append(names, c.ConfigMapKeyRef.Name)
		}
	}
	return names
}

// requestsFor returns a request for each object of a namespace whose indexed field has this value. The type of list is
// the kind of the objects.
func requestsFor(ctx context.Context, c client.Client, list client.ObjectList, namespace, field, value string) []reconcile.Request {
	// Only the keys of the objects are read, so no copies are necessary. An event may concern thousands of large
	// objects.
	err := c.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{field: value}, client.UnsafeDisableDeepCopy)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the objects that refer to another", "field", field, "name", value)
		return nil
	}
	var requests []reconcile.Request
	_ = meta.EachListItem(list, func(o runtime.Object) error { // the function never returns an error
		if object, ok := o.(client.Object); ok {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
		}
		return nil
	})
	return requests
}

// referrers maps an object to the objects that refer to it. The type of list is the kind of the referring objects.
func referrers(c client.Client, list client.ObjectList, field string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return requestsFor(ctx, c, list.DeepCopyObject().(client.ObjectList), o.GetNamespace(), field, o.GetName())
	})
}

// sharedReferrers maps an object to the Agents that refer to it, in any namespace.
func sharedReferrers(c client.Client, field string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return requestsFor(ctx, c, &v1alpha1.AgentList{}, metav1.NamespaceAll, field, client.ObjectKeyFromObject(o).String())
	})
}

// agentsOfConfigMap maps a ConfigMap to the Agents whose prompts contain its texts: the Agents that name it, and the
// Agents whose profile names it. An event of the profile is not enough for the latter, because the profile's status may
// stay the same when the text changes.
func agentsOfConfigMap(c client.Client) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		requests := requestsFor(ctx, c, &v1alpha1.AgentList{}, o.GetNamespace(), indexAgentConfigMap, o.GetName())
		for _, profile := range requestsFor(ctx, c, &v1alpha1.PromptProfileList{}, o.GetNamespace(), indexProfileConfigMap, o.GetName()) {
			requests = append(requests,
				requestsFor(ctx, c, &v1alpha1.AgentList{}, metav1.NamespaceAll, indexAgentProfile, profile.String())...)
		}
		return requests
	})
}

// isCreated passes the creation of an object.
func isCreated() predicate.Predicate {
	no := func(event.UpdateEvent) bool { return false }
	return predicate.Funcs{UpdateFunc: no, DeleteFunc: func(event.DeleteEvent) bool { return false }}
}

// missingConfigMap returns why the first missing or unreadable ConfigMap of a Turn cannot be used, or an empty string
// if all ConfigMaps exist. It reads nothing if the Turn awaits no ConfigMaps.
func missingConfigMap(ctx context.Context, c client.Reader, t *v1alpha1.Turn) (string, error) {
	if len(awaitedConfigMaps(t)) == 0 {
		return "", nil
	}
	for _, ref := range turnConfigMaps(t) {
		found := &metav1.PartialObjectMetadata{}
		found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		err := c.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: ref.name}, found)
		what := fmt.Sprintf("ConfigMap %q, which %s names,", ref.name, ref.field)
		switch {
		case apierrors.IsNotFound(err):
			return what + " does not exist", nil
		case apierrors.IsForbidden(err):
			return what + " cannot be read: " + readFailure(err), nil
		case err != nil:
			return "", fmt.Errorf("failed to look for ConfigMap %q: %w", ref.name, err)
		}
	}
	return "", nil
}
