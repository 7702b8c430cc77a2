package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/evaluation"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/localrun"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

const evalHelp = `eval runs an Agent over a file of cases on this machine, with the same engine as capstan run, and checks each
answer: texts and patterns that it must contain, CEL expressions, the tools that were called, and the scores
of the judges of the PromptProfile. If a case has feedback of people about an earlier answer, eval also compares
the new answer with that one. Use eval to test a prompt before it is merged.

Each case is a separate Turn. The models and the tools are real: the answers cost tokens, and calls of tools
have effects. Calls that require approval are denied, unless --approve is all.

Standard error shows a line for each case that ends. Standard output shows the report: a table, or with -o
JSON, JUnit XML, or Markdown for a comment on a pull request.

Exit codes:
  0    enough cases passed: at least the share that --threshold names
  1    too few cases passed
  2    the flags, the cases or the manifests are invalid, and no case has run
  130  interrupted`

// evalApprovals lists the values of --approve of eval.
var evalApprovals = []string{string(localrun.ApproveNone), string(localrun.ApproveAll)}

// evalApproval is the value of --approve of eval. No person can be asked while cases run in parallel.
type evalApproval struct{ approvalValue }

// Type returns the values for help texts.
func (evalApproval) Type() string { return "none|all" }

// Set parses a value of the command line.
func (m evalApproval) Set(value string) error {
	if !slices.Contains(evalApprovals, value) {
		return errors.New("must be none or all")
	}
	return m.approvalValue.Set(value)
}

func newEval(env terminal.Environment) *cobra.Command {
	var files []string
	o := &evaluation.Options{Env: env, Approve: localrun.ApproveNone, Output: evaluation.Text}
	cmd := &cobra.Command{
		Use: "eval -f CASES [--agent NAME]", Short: "Test an Agent with a file of cases, without a cluster",
		Args: noArguments("name the file of cases with -f"), Long: evalHelp,
		Example: `  # start a fake model server in another terminal
  go run ./test/fakemodel --listen 127.0.0.1:8089 --rules test/fakemodel/rules.yaml

  # run all cases of a file, which names its manifests
  capstan eval -f examples/eval/cases.yaml

  # accept one failure in ten, and write a report for CI
  capstan eval -f examples/eval/cases.yaml --threshold 0.9 -o junit > report.xml

  # run one case with another PromptProfile
  capstan eval -f examples/eval/cases.yaml --manifests new-profile.yaml --profile shop-2 --case price`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) > 1 { // -f may be repeated in other commands
				return exit.WithCode(exit.Usage, fmt.Errorf("-f may be given only once: eval runs one file of cases, and "+
					"-m names further manifests; it is %s", strings.Join(files, " and ")))
			}
			o.File = strings.Join(files, "")
			return o.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&files, "filename", "f", nil, "`CASES`, a file of cases, or - for standard input")
	f.StringArrayVarP(&o.Manifests, "manifests", "m", nil,
		"`PATH` of a file or directory of manifests, in addition to those that the cases name; may be repeated")
	f.StringVarP(&o.Namespace, "namespace", "n", "default", "namespace of objects that do not name one")
	f.StringVar(&o.Agent, "agent", "",
		"Agent to evaluate, as NAME or NAMESPACE/NAME; default: the Agent that the file of cases names, or the only Agent")
	f.StringVar(&o.Profile, "profile", "", "PromptProfile to use instead of the Agent's")
	f.StringArrayVar(&o.Cases, "case", nil, "`NAME` of a case to run; may be repeated; default: all cases")
	f.StringVar(&o.Threshold, "threshold", "1", "share of the cases that must pass, a decimal from 0 to 1")
	f.IntVar(&o.Parallel, "parallel", 4, "number of cases that run at the same time, from 1 to 32")
	f.Var(evalApproval{approvalValue{&o.Approve}}, "approve", "decision about tool calls that require approval")
	f.StringArrayVar(&o.EnvSecrets, "env-secret", nil,
		"set a Secret's key from an environment variable, as [NAMESPACE/]NAME/KEY=ENVVAR; may be repeated")
	f.StringVar(&o.SkillsFile, "skills-file", "",
		"`PATH` of a YAML file of skills that every Agent may load, like those of the manager; default: none")
	f.Var(instant{&o.Now}, "now", "time that the prompts contain; default: the current time")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "do not show a line for each case that ends")
	f.VarP(&o.Output, "output", "o", "format of the report")
	for flag, complete := range map[string]cobra.CompletionFunc{
		"case": func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			file := slices.Concat([]string{""}, files) // cobra parses the flags twice for a completion
			return evaluation.CaseNames(file[len(file)-1]), cobra.ShellCompDirectiveNoFileComp
		},
		"output":     cobra.FixedCompletions(evaluation.Formats, cobra.ShellCompDirectiveNoFileComp),
		"approve":    cobra.FixedCompletions(evalApprovals, cobra.ShellCompDirectiveNoFileComp),
		"namespace":  cobra.NoFileCompletions,
		"agent":      cobra.NoFileCompletions,
		"profile":    cobra.NoFileCompletions,
		"threshold":  cobra.NoFileCompletions,
		"parallel":   cobra.NoFileCompletions,
		"env-secret": cobra.NoFileCompletions,
		"now":        cobra.NoFileCompletions,
	} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, complete)) // fails only for a flag that does not exist
	}
	cobra.CheckErr(cmd.MarkFlagFilename("filename", "yaml", "yml", "json"))
	cobra.CheckErr(cmd.MarkFlagFilename("skills-file", "yaml", "yml"))
	return cmd
}
