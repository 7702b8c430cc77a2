package approvals

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

func TestWhoseDecisionsCount(t *testing.T) {
	const approved, denied = v1alpha1.ApprovalApproved, v1alpha1.ApprovalDenied
	fourEyes := &v1alpha1.AgentApproval{ForbidRequester: true}
	leads := &v1alpha1.AgentApproval{Approvers: &v1alpha1.Approvers{Users: []string{"grace"}, Groups: []string{"leads"}}}
	const rule = `Agent "support" forbids requesters to approve their own calls (approval.forbidRequester), and `
	for name, tc := range map[string]struct {
		reason    string
		approval  *v1alpha1.AgentApproval
		requester string
		unchecked string
		decision  v1alpha1.ApprovalDecision
		by        string
		groups    []string
		want      string
	}{
		"no rules": {reason: "only RBAC applies", requester: "ada", decision: approved, by: "ada"},
		"another person": {
			reason: "the approver is not the requester", approval: fourEyes, requester: "ada", decision: approved, by: "grace",
		},
		"denial of one's own call": {
			reason: "requesters may deny their calls", approval: fourEyes, requester: "ada", decision: denied, by: "ada",
		},
		"approval of one's own call": {
			"the approver is the requester", fourEyes, "ada", "", approved, "ada", nil,
			rule + `"ada" is the requester of this Turn; another approver must decide`,
		},
		"approval of one's own call, and nothing is checked": {
			"the message is about the approver first", fourEyes, "ada", "it is not installed", approved, "ada", nil,
			rule + `"ada" is the requester of this Turn; another approver must decide`,
		},
		"the requester may be forged": {
			"grace may have asked", fourEyes, "ada", "it is not installed", approved, "grace", nil, rule + "it is not installed",
		},
		"no requester": {
			"anyone may have asked", fourEyes, "", "", approved, "grace", nil,
			rule + "this Turn has no requester (spec.requestedBy): create a new Turn with one",
		},
		"names differ in case": {reason: "they are two users", approval: fourEyes, requester: "ada", decision: approved, by: "Ada"},
		"a named approver":     {reason: "users lists the name", approval: leads, decision: approved, by: "grace"},
		"a member of a group": {
			reason: "groups lists one of the groups", approval: leads, decision: approved, by: "alan", groups: []string{"staff", "leads"},
		},
		"a user with the name of a group": {
			"names and groups differ", leads, "", "", approved, "leads",
			[]string{"grace"},
			`"leads" is not an approver of Agent "support": user "grace" or a member of group "leads" may decide`,
		},
		"a denial by another person": {
			"only approvers may deny", leads, "", "", denied, "eve", nil,
			`"eve" is not an approver of Agent "support": user "grace" or a member of group "leads" may decide`,
		},
		"both rules": {
			"the message is about both rules",
			&v1alpha1.AgentApproval{ForbidRequester: true, Approvers: &v1alpha1.Approvers{Users: []string{"a", "b", "c", "d"}}},
			"a", "", approved, "a", nil,
			rule + `"a" is the requester of this Turn; users "a", "b", "c" and 1 more (not the requester) must decide`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := Rules{Agent: "support", Approval: tc.approval, Requester: tc.requester, Unchecked: tc.unchecked}
			got := r.Refusal(&v1alpha1.ToolApprovalSpec{Decision: tc.decision, DecidedBy: tc.by, DecidedByGroups: tc.groups})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestApplyNamesRefusedDecisions(t *testing.T) {
	made := named("a", "b", "c")
	for i, by := range []string{"grace", "eve", "eve"} {
		made[i].Spec = v1alpha1.ToolApprovalSpec{Decision: v1alpha1.ApprovalApproved, DecidedBy: by}
	}
	r := Rules{Agent: "support", Approval: &v1alpha1.AgentApproval{Approvers: &v1alpha1.Approvers{Users: []string{"grace"}}}}
	counted, why := r.Apply(made)
	if diff := cmp.Diff(made[:1], counted); diff != "" {
		t.Errorf("counted ToolApprovals (-want +got):\n%s", diff)
	}
	want := `ToolApprovals b, c are not used: "eve" is not an approver of Agent "support": user "grace" may decide`
	if diff := cmp.Diff(want, why); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestApplyCountsReasonsThatAMessageLeavesOut checks that a message with too many reasons has those of the newest
// decisions, and says that there are others.
func TestApplyCountsReasonsThatAMessageLeavesOut(t *testing.T) {
	made := named("a", "b", "c", "d", "e")
	for i, by := range []string{"ada", "bob", "carl", "dora", "dora"} {
		made[i].Spec = v1alpha1.ToolApprovalSpec{Decision: v1alpha1.ApprovalApproved, DecidedBy: by}
	}
	made[3].CreationTimestamp = metav1.NewTime(now.Add(time.Second))
	r := Rules{Agent: "support", Approval: &v1alpha1.AgentApproval{Approvers: &v1alpha1.Approvers{Users: []string{"grace"}}}}
	_, why := r.Apply(made)
	want := `ToolApprovals d, e are not used: "dora" is not an approver of Agent "support": user "grace" may decide; ` +
		`ToolApproval a is not used: "ada" is not an approver of Agent "support": user "grace" may decide; ` +
		`ToolApproval b is not used: "bob" is not an approver of Agent "support": user "grace" may decide; ` +
		`ToolApprovals that are not used for other reasons: 1`
	if diff := cmp.Diff(want, why); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestRequesterIsCheckedForEachTurnAbove checks that the requester of a sub-agent's Turn counts as checked only if it
// was checked for each Turn above.
func TestRequesterIsCheckedForEachTurnAbove(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	turn := func(name string, created time.Time, parent *v1alpha1.Turn) *v1alpha1.Turn {
		made := &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(created)},
			Spec:       v1alpha1.TurnSpec{RequestedBy: &v1alpha1.Requester{Username: "ada"}},
		}
		if parent != nil {
			made.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: parent.Name, UID: parent.UID, Controller: new(true),
			}}
			made.Spec.Depth = new(ptr.Deref(parent.Spec.Depth, 0) + 1)
		}
		return made
	}
	early, late := turn("early", now.Add(-time.Hour), nil), turn("late", now, nil)
	other := turn("late", now, nil)
	other.UID = "another"
	bobs := turn("bobs", now, nil)
	bobs.Spec.RequestedBy.Username = "bob"
	// changed returns a child of late whose owner reference someone has changed.
	changed := func(change func(child *v1alpha1.Turn)) *v1alpha1.Turn {
		child := turn("child", now, late)
		change(child)
		return child
	}
	agent := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Approval: &v1alpha1.AgentApproval{ForbidRequester: true}}}
	check := func(_ context.Context, created time.Time) (string, error) {
		if created.Before(now) {
			return "it is older", nil
		}
		return "", nil
	}
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		stored client.Object
		check  RequesterCheck
		want   string
	}{
		"checked":             {"the policy was in force", late, late, check, ""},
		"too old":             {"the policy was not in force yet", early, early, check, "it is older"},
		"child of a new one":  {"both were checked", turn("child", now, late), late, check, ""},
		"child of an old one": {"its requester may be forged", turn("child", now, early), early, check, "it is older"},
		"parent is gone": {
			"the parent may have been old", turn("child", now, late), early, check,
			"the Turn that called this one was deleted, so its requester is not known",
		},
		"parent was created again": {
			"the new Turn of that name is not the parent", turn("child", now, other), late, check,
			"the Turn that called this one was deleted, so its requester is not known",
		},
		"parent of another user": {
			"a Turn cannot borrow the requester of another one", turn("child", now, bobs), bobs, check,
			"the Turn that called this one has another requester",
		},
		"its own parent": {
			"no Turn has called itself", turn("self", now, turn("self", now, nil)), turn("self", now, turn("self", now, nil)), check,
			"the depth of this Turn shows that another Turn called it, so its requester is not known",
		},
		"the owner reference was removed": {
			"the Turn above may have another requester", changed(func(c *v1alpha1.Turn) { c.OwnerReferences = nil }),
			late, check, "the Turn that called this one is not known, so its requester is not known either",
		},
		"the owner reference does not control": {
			"the Turn above is not known", changed(func(c *v1alpha1.Turn) { c.OwnerReferences[0].Controller = nil }),
			late, check, "the Turn that called this one is not known, so its requester is not known either",
		},
		"points at a Turn of another depth": {
			"this Turn has not called it", changed(func(c *v1alpha1.Turn) { c.Spec.Depth = new(int32(2)) }),
			late, check, "the depth of this Turn shows that another Turn called it, so its requester is not known",
		},
		"an owner and no depth": {
			"Capstan sets the depth of the Turn of a sub-agent, so a program has set the owner, as for garbage collection",
			changed(func(c *v1alpha1.Turn) { c.Spec.Depth = nil }), bobs, check, "",
		},
		"the depth is 0": {"no Turn has called it", &v1alpha1.Turn{
			ObjectMeta: late.ObjectMeta, Spec: v1alpha1.TurnSpec{RequestedBy: late.Spec.RequestedBy, Depth: new(int32(0))},
		}, late, check, ""},
		"no check": {"each requester may be forged", late, late, nil, "Capstan does not check requesters"},
		"trusted":  {"something other than the policy checks requesters", turn("plain", now, nil), early, TrustRequesters, ""},
	} {
		t.Run(name, func(t *testing.T) {
			reader := clientfake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.stored).Build()
			r, err := RulesOf(t.Context(), tc.check, reader, agent, tc.turn)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, r.Unchecked); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestFailedCheckOfRequesterIsAnError(t *testing.T) {
	failed := errors.New("the API server is unreachable")
	agent := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Approval: &v1alpha1.AgentApproval{ForbidRequester: true}}}
	turn := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{RequestedBy: &v1alpha1.Requester{Username: "ada"}}}
	checks := Checks{Author: AcceptAll, Requester: func(context.Context, time.Time) (string, error) { return "", failed }}
	if _, _, err := Counted(t.Context(), checks, nil, agent, turn, named("a")); !errors.Is(err, failed) {
		t.Errorf("Counted: %v, want the error, after which the caller tries again", err)
	}
}

func TestRequestersCountOnlyWithTheirPolicy(t *testing.T) {
	api := fake.NewClientset().AdmissionregistrationV1()
	p := NewRequesterPolicy(DefaultRequesterPolicy, api, func() time.Time { return now }, logr.Discard())
	got, err := p.CheckRequester(t.Context(), now)
	want := "Capstan cannot confirm that the API server checks requesters, because the ValidatingAdmissionPolicy " +
		"capstan-requesters is not installed: install it with kubectl apply -k config/policy, or with the chart and " +
		"requesterPolicy.install=true, under the name in --requester-policy. A Turn that was not checked does not count " +
		"later either: create a new Turn then"
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}
