package approvals

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const (
	// DefaultPolicy is the name of the policy for ToolApprovals, and of its binding, in config/policy.
	DefaultPolicy = "capstan-toolapprovals"
	// DefaultRequesterPolicy is the name of the policy for requesters, and of its binding, in config/policy.
	DefaultRequesterPolicy = "capstan-requesters"
)

// The validations of config/policy by which the API server checks names. The manager looks for these texts, because the
// meaning of another expression is unknown. Do not change a text: the managers that still run during an upgrade look
// for the old one, and would use no decision until they end. To make a check stricter, add a validation to the policy.
// To replace one, accept both texts here first, and change the policy in a later release.
const (
	validatesDecidedBy       = "object.spec.decidedBy == request.userInfo.username"
	validatesDecidedByGroups = "!has(object.spec.decidedByGroups) || " +
		"(has(request.userInfo.groups) && object.spec.decidedByGroups.all(g, g in request.userInfo.groups))"
	validatesRequestedBy = "!has(object.spec.requestedBy) || object.spec.requestedBy.username == request.userInfo.username " +
		"|| (has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, o.kind == 'Turn' && " +
		"o.apiVersion.startsWith('capstan.dev/') && has(o.controller) && o.controller) " +
		"&& authorizer.group('capstan.dev').resource('requesters').check('impersonate').allowed())"
)

// PolicySettleTime is the minimum time between the last change of the policy or its binding and the creation of a
// ToolApproval that counts as checked. An API server starts to enforce a new policy within about a second, and the
// times of objects have whole seconds.
const PolicySettleTime = 5 * time.Second

const (
	// keepGood is how long a finding is used if the policy is in force, and keepBad how long if it is not: such a
	// policy is likely to be corrected soon.
	keepGood = 30 * time.Second
	keepBad  = 5 * time.Second
	// readTimeout is the time limit of one read of the policy, for which other callers may wait.
	readTimeout = 10 * time.Second
)

// Policy checks ToolApprovals, or the requesters of Turns: it finds out since when a ValidatingAdmissionPolicy of the
// cluster and its binding of the same name have been in force. It keeps its finding for a short time.
type Policy struct {
	name string
	// checks is what the policy checks, and uses is what Capstan uses only if it is checked, for messages. value is the
	// chart's value that installs the policy, and flag is the manager's flag with the name of the policy.
	checks, uses, value, flag string
	// resource is the resource whose creation the policy must check, and validation is the expression that it must have
	// for this field of the objects.
	resource, field, validation string

	api admissionclient.AdmissionregistrationV1Interface
	now func() time.Time
	log logr.Logger

	// lock protects last and weak: it holds a token while a goroutine uses them. Unlike a mutex, it lets a caller stop
	// waiting.
	lock chan struct{}
	last finding
	// weak is the time of the last read that found the policy or its binding too weak; zero if there was none. It is
	// needed because a change that only removes a field, such as matchConditions, leaves no time in the object.
	weak time.Time
}

// finding is the result of one read of the policy.
type finding struct {
	// at is the time of the read by this machine's clock; zero if there was none.
	at time.Time
	// problem says why the policy may not be in force. It is empty if the policy is in force.
	problem string
	// since is the time from which the checks of a policy in force count.
	since time.Time
	// checksGroups reports whether the API server also checks decidedByGroups. The policy of an older version does
	// not.
	checksGroups bool
	// newest is the creation time of the newest object that was known at the read: the policy was in force after that
	// time.
	newest time.Time
}

// NewPolicy returns the Policy for ToolApprovals, with this name. The client needs the verb get on both kinds of
// objects. The Policy logs when the API server begins or stops to check who decides.
func NewPolicy(name string, api admissionclient.AdmissionregistrationV1Interface, now func() time.Time, log logr.Logger) *Policy {
	return &Policy{
		name: name, checks: "who decides", uses: "ToolApprovals", value: "approvalPolicy.install=true", flag: "--approval-policy",
		resource: "toolapprovals", field: "spec.decidedBy", validation: validatesDecidedBy,
		api: api, now: now, log: log, lock: make(chan struct{}, 1),
	}
}

// NewRequesterPolicy returns the Policy for the requesters of Turns, with this name. The client needs the verb get on
// both kinds of objects.
func NewRequesterPolicy(name string, api admissionclient.AdmissionregistrationV1Interface, now func() time.Time, log logr.Logger) *Policy {
	p := NewPolicy(name, api, now, log)
	p.checks, p.uses, p.value, p.flag = "requesters", "the names of requesters", "requesterPolicy.install=true", "--requester-policy"
	p.resource, p.field, p.validation = "turns", "spec.requestedBy", validatesRequestedBy
	return p
}

