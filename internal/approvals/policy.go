package approvals

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// PolicySettleTime is the time after the last change of the policy and its binding from which ToolApprovals count as
// checked. An API server starts to enforce a new policy within about a second, and the times of objects have whole
// seconds.
const PolicySettleTime = 5 * time.Second

const (
	// keepGood and keepBad are how long a finding about the policy is used. A faulty policy is likely to be
	// corrected soon.
	keepGood = 30 * time.Second
	keepBad  = 5 * time.Second
	// lookTimeout bounds one read of the policy, because other callers wait for it.
	lookTimeout = 10 * time.Second
)

// Policy checks ToolApprovals, or the requesters of Turns, with a ValidatingAdmissionPolicy of the cluster and its
// binding, which have the same name. It reads both when it checks an object, and keeps its finding for a short time.
type Policy struct {
	name string
	// checks is the purpose of the policy. value is the chart's value that installs it, and flag is the manager's flag
	// with its name.
	checks, value, flag string

	api admissionclient.AdmissionregistrationV1Interface
	now func() time.Time
	log logr.Logger

	// looking is a lock for last: it holds a token while a goroutine uses last.
	looking chan struct{}
	last    finding
	// weak is the time of the last read that found the policy or its binding too weak; zero if there was none. A change
	// that only removes a field, such as matchConditions, leaves no time in the object.
	weak time.Time
}

// finding is the result of one read of the policy.
type finding struct {
	// at is the time of the read by this machine's clock; zero if there was none.
	at time.Time
	// wrong says why the API server may not check who decides. If wrong is empty, the API server checks, and since
	// is the time from which it has done so.
	wrong string
	since time.Time
	// checksGroups reports whether the API server also checks decidedByGroups. The policy of an older version does
	// not.
	checksGroups bool
	// newest is the creation time of the newest object that was known at the read: the policy was in force after it.
	newest time.Time
}

// NewPolicy returns a Policy with this name. The client needs the verb get on both kinds of objects. The Policy
// logs when the API server begins or stops to check who decides.
func NewPolicy(name string, api admissionclient.AdmissionregistrationV1Interface, now func() time.Time, log logr.Logger) *Policy {
	return &Policy{
		name: name, checks: "who decides", value: "approvalPolicy.install=true", flag: "--approval-policy", api: api, now: now, log: log,
		looking: make(chan struct{}, 1),
	}
}

// NewRequesterPolicy returns the Policy for the requesters of Turns, with this name. The client needs the verb get on
// both kinds of objects.
func NewRequesterPolicy(name string, api admissionclient.AdmissionregistrationV1Interface, now func() time.Time, log logr.Logger) *Policy {
	p := NewPolicy(name, api, now, log)
	p.checks, p.value, p.flag = "who asks", "requesterPolicy.install=true", "--requester-policy"
	return p
}

// CheckRequester implements RequesterCheck. The requester of a Turn is checked if the policy and its binding are in
// force now, and were created and last changed some time before the Turn was created.
func (p *Policy) CheckRequester(ctx context.Context, created time.Time) (why string, err error) {
	f, err := p.find(ctx, created)
	switch {
	case err != nil:
		return "", err
	case f.wrong != "":
		return "Capstan cannot confirm that the API server checks who asks, because " + f.wrong +
			". A Turn that was not checked does not count later either: create a new Turn then", nil
	case created.Before(f.since):
		return fmt.Sprintf("the API server has checked who asks only since %s (ValidatingAdmissionPolicy %s), and the Turn is older: "+
			"create a new Turn", f.since.UTC().Format(time.RFC3339), p.name), nil
	}
	return "", nil
}

