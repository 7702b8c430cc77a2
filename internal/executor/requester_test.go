package executor

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
)

// TestRequesterWhoPays checks in whose Budgets a Turn counts whose depth says that another Turn called it, but that
// names no caller. Programs may create such Turns. They must not count in the Budgets of all requesters, but the
// requester has no memories and approvals, because the owner reference may have been removed.
func TestRequesterWhoPays(t *testing.T) {
	forged := func(context.Context, time.Time) (string, error) { return "the policy is not installed", nil }
	for name, tc := range map[string]struct {
		check          approvals.RequesterCheck
		depth          int32
		owned          bool
		verified, pays string
	}{
		"no caller":                   {approvals.TrustRequesters, 0, false, "bot", "bot"},
		"an owner and no depth":       {approvals.TrustRequesters, 0, true, "bot", "bot"},
		"a depth without a caller":    {approvals.TrustRequesters, 1, false, "", "bot"},
		"a caller that is gone":       {approvals.TrustRequesters, 1, true, "", ""},
		"a name that was not checked": {forged, 1, false, "", ""},
		"no policy":                   {nil, 1, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{})
			e.Requesters = tc.check
			turn := turnWith(func(turn *v1alpha1.Turn) {
				turn.Spec.RequestedBy, turn.Spec.Depth = &v1alpha1.Requester{Username: "bot"}, &tc.depth
				if tc.owned {
					turn.OwnerReferences = []metav1.OwnerReference{{
						APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: "caller", UID: "uid-caller", Controller: new(true),
					}}
				}
			})
			verified, err := e.verifiedRequester(t.Context(), turn)
			pays, otherErr := e.payingRequester(t.Context(), turn)
			if err != nil || otherErr != nil || verified != tc.verified || pays != tc.pays {
				t.Errorf("verified %q (%v), pays %q (%v); want %q and %q", verified, err, pays, otherErr, tc.verified, tc.pays)
			}
		})
	}
}
