package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
)

// approver is the ServiceAccount that decides about calls, because the control plane has no user accounts for people.
const approver = "grace"

// allowApprovals installs the objects that decisions need: the role for approvers, an approver with that role, and
// the policy that verifies who has made a decision.
func (d *demo) allowApprovals(ctx context.Context) error {
	for _, args := range [][]string{
		{"apply", "-f", filepath.Join(d.config, "rbac", "people_roles.yaml")},
		{"apply", "-k", filepath.Join(d.config, "policy")},
	} {
		if _, _, err := d.cluster.RunKubectl(ctx, args...); err != nil {
			return err
		}
	}
	name := metav1.ObjectMeta{Namespace: turnNamespace, Name: approver}
	account := &corev1.ServiceAccount{ObjectMeta: name}
	if err := d.api.Create(ctx, account); err != nil {
		return fmt.Errorf("failed to create ServiceAccount %q: %w", approver, err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: name,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "capstan-approver"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: turnNamespace, Name: approver}},
	}
	if err := d.api.Create(ctx, binding); err != nil {
		return fmt.Errorf("failed to bind the role of approvers: %w", err)
	}
	var token authenticationv1.TokenRequest
	if err := d.api.SubResource("token").Create(ctx, account, &token); err != nil {
		return fmt.Errorf("failed to make a token for %q: %w", approver, err)
	}
	d.token = token.Status.Token
	d.approvable = time.Now().Add(approvals.PolicySettleTime)
	return nil
}

// approve approves the calls for which a Turn waits. It runs the command line, as a person would, and prints the
// output.
func (d *demo) approve(ctx context.Context, turn *v1alpha1.Turn) error {
	if err := sleepUntil(ctx, d.approvable); err != nil {
		return err
	}
	commandLine := fmt.Sprintf("%s approve %s --yes --token \"$GRACE\"", d.capstan, turn.Name)
	cmd := exec.CommandContext(ctx, d.capstan, "approve", turn.Name, "--yes", "--token", d.token)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+d.cluster.Kubeconfig)
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("failed to run %s: %w: %s", commandLine, err, strings.TrimSpace(string(output)))
	}
	d.print("\n$ %s\n%s\n", commandLine, output)
	return nil
}

// sleepUntil waits until a point in time, or until ctx ends.
func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
