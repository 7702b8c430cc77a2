package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/records"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
)

const memoryHelp = `memory lists, shows and deletes the memories that Capstan has learned from Turns of Agents that set
spec.memory.learning.
`

const memoryAccess = `
In a cluster, it reads the memories from the manager, as capstan logs reads journals. This requires list on
turns/memories, which the ClusterRole with the label capstan.dev/role=turn-reader grants. For all namespaces,
bind a ClusterRole with this permission by a ClusterRoleBinding. With --data-dir, it reads the memories that
capstan run keeps in this directory.
`

const memoryListHelp = `list prints the memories, newest first: the owner of each, and the Turn from which it was learned.
-o json prints each memory as a line of JSON, with its source, the model and the confidence.
` + memoryAccess

const memoryShowHelp = `show prints one memory with its source: the Turn, the requester, the model and the confidence.
` + memoryAccess

const memoryDeleteHelp = `delete deletes memories immediately and permanently: one memory, or all that were learned from a Turn, in a
Session or from the Turns of a requester. Pending extractions of memories from these Turns are cancelled, too. The
prompts of Turns that have used a memory stay in their journals: to delete them, delete these Turns.

In a cluster, this requires delete on turns/memories, which none of Capstan's roles for people grants.
`

const memoryExitCodes = `
Exit codes:
  0    the memories were read or deleted
  1    the memories could not be read or deleted, or there is no memory with this ID
  2    the flags are invalid, or the kubeconfig cannot be read
  130  interrupted`

func newMemory(env terminal.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Args: noArguments("use capstan memory list, show or delete"),
		Use:  "memory", Short: "List, show and delete what was learned from Turns", Long: memoryHelp,
		Example: `  # list what was learned from a user
  capstan memory list -n helpdesk --requester ada@example.com`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMemoryList(env), newMemoryShow(env), newMemoryDelete(env))
	return cmd
}

func newMemoryList(env terminal.Environment) *cobra.Command {
	m := &records.Memories{Options: records.Options{Env: env, Output: records.Table}}
	cmd := &cobra.Command{
		Args: noArguments("select memories with --turn, --session, --requester, --agent or --scope"),
		Use:  "list", Short: "List memories", Long: memoryListHelp + memoryExitCodes,
		Example: `  # list the memories of a namespace
  capstan memory list -n helpdesk

  # list the memories of one user, as JSON lines
  capstan memory list -n helpdesk --requester ada@example.com --scope User -o json

  # list the memories that capstan run has kept
  capstan memory list --data-dir data`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return m.List(cmd.Context()) },
	}
	addMemoryFlags(cmd, m, true)
	f := cmd.Flags()
	addMemorySelectors(cmd, m)
	f.BoolVarP(&m.AllNamespaces, "all-namespaces", "A", false, "list the memories of all namespaces")
	f.StringVar(&m.Agent, "agent", "", "name of the Agent of the Turns; default: any")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("agent", cobra.NoFileCompletions))
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

func newMemoryShow(env terminal.Environment) *cobra.Command {
	m := &records.Memories{Options: records.Options{Env: env, Output: records.Table}}
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show one memory", Args: oneMemory, Long: memoryShowHelp + memoryExitCodes,
		Example: `  # show where a memory comes from
  capstan memory show m850eb6461f31e8670dc9e3accc400813 -n helpdesk`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			m.ID = args[0]
			return m.Show(cmd.Context())
		},
	}
	addMemoryFlags(cmd, m, true)
	return cmd
}

func newMemoryDelete(env terminal.Environment) *cobra.Command {
	m := &records.Memories{Options: records.Options{Env: env, Output: records.Table}}
	cmd := &cobra.Command{
		Use: "delete [ID]", Short: "Delete memories", Args: oneOrNone("memory"), Long: memoryDeleteHelp + memoryExitCodes,
		Example: `  # delete one memory
  capstan memory delete m850eb6461f31e8670dc9e3accc400813 -n helpdesk

  # delete all memories that were learned from a person
  capstan memory delete --requester ada@example.com -n helpdesk`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				m.ID = args[0]
			}
			return m.Delete(cmd.Context())
		},
	}
	addMemoryFlags(cmd, m, false)
	addDoneOutput(cmd, &m.Options)
	addMemorySelectors(cmd, m)
	return cmd
}

// oneMemory returns an error unless there is exactly one argument.
func oneMemory(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return errors.New("specify the ID of one memory: see capstan memory list")
	}
	return nil
}

// addMemoryFlags adds the flags that specify where the memories are. If prints is true, it also adds --output.
func addMemoryFlags(cmd *cobra.Command, m *records.Memories, prints bool) {
	f := cmd.Flags()
	f.StringVarP(&m.Namespace, "namespace", "n", "",
		"namespace of the Turns; default: the namespace of the kubeconfig's context, or default if no kubeconfig is read")
	f.StringVar(&m.DataDir, "data-dir", "", "use the memories that capstan run keeps in this directory, instead of those of a cluster")
	addClusterFlags(f, &m.Cluster)
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
	for _, flag := range clusterFlagNames {
		cmd.MarkFlagsMutuallyExclusive("data-dir", flag)
	}
	if prints {
		formats := []string{"table", "json"}
		f.VarP(formatFlag{&m.Output, formats}, "output", "o", "output format: table or json")
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
	}
}

// addMemorySelectors adds the flags that select memories of a namespace.
func addMemorySelectors(cmd *cobra.Command, m *records.Memories) {
	f := cmd.Flags()
	f.StringVar(&m.Turn, "turn", "", "Turn that the memories were learned from, as NAME or NAMESPACE/NAME; default: any")
	f.StringVar(&m.Session, "session", "", "name of the Session of the Turn that the memories were learned from; default: any")
	f.StringVar(&m.Requester, "requester", "",
		"user who asked for the Turn that the memories were learned from; local means Turns of capstan run that name no user; default: any")
	f.StringVar(&m.Scope, "scope", "", "scope of the memories: Session or User; default: any")
	for _, flag := range []string{"turn", "session", "requester"} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
	scopes := []string{string(memories.Session), string(memories.User)}
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions(scopes, cobra.ShellCompDirectiveNoFileComp)))
}
