package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/records"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/usage"
)

const recordsHelp = `The records remain after their Turns were deleted, for the time of the manager's --record-retention. They
contain no text of the conversation. The usage of a sub-agent is in the record of its own Turn.

In a cluster, %[1]s reads the records from the manager, as capstan logs reads journals. This requires list
on turns/records, which the ClusterRole with the label capstan.dev/role=turn-reader grants. For all
namespaces, bind a ClusterRole with this permission by a ClusterRoleBinding. With --data-dir, %[1]s reads
the records that capstan run keeps in this directory.

`

const recordsExitCodes = `Exit codes:
  0    the records were %s
  1    the records could not be %[1]s
  2    the flags are invalid, or the kubeconfig cannot be read
  130  interrupted`

const decisionsHelp = `decisions lists the Turns that have ended, newest first: the time and the reason of the end, the Agent, how
the answer was reached, the tokens, the cost and the elapsed time. -o json prints each record as a line of
JSON, with the tools, the hashes, the prompt, the models and the feedback.

If a cost is not known, decisions prints "unknown", never 0.

`

const decisionsExamples = `  # list the Turns of the last day
  capstan decisions -n helpdesk --since 24h

  # list the Turns of one Agent, as JSON lines
  capstan decisions -n helpdesk --agent desk -o json

  # list the Turns that capstan run has kept
  capstan decisions --data-dir data`

const usageHelp = `usage adds up the tokens and the costs of the Turns that have ended, grouped by fields; groups with the most
tokens come first. A Turn that has asked several models counts in the group of each model.

If a cost is not known, usage prints "unknown", never 0. With -o csv, such a cost is empty, and the column
turns_of_unknown_cost has the number of Turns whose cost is not known.

`

const usageExamples = `  # show the usage of each Agent of the last week
  capstan usage -n helpdesk --by agent --since 7d

  # show who has used which model in the last 30 days, for a program
  capstan usage -n helpdesk --by requester,model --since 30d -o json

  # show the usage of each namespace and model, for a spreadsheet
  capstan usage -A --by namespace,model --since 2026-06-01 -o csv`

const deleteRecordsHelp = `delete deletes the records of a Turn, of a Session or of a requester, immediately and permanently. It does not
delete the Turns and their journals. If only TURN is given, as NAME or NAMESPACE/NAME, and it has no record, delete
fails.

In a cluster, delete the Turns first, because a Turn that still exists gets a new record. This requires delete on
turns/records, which none of Capstan's roles for people grants. With --data-dir, delete deletes the records that
capstan run keeps in this directory.

`

// formatFlag is a flag for a format of records.
type formatFlag struct {
	value   *records.Format
	allowed []string
}

// String returns the format.
func (f formatFlag) String() string {
	if f.value == nil {
		return ""
	}
	return string(*f.value)
}

// Set sets the format.
func (f formatFlag) Set(text string) error {
	if !slices.Contains(f.allowed, text) {
		return fmt.Errorf("must be %s", alternatives(f.allowed))
	}
	*f.value = records.Format(text)
	return nil
}

// Type returns the name of the value in help texts.
func (f formatFlag) Type() string { return "format" }

// addDoneOutput adds the output format of a command that says what it has done.
func addDoneOutput(cmd *cobra.Command, o *records.Options) {
	o.Output = records.Text
	formats := []string{string(records.Text), string(records.JSON)}
	cmd.Flags().VarP(formatFlag{&o.Output, formats}, "output", "o", "output format: text or json")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
}

