package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/translate"
)

// AgentReconciler reports whether an Agent can run Turns: whether everything that it refers to exists.
type AgentReconciler struct {
	Client client.Client
	Now    func() time.Time
	// ServerClock returns the time by the API server's clock as it is now, for age.
	ServerClock func() time.Time
	// ConfigMaps returns a reader of the ConfigMaps of a namespace.
	ConfigMaps func(namespace string) translate.ConfigMaps
	// ManagerSkills are available to every Agent.
	ManagerSkills []prepare.Skill
	// Recheck is the interval at which Agents are reconciled where ConfigMaps may not be watched. If Recheck is 0,
	// the reconciler watches ConfigMaps.
	Recheck time.Duration
	// ProbeInterval is the time between two probes of an endpoint that answers. It also limits the time for which an
	// object counts as new (see newAge).
	ProbeInterval time.Duration
	// LeftOut reports objects for which the cache has no memory. If LeftOut is nil, the cache holds all objects.
	LeftOut *LeftOut
	// Sharing checks whether objects of other namespaces may be used.
	Sharing *sharing.Checker

	written ownWrites
}

// SetupWithManager registers the reconciler. An Agent is reconciled when its spec changes, and when an object that
// it refers to appears, changes or is deleted.
func (r *AgentReconciler) SetupWithManager(mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Agent{}, builder.WithPredicates(specChanged())).
		Watches(&v1alpha1.PromptProfile{}, sharedReferrers(r.Client, indexAgentProfile)).
		Watches(&v1alpha1.ModelProvider{}, sharedReferrers(r.Client, indexAgentProvider)).
		Watches(&v1alpha1.ToolServer{}, sharedReferrers(r.Client, indexAgentToolServer),
			builder.WithPredicates(toolServerChanged())).
		Watches(&v1alpha1.Agent{}, callers(r.Client), builder.WithPredicates(specChanged())).
		WithOptions(fairOptions(renderWorkers, renderWorkersOfNamespace))
	if r.Recheck == 0 {
		b = b.Watches(&corev1.ConfigMap{}, agentsOfConfigMap(r.Client), builder.OnlyMetadata)
	}
	return b.Complete(r)
}

// Reconcile checks the objects that one Agent refers to, and reports the result.
func (r *AgentReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var a v1alpha1.Agent
	if ok, result, err := r.written.get(ctx, r.Client, req.NamespacedName, &a); !ok {
		return result, err
	}
	if r.LeftOut.isLeftOut(&a) {
		return r.LeftOut.report(ctx, &a, &a.Status.Conditions, &a.Status.ObservedGeneration)
	}
	before := a.Status.DeepCopy()
	profile, hash, err := r.resolveProfile(ctx, &a)
	if err != nil {
		return ctrl.Result{}, err
	}
	models, err := r.resolveModels(ctx, &a)
	if err != nil {
		return ctrl.Result{}, err
	}
	tools, exposed, err := r.resolveTools(ctx, &a)
	if err != nil {
		return ctrl.Result{}, err
	}
	judges, err := r.resolveJudges(ctx, &a)
	if err != nil {
		return ctrl.Result{}, err
	}
	learning, err := r.resolveLearning(ctx, &a)
	if err != nil {
		return ctrl.Result{}, err
	}
	embeddings, err := r.resolveEmbeddings(ctx, &a)
	if err != nil {
		return ctrl.Result{}, err
	}
	now := r.Now()
	profile.set(&a.Status.Conditions, v1alpha1.ConditionProfileResolved, a.Generation, now)
	models.set(&a.Status.Conditions, v1alpha1.ConditionModelsResolved, a.Generation, now)
	tools.set(&a.Status.Conditions, v1alpha1.ConditionToolsResolved, a.Generation, now)
	redaction := checkRedaction(ctx, &a)
	judges.setOrRemove(&a.Status.Conditions, v1alpha1.ConditionJudgesResolved, a.Generation, now)
	learning.setOrRemove(&a.Status.Conditions, v1alpha1.ConditionLearningResolved, a.Generation, now)
	embeddings.setOrRemove(&a.Status.Conditions, v1alpha1.ConditionEmbeddingsResolved, a.Generation, now)
	sum := combineFindings(redaction, profile, models, tools)
	sum.setReady(&a.Status.Conditions, a.Generation, now)
	a.Status.PromptRenderHash, a.Status.Tools = hash, exposed
	a.Status.ObservedGeneration = a.Generation
	again := ctrl.Result{RequeueAfter: earliest(r.Recheck, models.after, tools.after, recheckConsent(&a))}
	if equality.Semantic.DeepEqual(before, &a.Status) {
		return again, profile.failure
	}
	_, again, err = r.written.writeStatus(ctx, r.Client, &a, again)
	return again, errors.Join(profile.failure, err)
}

// earliest returns the shortest of the durations that are not 0, or 0 if all are 0.
func earliest(times ...time.Duration) time.Duration {
	var first time.Duration
	for _, t := range times {
		if t > 0 && (first == 0 || t < first) {
			first = t
		}
	}
	return first
}

// awaitedNew returns why Turns wait for an object, and for how long. Turns wait only for an object that is new and does
// not answer; for other objects awaitedNew returns nothing. why contains the reason of the object's condition, but not
// the condition's message: each change of the message would be written to every Agent and every waiting Turn.
func (r *AgentReconciler) awaitedNew(kind string, o client.Object, c *metav1.Condition) (why string, left time.Duration) {
	if !isUnreachable(c) {
		return "", 0
	}
	if left = newFor(o, r.Now(), r.ServerClock(), r.ProbeInterval); left <= 0 {
		return "", 0
	}
	return fmt.Sprintf("%s %q is new and does not answer (%s): turns wait for it until it is %s old", kind, o.GetName(),
		c.Reason, newAge(r.ProbeInterval)), left
}

