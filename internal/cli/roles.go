package cli

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// roleLabel is on the ClusterRoles for people. Its value says which one it is; their names depend on how Capstan was installed.
const roleLabel = "capstan.dev/role"

// roleName returns the name of a ClusterRole for people as this cluster has it. Where the user may not list them, or there is none, it
// returns the command that an administrator finds it by, in the form of the shell.
func roleName(ctx context.Context, api client.Client, role string) string {
	var list rbacv1.ClusterRoleList
	if err := api.List(ctx, &list, client.MatchingLabels{roleLabel: role}, client.Limit(1)); err != nil || len(list.Items) == 0 {
		return "$(kubectl get clusterroles -l " + roleLabel + "=" + role + " -o jsonpath='{.items[0].metadata.name}')"
	}
	return list.Items[0].Name
}
