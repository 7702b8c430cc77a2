package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/journals"
)

// addAPIFlags adds the flags that specify how to reach the API server.
func addAPIFlags(f *pflag.FlagSet, c *cluster.Flags) {
	f.StringVar(&c.Kubeconfig, "kubeconfig", "",
		"path of a kubeconfig file; default: $KUBECONFIG, else ~/.kube/config, else the cluster of the Pod in which capstan runs")
	f.StringVar(&c.Context, "context", "", "context of the kubeconfig; default: the current context")
	f.StringVar(&c.Token, "token", "", "bearer token that authenticates you; default: the token of the kubeconfig")
}

// addClusterFlags adds the flags that specify how to reach the API server and the manager.
func addClusterFlags(f *pflag.FlagSet, c *journals.ClusterFlags) {
	addManagerFlags(f, c)
	addServiceAccountFlag(f, c, journals.DefaultServiceAccount, "whose token is sent", "empty: use no ServiceAccount")
}

// addServiceAccountFlag adds --service-account. use completes "the ServiceAccount in the Turn's namespace", and empty
// says what the empty value means.
func addServiceAccountFlag(f *pflag.FlagSet, c *journals.ClusterFlags, byDefault, use, empty string) {
	f.StringVar(&c.ServiceAccount, "service-account", byDefault,
		"`NAME` of the ServiceAccount in the Turn's namespace "+use+" if the kubeconfig has no "+
			"token, but a client certificate; you must have permission to create a token for it, "+
			"which is valid for ten minutes; "+empty)
}

// addManagerFlags adds the flags of addClusterFlags without --service-account.
func addManagerFlags(f *pflag.FlagSet, c *journals.ClusterFlags) {
	addAPIFlags(f, &c.Flags)
	f.StringVar(&c.Server, "server", "",
		"`URL` of the manager's read API; default: a port that is forwarded to the Pod of the Turn's executor")
	f.StringVar(&c.ServerCA, "server-ca-file", "",
		"`PATH` of a PEM file with the certificate authorities of --server; default: those of the system")
	f.StringVar(&c.ManagerNamespace, "manager-namespace", "capstan-system", "namespace of the manager")
}

// clusterFlagNames are the flags that have a meaning only with a cluster.
var clusterFlagNames = []string{"kubeconfig", "context", "server", "server-ca-file", "token", "service-account", "manager-namespace"}

// addJournalFlags adds the flags of commands that read a journal, with their shell completions.
func addJournalFlags(cmd *cobra.Command, j *journals.Source, artifact *string) {
	addTurnFlags(cmd, j)
	cmd.Flags().StringVar(artifact, "artifact", "", "print the content of an artifact instead, by its `NAME` or its SHA-256")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("artifact", cobra.NoFileCompletions))
}

// addTurnFlags adds the flags that specify where the journal of a Turn is, with their shell completions.
func addTurnFlags(cmd *cobra.Command, j *journals.Source) {
	f := cmd.Flags()
	f.StringVarP(&j.Namespace, "namespace", "n", "",
		"namespace of the Turn; default: the namespace of the kubeconfig's context, or default if no kubeconfig is read")
	f.StringVar(&j.DataDir, "data-dir", "", "read a journal that capstan run keeps in this directory, instead of one in a cluster")
	f.StringVar(&j.UID, "uid", "", "with --data-dir: UID of the Turn if several have the same name; default: the newest")
	addClusterFlags(f, &j.Cluster)
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
	cmd.ValidArgsFunction = completeTurns(j.TurnNames)
	for _, flag := range clusterFlagNames {
		cmd.MarkFlagsMutuallyExclusive("data-dir", flag)
	}
}

// completeObjects registers shell completions for the flags of commands that print an object.
func completeObjects(cmd *cobra.Command) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(objectFormats, cobra.ShellCompDirectiveNoFileComp)))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
}

// completeTurns offers the names that list returns for the first argument. It offers none if they cannot be
// listed; the command itself reports that error.
func completeTurns(list func(context.Context) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, err := list(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}
