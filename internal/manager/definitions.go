package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// resources are the resources of the API group capstan.dev that a manager needs.
var resources = []string{"agents", "budgets", "modelproviders", "promptprofiles", "sessions", "toolapprovals", "toolservers", "turns"}

// errNoDefinitions means that CustomResourceDefinitions are missing. The error that wraps it names them.
var errNoDefinitions = errors.New("install them with the chart (crds.install) or with make install")

// definitionsHealth checks that the CustomResourceDefinitions exist.
func definitionsHealth(d discovery.DiscoveryInterface, log logr.Logger) *health {
	return &health{
		part: "the set of custom resource definitions", fails: "is incomplete", recovers: "is complete again",
		impact: "nothing can be read or written",
		log:    log, check: func(ctx context.Context) error {
			if err := CheckDefinitions(ctx, d); errors.Is(err, errNoDefinitions) {
				return err
			}
			return nil // other errors are reported by the health check of the API server
		},
	}
}

// CheckDefinitions returns an error that wraps errNoDefinitions if CustomResourceDefinitions of capstan.dev are
// missing. It needs no permission beyond those of every authenticated user: it asks the API server which resources it
// serves.
func CheckDefinitions(ctx context.Context, d discovery.DiscoveryInterface) error {
	var served metav1.APIResourceList
	err := d.RESTClient().Get().AbsPath("apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version).Do(ctx).Into(&served)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("failed to check for the custom resource definitions: %w", err)
	}
	var missing []string
	for _, name := range resources {
		if !slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == name }) {
			missing = append(missing, name+"."+v1alpha1.GroupVersion.Group)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the cluster does not have the custom resource definitions %s: %w", strings.Join(missing, ", "), errNoDefinitions)
	}
	return nil
}

// awaitDefinitions waits until the CustomResourceDefinitions exist, because they may be installed at the same time as
// the manager. It returns the error of the last check before the given time.
func awaitDefinitions(ctx context.Context, until time.Time, d discovery.DiscoveryInterface, log logr.Logger) error {
	_, err := retryUntil(ctx, until, log, "the custom resource definitions", func() (struct{}, error) {
		bounded, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		return struct{}{}, CheckDefinitions(bounded, d)
	})
	return err
}
