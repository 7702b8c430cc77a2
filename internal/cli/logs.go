package cli

import (
	"context"
	"errors"
	"iter"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/transcript"
)

const logsHelp = `logs prints the journal of a Turn: the user's message, each step of the model with its tokens, cost and
duration, each tool call with its result or the reason why there is none, failures and retries, and the
end. It does not print the system prompt: see capstan render.

In a cluster, logs reads the journal from the manager, through a port that is forwarded to the Pod of
the Turn's executor, or at the address in --server. The bearer token of your kubeconfig or --token
authenticates you. If your kubeconfig has a client certificate instead of a token, logs creates a token
for --service-account, which is valid for ten minutes.

logs requires get on turns/log, which the ClusterRole with the label capstan.dev/role=turn-reader grants.
The forwarded port also requires list on leases, and get and create on pods/portforward, in the
manager's namespace.

With --data-dir, logs reads a journal that capstan run keeps there.

With -f, logs waits for new entries until the Turn has ended, even if the Turn moves to another executor.
On a terminal, standard error shows the current activity in the meantime. The Turn of a sub-agent has its
own journal; the line of the call contains the name of that Turn.

If an output was too long for the model, logs prints the part that the model received. --artifact prints
the whole output, by the name below it.

Content stands behind bars ("| "), and control characters are shown as escapes such as \u001b. -o json
prints the complete entries as JSON lines.

`

const logsExitCodes = `Exit codes:
  0    the journal was read
  1    the journal could not be read
  2    the flags are wrong
  130  interrupted`

const logsExamples = `  # show what a Turn did
  capstan logs open-loops -n helpdesk

  # follow a Turn
  capstan logs -f open-loops

  # print the whole output of a call of which the model received a part
  capstan logs open-loops --artifact call-2-1

  # use the rights of a ServiceAccount
  capstan logs open-loops --token "$(kubectl create token auditor)"

  # read from the Service of the read API
  capstan logs open-loops --server https://capstan.example

  # read a journal that capstan run has kept
  capstan logs open-loops --data-dir data`

// logs holds the flags of capstan logs.
type logs struct {
	journals
	follow   bool
	artifact string
	output   outputFormat
}

func newLogs(env Environment) *cobra.Command {
	l := &logs{journals: journals{env: env}, output: outputText}
	cmd := &cobra.Command{
		Use: "logs TURN [-f]", Short: "Print what a Turn did, step by step", Long: logsHelp + logsExitCodes, Example: logsExamples,
		Args: oneTurn,
		RunE: func(cmd *cobra.Command, args []string) error { return l.run(cmd.Context(), args[0]) },
	}
	l.addFlags(cmd)
	cmd.Flags().BoolVarP(&l.follow, "follow", "f", false, "wait for new entries until the Turn has ended")
	cmd.Flags().VarP(textOrJSON{&l.output}, "output", "o", "output format")
	addArtifactFlag(cmd, &l.artifact)
	cmd.MarkFlagsMutuallyExclusive("artifact", "follow")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// oneTurn returns an error unless there is exactly one argument.
func oneTurn(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return errors.New("name one Turn, as NAME or NAMESPACE/NAME")
	}
	return nil
}

func (l *logs) run(ctx context.Context, turn string) error {
	if l.artifact != "" {
		return l.content(ctx, turn, l.artifact)
	}
	var live *spinner
	if l.follow {
		if live = l.env.startSpinner(); live != nil {
			defer live.close()
		}
	}
	show := transcript.NewWriter(stdout{l.env}).Write
	if l.output == outputJSON {
		show = l.env.jsonLine
	}
	if live != nil {
		show = waiting(live, show)
	}
	n, err := l.read(ctx, turn, readapi.Query{Follow: l.follow}, show)
	if err == nil && n == 0 {
		l.env.tell("note: the journal of Turn %s is empty: the Turn has not run, or its journal is in another "+
			"store; see the status of the Turn", termsafe.Line(turn, longestID))
	}
	return err
}

// waiting wraps show: after each entry, the spinner shows what the Turn is waiting for, until the last entry.
func waiting(live *spinner, show func(journal.Entry) error) func(journal.Entry) error {
	const next = "waiting for the next entry"
	var now activities
	live.show(next)
	return func(e journal.Entry) error {
		now.follow(e)
		switch {
		case e.Kind == journal.Finalized:
			live.show("")
		case len(now) > 0:
			live.show(now.String())
		default:
			live.show(next)
		}
		return show(e)
	}
}

// read passes the entries that a query selects to take, and returns their number. A signal stops it.
func (j *journals) read(ctx context.Context, turn string, q readapi.Query, take func(journal.Entry) error) (n int, err error) {
	watched, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	defer context.AfterFunc(watched, release)()
	r, err := j.open(watched, turn)
	if err != nil {
		return 0, interruptedOr(watched, err)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	n, err = forEach(r.entries(watched, q), take)
	return n, interruptedOr(watched, err)
}

func forEach(entries iter.Seq2[journal.Entry, error], take func(journal.Entry) error) (n int, err error) {
	for e, err := range entries {
		if err != nil {
			return n, fail(ExitFailed, explained(err))
		}
		if err := take(e); err != nil {
			return n, fail(ExitFailed, err)
		}
		n++
	}
	return n, nil
}

// interruptedOr returns err, or an error that says "interrupted" if a signal was the cause of err.
func interruptedOr(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fail(ExitInterrupted, errors.New("interrupted"))
	}
	return err
}

// stdout is a writer to Out whose errors name standard output.
type stdout struct{ env Environment }

// Write writes to Out.
func (s stdout) Write(p []byte) (int, error) { return len(p), s.env.print(string(p)) }

// jsonLine prints an entry as one line of JSON.
func (e Environment) jsonLine(entry journal.Entry) error {
	data, err := readapi.Marshal(entry)
	if err != nil {
		return err
	}
	text := string(data)
	if e.OutIsTerminal { // the escaped text is JSON, too
		text = termsafe.Safe(text)
	}
	return e.print(text + "\n")
}
