package drain_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/internal/drain"
)

// TestDeploymentThatNoControllerSees checks the error if the Deployment is scaled to zero and has no Pods, but its
// controller has not seen the change, for example because kube-controller-manager does not run.
func TestDeploymentThatNoControllerSees(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = &corev1.PodList{}
		if !strings.HasSuffix(r.URL.Path, "/pods") {
			answer = &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Name: "capstan", Generation: 2},
				Spec: appsv1.DeploymentSpec{
					Replicas: new(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "capstan"}},
				},
				Status: appsv1.DeploymentStatus{ObservedGeneration: 1},
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(web.Close)
	clients, err := kubernetes.NewForConfig(&rest.Config{
		Host: web.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := drain.Options{Namespace: "default", Deployments: []string{"capstan"}, Timeout: time.Second}
	err = drain.Run(t.Context(), clients, o, logr.Discard())
	if err == nil || !strings.Contains(err.Error(), "kube-controller-manager") || !strings.Contains(err.Error(), "--no-hooks") {
		t.Errorf("the error is %v, want one that names the controller and the remedy, and no Pods", err)
	}
}