// CheckRequester implements RequesterCheck. The requester of a Turn counts as checked if the policy and its binding are
// in force now, and last changed at least PolicySettleTime before the Turn was created.
func (p *Policy) CheckRequester(ctx context.Context, created time.Time) (why string, err error) {
	f, err := p.find(ctx, created)
	switch {
	case err != nil:
		return "", err
	case f.problem != "":
		return "Capstan cannot confirm that the API server checks requesters, because " + f.problem +
			". A Turn that was not checked does not count later either: create a new Turn then", nil
	case created.Before(f.since):
		return fmt.Sprintf("the API server has checked requesters only since %s (ValidatingAdmissionPolicy %s), and the Turn is older: "+
			"create a new Turn", f.since.UTC().Format(time.RFC3339), p.name), nil
	}
	return "", nil
}

// Check implements the type Check. A ToolApproval may be used if the policy and its binding are in force now, and last
// changed at least PolicySettleTime before the ToolApproval was created.
func (p *Policy) Check(ctx context.Context, made []v1alpha1.ToolApproval) (checked []v1alpha1.ToolApproval, why string, err error) {
	if len(made) == 0 {
		return nil, "", nil
	}
	newest := slices.MaxFunc(made, func(a, b v1alpha1.ToolApproval) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	}).CreationTimestamp.Time
	f, err := p.find(ctx, newest)
	if err != nil {
		return nil, "", err
	}
	if f.problem != "" {
		return nil, unused(made, "Capstan cannot confirm that the API server checks who decides, because "+f.problem+
			". A ToolApproval that was not checked does not count later either: decide again then"), nil
	}
	var early []v1alpha1.ToolApproval
	for _, a := range made {
		if a.CreationTimestamp.Time.Before(f.since) {
			early = append(early, a)
			continue
		}
		if !f.checksGroups {
			a.Spec.DecidedByGroups = nil // a is a copy
		}
		checked = append(checked, a)
	}
	if len(early) > 0 {
		why = unused(early, fmt.Sprintf("the API server has checked who decides only since %s (ValidatingAdmissionPolicy %s): "+
			"decide again", f.since.UTC().Format(time.RFC3339), p.name))
	}
	return checked, why, nil
}

// find returns the last finding if it may still be used for objects that were created at newest or before. Otherwise it
// reads the policy.
func (p *Policy) find(ctx context.Context, newest time.Time) (finding, error) {
	select {
	case p.lock <- struct{}{}:
		defer func() { <-p.lock }()
	case <-ctx.Done():
		return finding{}, context.Cause(ctx)
	}
	now := p.now()
	if p.last.isUsable(now, newest) {
		return p.last, nil
	}
	found, err := p.read(ctx)
	if err != nil {
		return finding{}, err
	}
	found.at, found.newest = now, newest
	p.logChange(found)
	p.last = found
	return found, nil
}

// isUsable reports whether a finding may still be used for objects that were created at newest or before. A finding of
// a policy in force may not be used for objects that were created after the read, because the policy may have been
// removed before they were created.
func (f finding) isUsable(now, newest time.Time) bool {
	age := now.Sub(f.at)
	if f.at.IsZero() || age < 0 {
		return false
	}
	if f.problem != "" {
		return age < keepBad
	}
	return age < keepGood && !newest.After(f.newest)
}

// logChange logs a finding that differs from the last one.
func (p *Policy) logChange(found finding) {
	switch {
	case found.problem != "" && found.problem != p.last.problem:
		p.log.Info("Not using "+p.uses+": cannot confirm that the API server checks "+p.checks, "cause", found.problem)
	case found.problem == "" && p.last.problem != "":
		p.log.Info("Using "+p.uses+" again: the API server checks "+p.checks, "policy", p.name, "since", found.since)
	}
}

// read reads the policy and its binding from the API server.
func (p *Policy) read(ctx context.Context) (finding, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	policy, err := p.api.ValidatingAdmissionPolicies().Get(ctx, p.name, metav1.GetOptions{})
	if problem, err := p.interpret("ValidatingAdmissionPolicy", err); problem != "" || err != nil {
		return finding{problem: problem}, err
	}
	binding, err := p.api.ValidatingAdmissionPolicyBindings().Get(ctx, p.name, metav1.GetOptions{})
	if problem, err := p.interpret("ValidatingAdmissionPolicyBinding", err); problem != "" || err != nil {
		return finding{problem: problem}, err
	}
	if problem := p.weakness(policy, binding); problem != "" {
		p.weak = p.now()
		return finding{problem: problem}, nil
	}
	since := unchangedSince(policy)
	if p.weak.After(since) {
		since = p.weak
	}
	if s := unchangedSince(binding); s.After(since) {
		since = s
	}
	return finding{since: since.Add(PolicySettleTime), checksGroups: validates(policy, validatesDecidedByGroups)}, nil
}

// validates reports whether a policy has a validation with this expression. Others make a policy only stricter.
func validates(policy *admissionv1.ValidatingAdmissionPolicy, expression string) bool {
	return slices.ContainsFunc(policy.Spec.Validations, func(v admissionv1.Validation) bool { return v.Expression == expression })
}

// unchangedSince returns the time since which an object has been unchanged: its creation or, if its spec has changed,
// the last change outside its status. Before the last change, a binding may have audited requests instead of denying
// them.
func unchangedSince(o metav1.Object) time.Time {
	since := o.GetCreationTimestamp().Time
	if o.GetGeneration() <= 1 {
		return since
	}
	for _, f := range o.GetManagedFields() {
		if f.Subresource == "" && f.Time != nil && f.Time.After(since) {
			since = f.Time.Time
		}
	}
	return since
}