// alternatives returns at least two values as "a or b", or "a, b or c".
func alternatives(values []string) string {
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// selectTurns says how to select records of Turns.
const selectTurns = "select Turns with --agent, --session, --requester or --since"

func newDecisions(env terminal.Environment) *cobra.Command {
	d := &records.Decisions{Options: records.Options{Env: env, Output: records.Table}}
	cmd := &cobra.Command{
		Use: "decisions", Short: "List the Turns that have ended, even deleted ones",
		Args:              noArguments(selectTurns + "; capstan decisions delete TURN deletes records"),
		ValidArgsFunction: cobra.NoFileCompletions,
		Long:              decisionsHelp + fmt.Sprintf(recordsHelp, "decisions") + fmt.Sprintf(recordsExitCodes, "read"),
		Example:           decisionsExamples,
		RunE:              func(cmd *cobra.Command, _ []string) error { return d.Run(cmd.Context()) },
	}
	addRecordFlags(cmd, &d.Options, "table", "json")
	cmd.Flags().IntVar(&d.Limit, "limit", 0, "maximum number of records to print; 0 means all")
	cmd.AddCommand(newDeleteRecords(env))
	return cmd
}

func newUsage(env terminal.Environment) *cobra.Command {
	u := &records.Usage{Options: records.Options{Env: env, Output: records.Table}}
	cmd := &cobra.Command{
		Use: "usage", Short: "Add up the tokens and costs of Turns, even deleted ones", Args: noArguments(selectTurns),
		ValidArgsFunction: cobra.NoFileCompletions,
		Long:              usageHelp + fmt.Sprintf(recordsHelp, "usage") + fmt.Sprintf(recordsExitCodes, "read"),
		Example:           usageExamples,
		RunE:              func(cmd *cobra.Command, _ []string) error { return u.Run(cmd.Context()) },
	}
	addRecordFlags(cmd, &u.Options, "table", "csv", "json")
	cmd.Flags().StringVar(&u.By, "by", string(usage.Agent),
		"fields by which the usage is grouped, separated by commas: namespace, agent, requester, session, model and for "+
			"(what the tokens were used for: turn, evaluation or memory)")
	var names []string
	for _, d := range usage.Dimensions {
		names = append(names, string(d))
	}
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func newDeleteRecords(env terminal.Environment) *cobra.Command {
	d := &records.Delete{Options: records.Options{Env: env}}
	cmd := &cobra.Command{
		Use: "delete [TURN]", Short: "Delete the records of a Turn, a Session or a requester", Args: oneOrNone("Turn"),
		ValidArgsFunction: cobra.NoFileCompletions,
		Long:              deleteRecordsHelp + fmt.Sprintf(recordsExitCodes, "deleted"),
		Example: `  # delete the record of a Turn
  capstan decisions delete open-loops -n helpdesk

  # delete all records of a person
  capstan decisions delete --requester ada@example.com -n helpdesk

  # delete the record of a Turn that capstan run has kept
  capstan decisions delete open-loops --data-dir data`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				d.Turn = args[0]
			}
			return d.Run(cmd.Context())
		},
	}
	addSelectorFlags(cmd, &d.Options)
	addDoneOutput(cmd, &d.Options)
	addDataDirFlag(cmd, &d.Options, "delete the records that capstan run keeps in this directory, instead of those of a cluster")
	return cmd
}

// addSelectorFlags adds the flags that select records of a namespace.
func addSelectorFlags(cmd *cobra.Command, o *records.Options) {
	f := cmd.Flags()
	f.StringVarP(&o.Namespace, "namespace", "n", "",
		"namespace of the Turns; default: the namespace of the kubeconfig's context, or default if no kubeconfig is read")
	f.StringVar(&o.Session, "session", "", "name of the Session of the Turns; default: any")
	f.StringVar(&o.Requester, "requester", "",
		"user who asked for the Turns; local means Turns of capstan run that name no user; default: any")
	for _, flag := range []string{"namespace", "session", "requester"} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
}

// addDataDirFlag adds the flags that specify where the records are. use describes --data-dir.
func addDataDirFlag(cmd *cobra.Command, o *records.Options, use string) {
	cmd.Flags().StringVar(&o.DataDir, "data-dir", "", use)
	addClusterFlags(cmd.Flags(), &o.Cluster)
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	for _, flag := range clusterFlagNames {
		cmd.MarkFlagsMutuallyExclusive("data-dir", flag)
	}
}

// addRecordFlags adds the flags of commands that read records, with their shell completions.
func addRecordFlags(cmd *cobra.Command, o *records.Options, formats ...string) {
	addSelectorFlags(cmd, o)
	f := cmd.Flags()
	f.BoolVarP(&o.AllNamespaces, "all-namespaces", "A", false, "select the Turns of all namespaces")
	f.StringVar(&o.Agent, "agent", "", "name of the Agent of the Turns; default: any")
	f.StringVar(&o.Since, "since", "",
		"select the Turns that ended since then: a duration such as 24h or 7d, a day such as 2026-06-11, or an RFC 3339 time; default: all")
	f.VarP(formatFlag{&o.Output, formats}, "output", "o", "output format: "+alternatives(formats))
	addDataDirFlag(cmd, o, "read the records that capstan run keeps in this directory, instead of those of a cluster")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
	for _, flag := range []string{"agent", "since"} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
}
