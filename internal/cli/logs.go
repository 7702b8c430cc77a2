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
	"github.com/capstan-dev/capstan/internal/screen"
	"github.com/capstan-dev/capstan/internal/transcript"
)

const logsHelp = `logs prints the journal of a Turn: what the user asked, each step of the model with its tokens, its cost and its time, each
call of a tool with its result or why there is none, failures and retries, and the end. The system prompt is not part of it:
see capstan render.

In a cluster the journal is asked of the manager. A port is forwarded to the pod of the Turn's executor, or --server says
where the manager serves. Who you are says the bearer token of your kubeconfig, or --token. A kubeconfig with a client certificate
has none: then a token of --service-account is made, for ten minutes. It takes get on turns/log, as the ClusterRole with the
label capstan.dev/role=turn-reader gives, and for the forwarding list on leases and get and create on pods/portforward in the
manager's namespace.

With --data-dir it is the journal that capstan run keeps there.

With -f it waits for what is added, until the Turn has ended. It reads on elsewhere if the Turn moves to another executor. On a
terminal, standard error shows meanwhile what goes on. The Turn of a sub-agent has a journal of its own, under the name that the line
of its call has.

An output that was too long for the model is shown as far as the model saw it; --artifact prints the whole, by the name that stands
below it.

What was said stands behind bars ("| "); what a terminal would act on is written out, as \u001b. -o json prints the entries
as JSON lines with all they hold.

`

const logsExitCodes = `Exit codes:
  0    the journal was read
  1    it could not be read
  2    the flags are wrong
  130  interrupted`

const logsExamples = `  # what a Turn did
  capstan logs open-loops -n helpdesk

  # as it happens
  capstan logs -f open-loops

  # the whole output of a call, which the model saw a part of
  capstan logs open-loops --artifact call-2-1

  # with the rights of a ServiceAccount
  capstan logs open-loops --token "$(kubectl create token auditor)"

  # from a manager that serves at an address of its own
  capstan logs open-loops --server https://capstan.example:8443

  # what capstan run has kept
  capstan logs open-loops --data-dir data`

// logs holds the flags of logs.
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
	cmd.Flags().BoolVarP(&l.follow, "follow", "f", false, "wait for what is added, until the Turn has ended")
	cmd.Flags().VarP(textOrJSON{&l.output}, "output", "o", "output format")
	addArtifactFlag(cmd, &l.artifact)
	cmd.MarkFlagsMutuallyExclusive("artifact", "follow")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// oneTurn checks that there is one argument.
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
		if live = l.env.watch(); live != nil {
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
		l.env.tell("note: the journal of Turn %s has no entry: it has not run, or its journal is in another store; its status says more", screen.Line(turn, longestID))
	}
	return err
}

// waiting shows what is waited for after each entry, until the last.
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

// read hands the entries that a query wants to a function, and returns how many there were. A signal ends it.
func (j *journals) read(ctx context.Context, turn string, q readapi.Query, take func(journal.Entry) error) (n int, err error) {
	watched, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer release()
	defer context.AfterFunc(watched, release)()
	r, err := j.open(watched, turn)
	if err != nil {
		return 0, interruptedOr(watched, err)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	n, err = each(r.entries(watched, q), take)
	return n, interruptedOr(watched, err)
}

func each(entries iter.Seq2[journal.Entry, error], take func(journal.Entry) error) (n int, err error) {
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

// interruptedOr returns that a person has stopped the program, if that is why something failed.
func interruptedOr(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fail(ExitInterrupted, errors.New("interrupted"))
	}
	return err
}

// stdout is Out as a writer whose errors say what failed.
type stdout struct{ env Environment }

// Write writes to Out.
func (s stdout) Write(p []byte) (int, error) { return len(p), s.env.print(string(p)) }

// jsonLine prints an entry as JSON on a line.
func (e Environment) jsonLine(entry journal.Entry) error {
	data, err := readapi.Marshal(entry)
	if err != nil {
		return err
	}
	text := string(data)
	if e.OutIsTerminal { // what is written out is JSON, too
		text = screen.Safe(text)
	}
	return e.print(text + "\n")
}
