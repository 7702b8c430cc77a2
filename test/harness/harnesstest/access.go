package harnesstest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// AwaitAccess waits until the API server allows a user everything that these rules allow in a namespace. The API server
// applies a new Role or RoleBinding a moment after it was created, so a test must wait before it uses the permissions.
// For each rule, AwaitAccess checks all verbs and resources, with the first API group and the first resource name.
func AwaitAccess(ctx context.Context, tb testing.TB, client kubernetes.Interface, namespace, user string, rules ...rbacv1.PolicyRule) {
	tb.Helper()
	for _, rule := range rules {
		for _, name := range rule.Resources {
			for _, verb := range rule.Verbs {
				a := &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: rule.APIGroups[0]}
				a.Resource, a.Subresource, _ = strings.Cut(name, "/")
				if len(rule.ResourceNames) > 0 {
					a.Name = rule.ResourceNames[0]
				}
				must(tb, awaitAllowed(ctx, client, user, a))
			}
		}
	}
}

func awaitAllowed(ctx context.Context, client kubernetes.Interface, user string, a *authorizationv1.ResourceAttributes) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: a}}
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, accessTimeout, true, func(ctx context.Context) (bool, error) {
		reviewed, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		return reviewed.Status.Allowed, nil
	})
	if err != nil {
		return fmt.Errorf("the API server must allow %s to %s %s/%s in namespace %s: %w", user, a.Verb, a.Resource, a.Subresource,
			a.Namespace, err)
	}
	return nil
}
