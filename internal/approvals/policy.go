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

// DefaultPolicy is the name of the policy, and of its binding, in config/policy.
const DefaultPolicy = "capstan-toolapprovals"

// Settle is how long after policy and binding were made, or changed, a ToolApproval counts as checked. An API server takes up a new policy
// within about a second, and times of objects are cut to whole seconds.
const Settle = 5 * time.Second

const (
	// keepGood and keepBad are how long a look at the policy is good for. What is wrong is likely to be mended soon.
	keepGood = 30 * time.Second
	keepBad  = 5 * time.Second
	// lookTimeout bounds a look at the policy: others wait for it.
	lookTimeout = 10 * time.Second
)

// Policy checks ToolApprovals by the ValidatingAdmissionPolicy of the cluster and its binding, which have one name. It reads them
// when it is asked about a ToolApproval, and keeps what it found for a short while.
type Policy struct {
	name string
	api  admissionclient.AdmissionregistrationV1Interface
	now  func() time.Time
	log  logr.Logger

	// looking holds a token while somebody has last.
	looking chan struct{}
	last    finding
}

// finding is what a look at the policy has found.
type finding struct {
	// at is when it was looked at by our own clock; zero for never.
	at time.Time
	// wrong says why the API server does not check, as far as can be known; empty if it does, and then since says from when on.
	wrong string
	since time.Time
	// newest is when the newest of the ToolApprovals was made that were known by then: the policy was there after them.
	newest time.Time
}

// NewPolicy returns a Policy of this name, which takes get on both kinds of object. It logs when the API server begins or ceases to
// check.
func NewPolicy(name string, api admissionclient.AdmissionregistrationV1Interface, now func() time.Time, log logr.Logger) *Policy {
	return &Policy{name: name, api: api, now: now, log: log, looking: make(chan struct{}, 1)}
}

// Check is a Check: a ToolApproval may be used if policy and binding were made, and last changed, some time before it, and are
// there now.
func (p *Policy) Check(ctx context.Context, made []v1alpha1.ToolApproval) (checked []v1alpha1.ToolApproval, why string, err error) {
	if len(made) == 0 {
		return nil, "", nil
	}
	f, err := p.find(ctx, made)
	if err != nil {
		return nil, "", err
	}
	if f.wrong != "" {
		return nil, unused(made, "it is not known that the API server checks who decides: "+f.wrong+". What it has not checked does not count later either: delete it then, and decide anew"), nil
	}
	var early []v1alpha1.ToolApproval
	for i := range made {
		if made[i].CreationTimestamp.Time.Before(f.since) {
			early = append(early, made[i])
		} else {
			checked = append(checked, made[i])
		}
	}
	if len(early) > 0 {
		why = unused(early, fmt.Sprintf("the API server has not checked who decided, which it does since %s by the ValidatingAdmissionPolicy %s: "+
			"delete what is from before, and decide anew", f.since.UTC().Format(time.RFC3339), p.name))
	}
	return checked, why, nil
}

// find looks at the policy, unless somebody has just done so.
func (p *Policy) find(ctx context.Context, made []v1alpha1.ToolApproval) (finding, error) {
	select {
	case p.looking <- struct{}{}:
		defer func() { <-p.looking }()
	case <-ctx.Done():
		return finding{}, context.Cause(ctx)
	}
	newest := slices.MaxFunc(made, func(a, b v1alpha1.ToolApproval) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	}).CreationTimestamp.Time
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

// holds says whether a finding is still good, for ToolApprovals of which the newest was made at that time. Of one that came after
// the look nobody knows whether the policy was there.
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

// tell logs what is news.
func (p *Policy) tell(found finding) {
	switch {
	case found.wrong != "" && found.wrong != p.last.wrong:
		p.log.Info("Not using decisions about calls of tools: it is not known that the API server checks who decides", "cause", found.wrong)
	case found.wrong == "" && p.last.wrong != "":
		p.log.Info("Using decisions about calls of tools again: the API server checks who decides", "policy", p.name, "since", found.since)
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
	if wrong := amiss(policy, binding); wrong != "" {
		return finding{wrong: wrong}, nil
	}
	since := asItIs(policy)
	if s := asItIs(binding); s.After(since) {
		since = s
	}
	return finding{since: since.Add(Settle)}, nil
}

// asItIs is since when an object has been as it is: since it was made, or if its spec has changed, since anything of it but its
// status has. A binding may have audited before it denied.
func asItIs(o metav1.Object) time.Time {
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

// unread says what an error of the API server means: what is wrong, or that nobody knows.
func (p *Policy) unread(kind string, err error) (wrong string, unknown error) {
	switch {
	case err == nil:
		return "", nil
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the %s %s is not installed: install it by kubectl apply -k config/policy, or by the chart with approvalPolicy.install=true, "+
			"under the name that --approval-policy gives", kind, p.name), nil
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the manager may not get the %s %s: give it the rule of config/rbac/role.yaml about it", kind, p.name), nil
	}
	return "", fmt.Errorf("failed to get the %s %q, by which the API server checks who decides about calls: %w", kind, p.name, err)
}

// isNarrowed says whether a policy leaves some of the objects out that its rules name. The API server gives empty selectors.
func isNarrowed(m *admissionv1.MatchResources) bool {
	if m == nil {
		return true // and holds for none
	}
	selects := func(s *metav1.LabelSelector) bool { return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 }
	return selects(m.NamespaceSelector) || selects(m.ObjectSelector) || len(m.ExcludeResourceRules) > 0
}

// amiss says why a policy and its binding refuse nothing, or not everything; empty if they do. What the policy's rules and
// expressions say is its author's business.
func amiss(policy *admissionv1.ValidatingAdmissionPolicy, binding *admissionv1.ValidatingAdmissionPolicyBinding) string {
	const ofPolicy, ofBinding = "the ValidatingAdmissionPolicy ", "the ValidatingAdmissionPolicyBinding "
	fails := policy.Spec.FailurePolicy
	switch {
	case fails != nil && *fails != admissionv1.Fail:
		return fmt.Sprintf("%s%s has the failurePolicy %s: set it to Fail", ofPolicy, policy.Name, *fails)
	case len(policy.Spec.MatchConditions) > 0:
		return ofPolicy + policy.Name + " has matchConditions, so that it does not hold for all: take them away"
	case isNarrowed(policy.Spec.MatchConstraints):
		return ofPolicy + policy.Name + " has a selector or excludeResourceRules in its matchConstraints, so that it does not hold for all: take them away"
	case binding.Spec.PolicyName != policy.Name:
		return fmt.Sprintf("%s%s binds the policy %s: set its policyName to %s", ofBinding, binding.Name, binding.Spec.PolicyName, policy.Name)
	case !slices.Contains(binding.Spec.ValidationActions, admissionv1.Deny):
		return fmt.Sprintf("%s%s has the validationActions %v, which deny nothing: set them to Deny", ofBinding, binding.Name, binding.Spec.ValidationActions)
	case binding.Spec.MatchResources != nil:
		return ofBinding + binding.Name + " has matchResources, so that it does not hold for all: take them away"
	}
	return ""
}
