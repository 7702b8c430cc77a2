package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/internal/approvals"
)

// installPolicy creates the policy in a directory and its binding: see Install.Policy. It returns when managers accept
// the decisions that are made from then on. If ctx ends first, it returns the cause of ctx.
func installPolicy(ctx context.Context, config *rest.Config, directory string) error {
	var policy admissionv1.ValidatingAdmissionPolicy
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	for file, object := range map[string]any{"toolapproval_policy.yaml": &policy, "toolapproval_binding.yaml": &binding} {
		text, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil {
			return fmt.Errorf("failed to read the policy of ToolApprovals: %w", err)
		}
		if err := yaml.UnmarshalStrict(text, object); err != nil {
			return fmt.Errorf("failed to read the policy of ToolApprovals in %s: %w", file, err)
		}
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("failed to make a client: %w", err)
	}
	api := clientset.AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicies().Create(ctx, &policy, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("failed to create the policy of ToolApprovals: %w", err)
	}
	made, err := api.ValidatingAdmissionPolicyBindings().Create(ctx, &binding, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("failed to bind the policy of ToolApprovals: %w", err)
	}
	timer := time.NewTimer(time.Until(made.CreationTimestamp.Add(approvals.PolicySettleTime)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
