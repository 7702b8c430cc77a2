package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/internal/cli/cluster"
)

// TestInterruptedDiscovery checks that the end of the context, such as Ctrl-C, ends the requests for the kinds of an
// API server that does not answer.
func TestInterruptedDiscovery(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		interrupt()
		<-r.Context().Done()
	}))
	defer web.Close()
	api, err := cluster.NewClient(ctx, &rest.Config{Host: web.URL, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.GetTurn(ctx, api, "default", "first"); err == nil {
		t.Error("want an error")
	}
	if ctx.Err() == nil {
		t.Error("the server has received no request")
	}
}

// TestLacksPermission checks that only a missing permission counts as one. Admission answers Forbidden, too.
func TestLacksPermission(t *testing.T) {
	resource := schema.GroupResource{Group: "capstan.dev", Resource: "toolapprovals"}
	forbidden := func(name, message string) error { return apierrors.NewForbidden(resource, name, errors.New(message)) }
	const cannot = `User "auth0|5f" cannot create resource "toolapprovals" in API group "capstan.dev" in the namespace "helpdesk"`
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"no error":          {nil, false},
		"a creation":        {forbidden("", cannot), true},
		"a patch":           {forbidden("first", cannot), true},
		"a wrapped error":   {fmt.Errorf("failed: %w", forbidden("", cannot+": no role")), true},
		"another code":      {apierrors.NewConflict(resource, "first", errors.New(cannot)), false},
		"a quota":           {forbidden("first", "exceeded quota: objects, requested: count/toolapprovals.capstan.dev=1"), false},
		"a namespace's end": {forbidden("first", "unable to create new content in namespace a because it is being terminated"), false},
		"a policy":          {forbidden("first", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "+cannot), false},
		"a webhook": {&apierrors.StatusError{ErrStatus: metav1.Status{
			Reason: metav1.StatusReasonForbidden, Message: `admission webhook "w" denied the request: ` + cannot,
		}}, false},
		"not the API server": {errors.New("toolapprovals is forbidden: " + cannot), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cluster.LacksPermission(tc.err); got != tc.want {
				t.Errorf("%t for %v, want %t", got, tc.err, tc.want)
			}
		})
	}
}
