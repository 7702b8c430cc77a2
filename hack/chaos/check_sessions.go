package main

import (
	"encoding/json"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// sessionEvidence is a Session as the API server returns it, with its journal.
type sessionEvidence struct {
	Session *v1alpha1.Session
	Entries []journal.Entry
}

// checkSessions checks that each Session contains each of its Turns once, that its totals add up, and that no Turn pays
// again for a summary that an earlier Turn has paid for.
func (c *checker) checkSessions() {
	for _, e := range c.Sessions {
		c.checkSession(e)
	}
}

func (c *checker) checkSession(e sessionEvidence) {
	name := e.Session.Name
	added := map[string]int{}
	for _, entry := range e.Entries {
		if entry.Kind != journal.SessionTurn {
			continue
		}
		var turn struct {
			UID string `json:"turnUID"`
		}
		if err := json.Unmarshal(entry.Payload, &turn); err != nil {
			c.wrong(wholeSessions, "", "entry %d of the history of Session %q cannot be read: %v", entry.Seq, name, err)
			continue
		}
		added[turn.UID]++
	}
	turns, summaries := 0, 0
	var used tokens
	for _, t := range c.evidence.Turns {
		if ref := t.Turn.Spec.SessionRef; ref == nil || ref.Name != name {
			continue
		}
		turns++
		if n := added[string(t.Turn.UID)]; n != 1 {
			c.wrong(wholeSessions, t.Turn.Name, "Session %q has it %d times in its history", name, n)
		}
		if u := t.Turn.Status.Usage; u != nil {
			used.add(u.InputTokens, u.OutputTokens)
		}
		summaries += len(readHistory(string(t.Turn.UID), t.Entries).asides)
	}
	c.SessionTurns += turns
	if len(added) != turns {
		c.wrong(wholeSessions, "", "the history of Session %q has %d Turns, but there are %d", name, len(added), turns)
	}
	var reported tokens
	if u := e.Session.Status.Usage; u != nil {
		reported.add(u.InputTokens, u.OutputTokens)
	}
	if e.Session.Status.Turns != int64(turns) || reported != used {
		c.wrong(wholeSessions, "", "the status of Session %q has %d Turns and %+v tokens, but there are %d Turns with %+v", name,
			e.Session.Status.Turns, reported, turns, used)
	}
	// A conversation grows by one answer per Turn, and a summary replaces several answers.
	if 2*summaries > turns {
		c.wrong(paidOnce, "", "the %d Turns of Session %q have paid for %d summaries of one conversation", turns, name, summaries)
	}
}
