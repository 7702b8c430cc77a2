package tickets

import (
	"cmp"
	_ "embed" // for the tickets that a desk begins with
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
)

const (
	// maxTickets and maxNotes bound what a desk holds, maxKeys how many idempotency keys it remembers.
	maxTickets = 1000
	maxNotes   = 100
	maxKeys    = 10_000

	stateOpen   = "open"
	stateClosed = "closed"
)

//go:embed tickets.json
var embedded []byte

// Ticket is something that somebody wants done.
type Ticket struct {
	// ID has four digits.
	ID    string `json:"id"`
	Title string `json:"title"`
	// State is open or closed.
	State     string `json:"state"`
	Requester string `json:"requester"`
	// Opened is a date, as in 2026-11-09.
	Opened string `json:"opened"`
	// Team that it was handed over to; empty for none.
	Team string `json:"team,omitempty"`
	// Notes, oldest first.
	Notes []string `json:"notes,omitempty"`
	// Closings is how often it was closed.
	Closings int `json:"closings,omitempty"`
}

// Desk holds tickets in memory. It is safe for concurrent use.
type Desk struct {
	mu      sync.Mutex
	tickets []Ticket
	// done are the answers of calls by their idempotency keys, and keys these in their order, oldest first.
	done map[string]string
	keys []string
}

// NewDesk makes a desk of tickets in JSON, a list of Ticket; nil stands for those of the demo. Of more than 1000, or of a
// ticket without an ID or of an ID that another one has, it makes none.
func NewDesk(data []byte) (*Desk, error) {
	if data == nil {
		data = embedded
	}
	d := &Desk{done: map[string]string{}}
	if err := json.Unmarshal(data, &d.tickets); err != nil {
		return nil, fmt.Errorf("failed to read the tickets: %w", err)
	}
	if len(d.tickets) > maxTickets {
		return nil, fmt.Errorf("there are %d tickets and must be at most %d", len(d.tickets), maxTickets)
	}
	seen := map[string]bool{}
	for i, t := range d.tickets {
		if t.ID == "" || seen[t.ID] {
			return nil, fmt.Errorf("tickets[%d]: id %q must be given, and be no other ticket's", i, t.ID)
		}
		seen[t.ID] = true
	}
	return d, nil
}

// Tickets returns a copy of all tickets, in their order.
func (d *Desk) Tickets() []Ticket {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone(d.tickets)
	for i := range all {
		all[i].Notes = slices.Clone(all[i].Notes)
	}
	return all
}

// Search returns at most limit tickets that have a word of the query, those with most of its words first, and of these open
// ones first.
func (d *Desk) Search(query string, limit int) []Ticket {
	words := wordsOf(query)
	hits := map[string]int{}
	var found []Ticket
	for _, t := range d.Tickets() {
		text := wordsOf(t.ID + " " + t.Title + " " + t.Requester)
		for _, w := range words {
			if slices.Contains(text, w) {
				hits[t.ID]++
			}
		}
		if hits[t.ID] > 0 {
			found = append(found, t)
		}
	}
	slices.SortStableFunc(found, func(a, b Ticket) int {
		return cmp.Or(cmp.Compare(hits[b.ID], hits[a.ID]), cmp.Compare(b.State, a.State))
	})
	return found[:min(limit, len(found))]
}

// common are words that say nothing about a ticket.
var common = []string{"the", "a", "an", "of", "on", "in", "for", "to", "its", "it", "is", "and", "or", "no", "new", "every", "ticket", "please", "find"}

// wordsOf returns the words of a text in lower case, each once, without those that are in every text.
func wordsOf(text string) []string {
	all := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(w string) bool { return slices.Contains(common, w) })
}

// Get returns a ticket.
func (d *Desk) Get(id string) (Ticket, error) {
	for _, t := range d.Tickets() {
		if t.ID == id {
			return t, nil
		}
	}
	return Ticket{}, unknown(id)
}

func unknown(id string) error { return fmt.Errorf("there is no ticket %q: search for it", id) }

// Close closes a ticket and says so. The same key again, unless it is empty, changes nothing and says the same again; a ticket
// that is closed cannot be closed with another key.
func (d *Desk) Close(key, id, resolution string) (string, error) {
	return d.once(key, id, func(t *Ticket) (string, error) {
		if t.State == stateClosed {
			return "", fmt.Errorf("ticket %s is closed already", id)
		}
		if err := t.note("Closed: " + resolution); err != nil {
			return "", err
		}
		t.State = stateClosed
		t.Closings++
		return fmt.Sprintf("Ticket %s is closed.", id), nil
	})
}

// AddNote adds a note to a ticket. One that it has already is not added again.
func (d *Desk) AddNote(id, note string) (string, error) {
	return d.once("", id, func(t *Ticket) (string, error) {
		if !slices.Contains(t.Notes, note) {
			if err := t.note(note); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("Ticket %s has the note.", id), nil
	})
}

// HandOver gives a ticket to a team.
func (d *Desk) HandOver(id, team string) (string, error) {
	return d.once("", id, func(t *Ticket) (string, error) {
		t.Team = team
		return fmt.Sprintf("Ticket %s (%s) is with the team %s now.", id, t.Title, team), nil
	})
}

func (t *Ticket) note(note string) error {
	if len(t.Notes) >= maxNotes {
		return fmt.Errorf("ticket %s has %d notes and can have no more", t.ID, maxNotes)
	}
	t.Notes = append(t.Notes, note)
	return nil
}

// once changes a ticket, but for a key that has changed one before: then it returns what was said of that. What failed may be
// tried again.
func (d *Desk) once(key, id string, change func(*Ticket) (string, error)) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if said, ok := d.done[key]; ok && key != "" {
		return said, nil
	}
	i := slices.IndexFunc(d.tickets, func(t Ticket) bool { return t.ID == id })
	if i < 0 {
		return "", unknown(id)
	}
	said, err := change(&d.tickets[i])
	if err == nil && key != "" {
		d.remember(key, said)
	}
	return said, err
}

// remember keeps the answer of a key and forgets the oldest where there are too many.
func (d *Desk) remember(key, said string) {
	if len(d.keys) >= maxKeys {
		delete(d.done, d.keys[0])
		d.keys = d.keys[1:]
	}
	d.keys = append(d.keys, key)
	d.done[key] = said
}