// interpret interprets an error of the API server. If the object is missing or the manager may not read it, problem
// says so. Any other error means that the state of the policy is unknown.
func (p *Policy) interpret(kind string, err error) (problem string, unknown error) {
	switch {
	case err == nil:
		return "", nil
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the %s %s is not installed: install it %s", kind, p.name, p.source()), nil
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the manager may not get the %s %s: grant it the rule for this kind in config/rbac/role.yaml", kind, p.name), nil
	}
	return "", fmt.Errorf("failed to get the %s %q, by which the API server checks %s: %w", kind, p.name, p.checks, err)
}

// source returns, for messages, how the policy and its binding are installed. It names the flag, because config/policy
// and the chart use different names, and the manager reads the objects of one name only.
func (p *Policy) source() string {
	return "with kubectl apply -k config/policy, or with the chart and " + p.value + ", under the name in " + p.flag
}

// isNarrowed reports whether a policy excludes some of the objects that its rules name. Empty selectors, which the API
// server stores by default, exclude nothing.
func isNarrowed(m *admissionv1.MatchResources) bool {
	if m == nil {
		return true // without constraints it applies to no object
	}
	selects := func(s *metav1.LabelSelector) bool { return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 }
	return selects(m.NamespaceSelector) || selects(m.ObjectSelector) || len(m.ExcludeResourceRules) > 0
}

// covers reports whether a policy applies to each creation of an object of this resource. The API server adds a scope
// to the rules when it stores them.
func covers(m *admissionv1.MatchResources, resource string) bool {
	if m.MatchPolicy != nil && *m.MatchPolicy != admissionv1.Equivalent {
		return false // not to requests for other versions of the API
	}
	return slices.ContainsFunc(m.ResourceRules, func(r admissionv1.NamedRuleWithOperations) bool {
		return len(r.ResourceNames) == 0 &&
			containsAny(r.Operations, admissionv1.Create, admissionv1.OperationAll) &&
			containsAny(r.APIGroups, v1alpha1.GroupVersion.Group, "*") &&
			containsAny(r.APIVersions, v1alpha1.GroupVersion.Version, "*") &&
			containsAny(r.Resources, resource, resource+"/*", "*", "*/*") &&
			(r.Scope == nil || *r.Scope != admissionv1.ClusterScope)
	})
}

// containsAny reports whether a list contains at least one of the values.
func containsAny[T comparable](list []T, values ...T) bool {
	return slices.ContainsFunc(values, func(v T) bool { return slices.Contains(list, v) })
}

// weakness returns why a policy and its binding do not deny all forged names, or an empty text if they do. A policy may
// be stricter than the shipped one. The policy of an older version counts if it has the expression of this version. The
// policy for requesters of charts before 0.2.33 does not have it: it accepts owners of other API groups.
func (p *Policy) weakness(policy *admissionv1.ValidatingAdmissionPolicy, binding *admissionv1.ValidatingAdmissionPolicyBinding) string {
	const ofPolicy, ofBinding = "the ValidatingAdmissionPolicy ", "the ValidatingAdmissionPolicyBinding "
	fails := policy.Spec.FailurePolicy
	switch {
	case fails != nil && *fails != admissionv1.Fail:
		return fmt.Sprintf("%s%s has the failurePolicy %s: set it to Fail", ofPolicy, policy.Name, *fails)
	case len(policy.Spec.MatchConditions) > 0:
		return ofPolicy + policy.Name + " has matchConditions, so it does not apply to all requests: remove them"
	case isNarrowed(policy.Spec.MatchConstraints):
		return ofPolicy + policy.Name + " has a selector or excludeResourceRules in its matchConstraints, so it " +
			"does not apply to all requests: remove them"
	case policy.Spec.ParamKind != nil:
		return ofPolicy + policy.Name + " has a paramKind, so it does not apply to all requests if parameters are missing: remove it"
	case !covers(policy.Spec.MatchConstraints, p.resource):
		return fmt.Sprintf("%s%s does not apply to each creation of %s: install it again %s", ofPolicy, policy.Name, p.resource, p.source())
	case !validates(policy, p.validation):
		return fmt.Sprintf("%s%s lacks the expression by which Capstan checks %s: install it again %s", ofPolicy, policy.Name, p.field,
			p.source())
	case binding.Spec.PolicyName != policy.Name:
		return fmt.Sprintf("%s%s binds the policy %s: set its policyName to %s", ofBinding, binding.Name,
			binding.Spec.PolicyName, policy.Name)
	case !slices.Contains(binding.Spec.ValidationActions, admissionv1.Deny):
		return fmt.Sprintf("%s%s has the validationActions %v, which deny nothing: set them to Deny", ofBinding,
			binding.Name, binding.Spec.ValidationActions)
	case binding.Spec.MatchResources != nil:
		return ofBinding + binding.Name + " has matchResources, so it does not apply to all requests: remove them"
	}
	return ""
}