// combineFindings combines findings. If one or more findings do not hold, the result has the reason of the first of
// them, and the messages of all of them.
func combineFindings(findings ...finding) finding {
	sum := finding{holds: true, reason: v1alpha1.ReasonReady, message: "the agent can run turns"}
	var messages []string
	for _, f := range findings {
		if f.holds {
			continue
		}
		if sum.holds {
			sum.holds, sum.reason, sum.inOwnText = false, f.reason, f.inOwnText
		}
		messages = append(messages, f.message)
	}
	if !sum.holds {
		sum.message = strings.Join(messages, "; ")
	}
	return sum
}

// checkRedaction checks the redaction rules of an Agent.
func checkRedaction(ctx context.Context, a *v1alpha1.Agent) finding {
	if _, err := translate.Rules(ctx, a); err != nil {
		return finding{reason: v1alpha1.ReasonInvalidRedaction, message: err.Error()}
	}
	return finding{holds: true}
}

// resolveProfile finds the Agent's profile and renders the prompt of the Agent with this profile. hash is the hash of
// the rendered prompt; it is empty if the finding does not hold.
func (r *AgentReconciler) resolveProfile(ctx context.Context, a *v1alpha1.Agent) (f finding, hash string, err error) {
	name := a.Spec.PromptProfileRef
	p, err := r.Sharing.Profile(ctx, sharing.From(r.Client), name, a.Namespace)
	if refused, ok := errors.AsType[*sharing.RefusedError](err); ok {
		return finding{reason: v1alpha1.ReasonReferenceNotAllowed, message: refused.Error()}, "", nil
	}
	if apierrors.IsNotFound(err) {
		return finding{reason: v1alpha1.ReasonProfileNotFound, message: fmt.Sprintf("PromptProfile %q does not exist", name)}, "", nil
	}
	if err != nil {
		return finding{}, "", fmt.Errorf("failed to get prompt profile %q: %w", name, err)
	}
	switch c := ready(p.Status.Conditions, p.Generation); {
	case c == nil:
		return finding{
			reason:  v1alpha1.ReasonProfileNotRendered,
			message: fmt.Sprintf("PromptProfile %q is not rendered yet", name),
		}, "", nil
	case c.Status != metav1.ConditionTrue && p.Namespace != a.Namespace: // the message may contain names of that namespace
		return finding{
			reason:  v1alpha1.ReasonProfileNotReady,
			message: fmt.Sprintf("PromptProfile %q is not ready (%s)", name, c.Reason),
		}, "", nil
	case c.Status != metav1.ConditionTrue:
		return finding{
			reason:  v1alpha1.ReasonProfileNotReady,
			message: fmt.Sprintf("PromptProfile %q is not ready: %s", name, c.Message),
		}, "", nil
	}
	if _, err := translate.Location(a); err != nil {
		f := finding{reason: v1alpha1.ReasonInvalidTimeZone, message: err.Error()}
		return f, "", nil //nolint:nilerr // because the error is the finding
	}
	report, err := r.sample(ctx, a, p)
	if failure, ok := errors.AsType[*translate.UnreadableError](err); ok {
		return unreadableConfigMap(failure), "", nil
	}
	if failure, ok := errors.AsType[*invalid.Error](err); ok {
		reason := unrenderedReason(err, failure.Field)
		own := prepare.Agent{Name: a.Name, Description: a.Spec.Description, Instructions: a.Spec.Instructions}
		inOwnText := reason == v1alpha1.ReasonInvalidInstructions && prepare.CheckInstructions(own) != nil
		return finding{reason: reason, message: failure.Error(), inOwnText: inOwnText}, "", nil
	}
	if err != nil {
		return finding{}, "", err
	}
	resolved := finding{
		holds: true, reason: v1alpha1.ReasonResolved,
		message: fmt.Sprintf("PromptProfile %q, version %s", name, p.Spec.Version),
	}
	return resolved, report.RenderHash, nil
}

// unrenderedReason returns the condition's reason for an Agent whose prompt cannot be rendered. The field with the
// error shows whether the Agent or its profile must be changed.
func unrenderedReason(err error, field string) string {
	_, missing := errors.AsType[*translate.MissingError](err)
	switch {
	case missing:
		return v1alpha1.ReasonConfigMapNotFound
	case strings.HasPrefix(field, "Agent spec.skills."):
		return v1alpha1.ReasonSkillNotFound
	case strings.HasPrefix(field, "Agent "):
		return v1alpha1.ReasonInvalidInstructions
	}
	return v1alpha1.ReasonProfileNotReady
}

// sample renders the Agent's prompt for a Turn without parameters.
func (r *AgentReconciler) sample(ctx context.Context, a *v1alpha1.Agent, p *v1alpha1.PromptProfile) (prompt.Report, error) {
	agent, err := translate.Agent(ctx, a, r.ConfigMaps(a.Namespace))
	if err != nil {
		return prompt.Report{}, err
	}
	profile, err := translate.Profile(ctx, p, r.ConfigMaps(a.Spec.PromptProfileRef.Key(a.Namespace).Namespace))
	if err != nil {
		return prompt.Report{}, err
	}
	return prepare.Sample(agent, profile, r.ManagerSkills, a.Spec.Models[0].Model)
}
