package writeerror_test

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capstan-dev/capstan/internal/writeerror"
)

func TestMeaning(t *testing.T) {
	turns := schema.GroupResource{Group: "capstan.dev", Resource: "turns"}
	for name, tc := range map[string]struct {
		err                                error
		changedNothing, rejected, tooLarge bool
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
			changedNothing: true, rejected: true,
		},
		"too large for the API server": {
			err: apierrors.NewRequestEntityTooLargeError("limit is 3145728"), changedNothing: true, rejected: true, tooLarge: true,
		},
		"too large for etcd": {
			err:            fmt.Errorf("failed to write: %w", apierrors.NewInternalError(errors.New("etcdserver: request is too large"))),
			changedNothing: true, rejected: true, tooLarge: true,
		},
		"too large for the client of etcd": {
			err: apierrors.NewInternalError(errors.New("rpc error: code = ResourceExhausted desc = " +
				"trying to send message larger than max (2100000 vs. 2097152)")),
			changedNothing: true, rejected: true, tooLarge: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := writeerror.ChangedNothing(tc.err); got != tc.changedNothing {
				t.Errorf("ChangedNothing = %t, want %t", got, tc.changedNothing)
			}
			if got := writeerror.IsRejected(tc.err); got != tc.rejected {
				t.Errorf("IsRejected = %t, want %t", got, tc.rejected)
			}
			if got := writeerror.IsTooLarge(tc.err); got != tc.tooLarge {
				t.Errorf("IsTooLarge = %t, want %t", got, tc.tooLarge)
			}
		})
	}
}
