package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/transcript"
)

// longestQuestion is how many characters of the message a progress line repeats.
const longestQuestion = 60

// progress is a journal that tells a person what is added to it: each request, reply and call, and no word of them but the
// beginning of the question.
type progress struct {
	journal.Journal
	env      Environment
	question string
	// agent is the name of the sub-agent whose Turn it is; empty for the Turn that was asked for.
	agent string
	// live shows what goes on; nil shows nothing.
	live *spinner

	mu    sync.Mutex
	asked int
	now   activities
}

// Append adds entries and tells of them.
func (p *progress) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if err := p.Journal.Append(ctx, uid, entries...); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range entries {
		p.tell(e)
	}
	return nil
}

// tell tells of an entry. The end is told by the report, and an entry that cannot be read is not worth a word here.
func (p *progress) tell(e journal.Entry) {
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
	if e.Kind == journal.Finalized && p.agent == "" {
		return
	}
	line, err := transcript.Headline(e)
	if err != nil || line == "" {
		return
	}
	if e.Kind == journal.ModelRequested {
		if p.asked++; p.asked > 1 {
			line += fmt.Sprintf(" (request %d)", p.asked)
		}
		line += ": " + p.question
	}
	if e.Kind != journal.ToolFinished && e.Kind != journal.ApprovalRequested { // which begin with the name of the tool
		line = strings.ToUpper(line[:1]) + line[1:]
	}
	if p.agent != "" {
		line = p.agent + "> " + line
	}
	p.env.tell("%s", line)
}

// follow notes what goes on from an entry on, and shows it.
func (p *progress) follow(e journal.Entry) {
	if p.live == nil || !p.now.follow(e) {
		return
	}
	p.live.show(p.now.String())
}