// Check implements the type Check. A ToolApproval may be used if the policy and its binding are in force now, and
// were created and last changed some time before it.
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
	if f.wrong != "" {
		return nil, unused(made, "Capstan cannot confirm that the API server checks who decides, because "+f.wrong+
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

// find returns the last finding if it may still be used for objects of which the newest was created at newest, or else
// reads the policy.
func (p *Policy) find(ctx context.Context, newest time.Time) (finding, error) {
	select {
	case p.looking <- struct{}{}:
		defer func() { <-p.looking }()
	case <-ctx.Done():
		return finding{}, context.Cause(ctx)
	}
	now := p.now()
	if p.last.holds(now, newest) {
		return p.last, nil
	}
	found, err := p.look(ctx)
	if err != nil {
		return finding{}, err
	}
	found.at, found.newest = now, newest
	p.tell(found)
	p.last = found
	return found, nil
}

// holds reports whether a finding may still be used for objects of which the newest was created at newest. It may not
// if an object was created after the read, because the policy may have been removed before that.
func (f finding) holds(now, newest time.Time) bool {
	age := now.Sub(f.at)
	if f.at.IsZero() || age < 0 {
		return false
	}
	if f.wrong != "" {
		return age < keepBad
	}
	return age < keepGood && !newest.After(f.newest)
}

// tell logs a finding that differs from the last one.
func (p *Policy) tell(found finding) {
	switch {
	case found.wrong != "" && found.wrong != p.last.wrong:
		p.log.Info("Not using ToolApprovals: cannot confirm that the API server checks "+p.checks, "cause", found.wrong)
	case found.wrong == "" && p.last.wrong != "":
		p.log.Info("Using ToolApprovals again: the API server checks "+p.checks, "policy", p.name, "since", found.since)
	}
}

// look reads the policy and its binding from the API server.
func (p *Policy) look(ctx context.Context) (finding, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	policy, err := p.api.ValidatingAdmissionPolicies().Get(ctx, p.name, metav1.GetOptions{})
	if wrong, err := p.unread("ValidatingAdmissionPolicy", err); wrong != "" || err != nil {
		return finding{wrong: wrong}, err
	}
	binding, err := p.api.ValidatingAdmissionPolicyBindings().Get(ctx, p.name, metav1.GetOptions{})
	if wrong, err := p.unread("ValidatingAdmissionPolicyBinding", err); wrong != "" || err != nil {
		return finding{wrong: wrong}, err
	}
	if wrong := weakness(policy, binding); wrong != "" {
		p.weak = p.now()
		return finding{wrong: wrong}, nil
	}
	since := unchangedSince(policy)
	if p.weak.After(since) {
		since = p.weak
	}
	if s := unchangedSince(binding); s.After(since) {
		since = s
	}
	return finding{since: since.Add(PolicySettleTime), checksGroups: checksGroups(policy)}, nil
}

// checksGroups reports whether a policy for ToolApprovals checks decidedByGroups.
func checksGroups(policy *admissionv1.ValidatingAdmissionPolicy) bool {
	return slices.ContainsFunc(policy.Spec.Validations, func(v admissionv1.Validation) bool {
		return strings.Contains(v.Expression, "decidedByGroups")
	})
}

// unchangedSince returns the time since which an object has been unchanged. That is its creation or, if its spec has
// changed, the last change outside its status: a binding may have only audited before it denied.
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

// unread interprets an error of the API server: either the policy is missing or unreadable, which wrong describes,
// or the state is unknown.
func (p *Policy) unread(kind string, err error) (wrong string, unknown error) {
	switch {
	case err == nil:
		return "", nil
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the %s %s is not installed: install it with kubectl apply -k config/policy, or with "+
			"the chart and %s, under the name in %s", kind, p.name, p.value, p.flag), nil
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the manager may not get the %s %s: grant it the rule for this kind in config/rbac/role.yaml", kind, p.name), nil
	}
	return "", fmt.Errorf("failed to get the %s %q, by which the API server checks %s: %w", kind, p.name, p.checks, err)
}

// isNarrowed reports whether a policy excludes some of the objects that its rules name. The API server stores empty
// selectors by default.
func isNarrowed(m *admissionv1.MatchResources) bool {
	if m == nil {
		return true // without constraints it applies to no object
	}
	selects := func(s *metav1.LabelSelector) bool { return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 }
	return selects(m.NamespaceSelector) || selects(m.ObjectSelector) || len(m.ExcludeResourceRules) > 0
}

// weakness returns why a policy and its binding do not deny all invalid requests, or an empty text if they do. It does
// not judge the policy's rules and expressions, for which the author of the policy is responsible.
func weakness(policy *admissionv1.ValidatingAdmissionPolicy, binding *admissionv1.ValidatingAdmissionPolicyBinding) string {
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
