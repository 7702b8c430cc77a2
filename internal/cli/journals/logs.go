package journals

import (
	"context"

	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/transcript"
)

// Logs holds the flags of capstan logs.
type Logs struct {
	Source
	// Follow waits for new entries until the Turn has ended.
	Follow bool
	// Artifact is the name or the SHA-256 of an artifact to print instead. If it is empty, the journal is printed.
	Artifact string
	// Output is text or json.
	Output output.Format
}

// Run prints the journal of a Turn, given as NAME or NAMESPACE/NAME.
func (l *Logs) Run(ctx context.Context, turn string) error {
	if l.Artifact != "" {
		return l.printContent(ctx, turn, l.Artifact)
	}
	var live *terminal.Spinner
	if l.Follow {
		if live = l.Env.StartSpinner(); live != nil {
			defer live.Close()
		}
	}
	show := transcript.NewWriter(stdout{l.Env}).Write
	if l.Output == output.JSON {
		show = l.jsonLine
	}
	if live != nil {
		show = withActivities(live, show)
	}
	n, err := l.read(ctx, turn, readapi.Query{Follow: l.Follow}, show)
	if err == nil && n == 0 {
		l.Env.Logf("note: the journal of Turn %s is empty: the Turn has not run, or its journal is in another "+
			"store; see the status of the Turn", termsafe.Line(turn, output.LongestID))
	}
	return err
}

// withActivities returns a function that calls show for an entry. Before that, it shows the current activities of the
// Turn in the spinner; after the last entry, the spinner shows nothing.
func withActivities(live *terminal.Spinner, show func(journal.Entry) error) func(journal.Entry) error {
	const next = "waiting for the next entry"
	var current Activities
	live.Show(next)
	return func(e journal.Entry) error {
		current.Follow(e)
		switch {
		case e.Kind == journal.Finalized:
			live.Show("")
		case len(current) > 0:
			live.Show(current.String())
		default:
			live.Show(next)
		}
		return show(e)
	}
}
