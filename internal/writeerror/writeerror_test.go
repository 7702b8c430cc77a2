package writeerror_test

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"

	"github.com/capstan-dev/capstan/internal/writeerror"
)

var turns = schema.GroupResource{Group: "capstan.dev", Resource: "turns"}

// deniedBy returns the error of the API server for a denial by policies, with the messages of the policies.
func deniedBy(message string, reason metav1.StatusReason, code int32, more ...string) error {
	err := apierrors.NewForbidden(turns, "one", errors.New(message))
	err.ErrStatus.Reason, err.ErrStatus.Code = reason, code
	for _, m := range append([]string{message}, more...) {
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Message: m})
	}
	return err
}

func TestMeaning(t *testing.T) {
	terminating := apierrors.NewForbidden(turns, "one", errors.New("unable to create new content in namespace demo"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: corev1.NamespaceTerminatingCause, Message: "namespace demo is being terminated", Field: "metadata.namespace",
	}}
	for name, tc := range map[string]struct {
		err                                                    error
		changedNothing, rejected, unstorable, tooLarge, denied bool
		failedWebhook                                          bool
	}{
		"no error":                 {},
		"the connection was lost":  {err: errors.New("connection reset by peer")},
		"etcd does not answer":     {err: apierrors.NewInternalError(errors.New("etcdserver: request timed out"))},
		"a time limit":             {err: apierrors.NewTimeoutError("try again", 1)},
		"a request that timed out": {err: apierrors.NewGenericServerResponse(408, "put", turns, "one", "", 0, true)},
		"too many requests":        {err: apierrors.NewTooManyRequests("try again", 1)},
		"the object is gone":       {err: apierrors.NewNotFound(turns, "one")},
		"a conflict":               {err: apierrors.NewConflict(turns, "one", errors.New("changed")), changedNothing: true},
		"no permission":            {err: apierrors.NewForbidden(turns, "one", errors.New("no")), changedNothing: true},
		"an invalid object": {
			err:            fmt.Errorf("failed to write: %w", apierrors.NewInvalid(schema.GroupKind{Kind: "Turn"}, "one", nil)),
			changedNothing: true, rejected: true, unstorable: true,
		},
		"too large for the API server": {
			err: apierrors.NewRequestEntityTooLargeError("limit is 3145728"), changedNothing: true, rejected: true,
			unstorable: true, tooLarge: true,
		},
		"too large for etcd": {
			err:            fmt.Errorf("failed to write: %w", apierrors.NewInternalError(errors.New("etcdserver: request is too large"))),
			changedNothing: true, rejected: true, unstorable: true, tooLarge: true,
		},
		"too large for the client of etcd": {
			err: apierrors.NewInternalError(errors.New("rpc error: code = ResourceExhausted desc = " +
				"trying to send message larger than max (2100000 vs. 2097152)")),
			changedNothing: true, rejected: true, unstorable: true, tooLarge: true,
		},
		"denied by a webhook": {
			err:            fmt.Errorf("failed to write: %w", webhookerrors.ToStatusErr("check.example", nil)),
			changedNothing: true, rejected: true, denied: true,
		},
		"denied by a webhook with 403": {
			err: webhookerrors.ToStatusErr("check.example", &metav1.Status{
				Code: 403, Reason: metav1.StatusReasonForbidden, Message: "no secrets in a status",
			}),
			changedNothing: true, rejected: true, denied: true,
		},
		"denied by a webhook that asks for a repetition": {
			err:    webhookerrors.ToStatusErr("check.example", &metav1.Status{Code: 429, Reason: metav1.StatusReasonTooManyRequests}),
			denied: true,
		},
		"denied by a webhook with 409": {
			err:            webhookerrors.ToStatusErr("check.example", &metav1.Status{Code: 409, Reason: metav1.StatusReasonConflict}),
			changedNothing: true, denied: true,
		},
		"denied by a webhook with 500": {
			err: webhookerrors.ToStatusErr("check.example", &metav1.Status{Code: 500}), denied: true,
		},
		"a webhook fails": {
			err: fmt.Errorf("failed to write: %w",
				apierrors.NewInternalError(errors.New(`failed calling webhook "check.example": refused`))),
			failedWebhook: true,
		},
		"denied by a policy": {
			err: deniedBy("ValidatingAdmissionPolicy 'check' with binding 'all' denied request: no",
				metav1.StatusReasonForbidden, 403),
			changedNothing: true, rejected: true, denied: true,
		},
		"denied by a policy as invalid": {
			err: deniedBy("ValidatingAdmissionPolicy 'check' with binding 'all' denied request: no",
				metav1.StatusReasonInvalid, 422),
			changedNothing: true, rejected: true, denied: true,
		},
		"denied by a policy without a binding": {
			err:            deniedBy("ValidatingAdmissionPolicy 'check' denied request: no", metav1.StatusReasonUnauthorized, 401),
			changedNothing: true, rejected: true, denied: true,
		},
		"denied by a policy that mutates": {
			err:            deniedBy("policy 'check' with binding 'all' denied request: no", metav1.StatusReasonForbidden, 403),
			changedNothing: true, rejected: true, denied: true,
		},
		"a policy that cannot be evaluated": {
			err: deniedBy("ValidatingAdmissionPolicy 'check' denied request: failed to configure policy: no such kind",
				metav1.StatusReasonInvalid, 422),
			changedNothing: true, denied: true,
		},
		"a policy whose parameters are missing": {
			err: deniedBy("policy 'check' with binding 'all' denied request: failed to configure binding: no params found",
				metav1.StatusReasonForbidden, 403),
			changedNothing: true, denied: true,
		},
		"a policy that cannot be evaluated, and another one": {
			err: deniedBy("policy \"check\" denied request: failed to configure policy: no such kind", metav1.StatusReasonForbidden, 403,
				"policy 'names' with binding 'all' denied request: no"),
			changedNothing: true, rejected: true, denied: true,
		},
		"a role is missing": {
			err: apierrors.NewForbidden(turns, "one",
				errors.New(`User "system:serviceaccount:a:capstan" cannot update resource "turns/status" in API group "capstan.dev"`)),
			changedNothing: true,
		},
		"a namespace that is deleted": {err: terminating, changedNothing: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := writeerror.ChangedNothing(tc.err); got != tc.changedNothing {
				t.Errorf("ChangedNothing = %t, want %t", got, tc.changedNothing)
			}
			if got := writeerror.IsRejected(tc.err); got != tc.rejected {
				t.Errorf("IsRejected = %t, want %t", got, tc.rejected)
			}
			if got := writeerror.IsUnstorable(tc.err); got != tc.unstorable {
				t.Errorf("IsUnstorable = %t, want %t", got, tc.unstorable)
			}
			if got := writeerror.IsTooLarge(tc.err); got != tc.tooLarge {
				t.Errorf("IsTooLarge = %t, want %t", got, tc.tooLarge)
			}
			if got := writeerror.IsDenied(tc.err); got != tc.denied {
				t.Errorf("IsDenied = %t, want %t", got, tc.denied)
			}
			if got := writeerror.IsFailedWebhook(tc.err); got != tc.failedWebhook {
				t.Errorf("IsFailedWebhook = %t, want %t", got, tc.failedWebhook)
			}
			want := tc.changedNothing || tc.denied || tc.failedWebhook
			if got := writeerror.IsRefused(tc.err); got != want {
				t.Errorf("IsRefused = %t, want %t", got, want)
			}
		})
	}
}
