package localrun

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/transcript"
)

// longestQuestion is the number of characters of the user's message that a progress line repeats.
const longestQuestion = 60

// progress is a journal that prints a line for each request, reply and call that is appended. The lines contain no
// text of the conversation except the start of the user's message.
type progress struct {
	journal.Journal
	env      terminal.Environment
	question string
	// agent is the name of the sub-agent that the Turn runs. It is empty for the command's own Turn.
	agent string
	// live shows the current activity. If it is nil, no activity is shown.
	live *terminal.Spinner

	mu sync.Mutex
	// requests is the number of requests to models so far.
	requests int
	// activities are the current activities, which live shows.
	activities journals.Activities
}

// Append appends entries and prints a line for each.
func (p *progress) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if err := p.Journal.Append(ctx, uid, entries...); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range entries {
		p.logEntry(e)
	}
	return nil
}

// logEntry prints a line about an entry. It prints nothing when the command's own Turn ends, because the report
// describes that end. It also prints nothing for the beginning and the end of an undo, and for entries that cannot be
// read.
func (p *progress) logEntry(e journal.Entry) {
	for _, a := range e.Artifacts {
		if a.SHA256 != e.Artifact {
			continue
		}
		content, err := a.Content()
		if err != nil {
			return
		}
		e.Payload = content
	}
	p.follow(e)
	switch e.Kind { //nolint:exhaustive // because the others are shown
	case journal.Finalized:
		if p.agent == "" {
			return
		}
	case journal.UndoBegun, journal.UndoEnded: // the calls themselves are shown
		return
	}
	line, err := transcript.Headline(e)
	if err != nil || line == "" {
		return
	}
	if e.Kind == journal.ModelRequested {
		if p.requests++; p.requests > 1 {
			line += fmt.Sprintf(" (request %d)", p.requests)
		}
		line += ": " + p.question
	}
	if e.Kind != journal.ToolFinished && e.Kind != journal.ApprovalRequested { // their headlines start with the name of a tool
		line = strings.ToUpper(line[:1]) + line[1:]
	}
	if p.agent != "" {
		line = p.agent + "> " + line
	}
	p.env.Logf("%s", line)
}

// follow updates the current activity after an entry, and shows it.
func (p *progress) follow(e journal.Entry) {
	if p.live == nil || !p.activities.Follow(e) {
		return
	}
	p.live.Show(p.activities.String())
}
