package decisions

import (
	"context"
	"fmt"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
)

// roleLabel is the label of the ClusterRoles for people. Its value is the role; the names of the ClusterRoles
// depend on how Capstan was installed.
const roleLabel = "capstan.dev/role"

// roleName returns the name of a ClusterRole for people in this cluster. If the user may not list ClusterRoles, or
// if there is none, it returns a shell substitution with the command that finds the name.
func roleName(ctx context.Context, api client.Client, role string) string {
	var list rbacv1.ClusterRoleList
	if err := api.List(ctx, &list, client.MatchingLabels{roleLabel: role}, client.Limit(1)); err != nil || len(list.Items) == 0 {
		return "$(kubectl get clusterroles -l " + roleLabel + "=" + role + " -o jsonpath='{.items[0].metadata.name}')"
	}
	return list.Items[0].Name
}

// grant returns the command that makes the user an approver in the namespace of the Turn. Each user gets a RoleBinding,
// because kubectl create cannot add a user to an existing one. The name of the user is quoted, because an identity
// provider may permit any characters in it, and an administrator pastes the command into a shell.
func (c *pendingCalls) grant(ctx context.Context) string {
	const digits = 8
	return fmt.Sprintf("kubectl create rolebinding approver-%s -n %s --clusterrole %s --user '%s'",
		canonical.Sum([]byte(c.who))[:digits], c.turn.Namespace, roleName(ctx, c.api, "approver"),
		strings.ReplaceAll(c.who, "'", `'\''`))
}
