package tickets

import (
	"cmp"
	_ "embed" // for the initial tickets of the demo
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
)

const (
	// maxTickets bounds the tickets of a desk, maxNotes the notes of a ticket, and maxKeys the idempotency keys that a
	// desk remembers.
	maxTickets = 1000
	maxNotes   = 100
	maxKeys    = 10_000

	stateOpen   = "open"
	stateClosed = "closed"
)

//go:embed tickets.json
var embedded []byte

// Ticket is a request of a person.
type Ticket struct {
	// ID identifies the ticket. The tools accept only IDs of four digits.
	ID    string `json:"id"`
	Title string `json:"title"`
	// State is open or closed.
	State     string `json:"state"`
	Requester string `json:"requester"`
	// Opened is a date, such as 2026-11-09.
	Opened string `json:"opened"`
	// Team is the team to which the ticket was handed over, or empty.
	Team string `json:"team,omitempty"`
	// Notes are the notes, oldest first.
	Notes []string `json:"notes,omitempty"`
	// Closings is the number of times that the ticket was closed.
	Closings int `json:"closings,omitempty"`
}

// Desk holds tickets in memory. It is safe for concurrent use.
type Desk struct {
	mu      sync.Mutex
	tickets []Ticket
	// answers holds the answers of calls by idempotency key. keys holds these keys, oldest first.
	answers map[string]string
	keys    []string
}

// NewDesk returns a desk with the tickets in data, a JSON list of Ticket; nil stands for the tickets of the demo.
// It returns an error if there are more than 1000 tickets, if a ticket has no ID, or if two tickets share one.
func NewDesk(data []byte) (*Desk, error) {
	if data == nil {
		data = embedded
	}
	d := &Desk{answers: map[string]string{}}
	if err := json.Unmarshal(data, &d.tickets); err != nil {
		return nil, fmt.Errorf("failed to read the tickets: %w", err)
	}
	if len(d.tickets) > maxTickets {
		return nil, fmt.Errorf("there are %d tickets, but their number must be at most %d", len(d.tickets), maxTickets)
	}
	seen := map[string]bool{}
	for i, t := range d.tickets {
		if t.ID == "" || seen[t.ID] {
			return nil, fmt.Errorf("tickets[%d]: id %q must not be empty or equal to the id of another ticket", i, t.ID)
		}
		seen[t.ID] = true
	}
	return d, nil
}

// Tickets returns a copy of all tickets, in order.
func (d *Desk) Tickets() []Ticket {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone(d.tickets)
	for i := range all {
		all[i].Notes = slices.Clone(all[i].Notes)
	}
	return all
}

// Search returns at most limit tickets that have a word of the query. Tickets with more words of the query come first.
// Among tickets with the same number of words, open tickets come first.
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

// common lists words that Search ignores, because they do not distinguish tickets.
var common = []string{
	"the", "a", "an", "of", "on", "in", "for", "to", "its", "it", "is", "and", "or", "no", "new",
	"every", "ticket", "please", "find",
}

// wordsOf returns the distinct words of a text in lower case, without the common ones.
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

// Close closes a ticket and returns a confirmation. key is the idempotency key, or empty. If a call with the same key
// has succeeded before, Close changes nothing and returns the confirmation of that call. Any other call for a closed
// ticket fails.
func (d *Desk) Close(key, id, resolution string) (string, error) {
	return d.once(key, id, func(t *Ticket) (string, error) {
		if t.State == stateClosed {
			return "", fmt.Errorf("ticket %s is closed already", id)
		}
		if err := t.addNote("Closed: " + resolution); err != nil {
			return "", err
		}
		t.State = stateClosed
		t.Closings++
		return fmt.Sprintf("Ticket %s is closed.", id), nil
	})
}

// AddNote adds a note to a ticket, unless the ticket already has the same note.
func (d *Desk) AddNote(id, note string) (string, error) {
	return d.once("", id, func(t *Ticket) (string, error) {
		if !slices.Contains(t.Notes, note) {
			if err := t.addNote(note); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("Ticket %s has the note.", id), nil
	})
}

// RemoveNote removes a note of a ticket, if the ticket has it.
func (d *Desk) RemoveNote(id, note string) (string, error) {
	return d.once("", id, func(t *Ticket) (string, error) {
		t.Notes = slices.DeleteFunc(slices.Clone(t.Notes), func(other string) bool { return other == note })
		return fmt.Sprintf("Ticket %s does not have the note.", id), nil
	})
}

// HandOver hands a ticket over to a team.
func (d *Desk) HandOver(id, team string) (string, error) {
	return d.once("", id, func(t *Ticket) (string, error) {
		t.Team = team
		return fmt.Sprintf("Ticket %s (%s) is with the team %s now.", id, t.Title, team), nil
	})
}

// addNote adds a note. It returns an error if the ticket has the maximum number of notes.
func (t *Ticket) addNote(note string) error {
	if len(t.Notes) >= maxNotes {
		return fmt.Errorf("ticket %s has %d notes and can have no more", t.ID, maxNotes)
	}
	t.Notes = append(t.Notes, note)
	return nil
}

// once changes a ticket and returns the answer of change. If an earlier call with the same key has succeeded, once
// changes nothing and returns the answer of that call. A call whose change failed may be repeated with the same key.
func (d *Desk) once(key, id string, change func(*Ticket) (string, error)) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if answer, ok := d.answers[key]; ok && key != "" {
		return answer, nil
	}
	i := slices.IndexFunc(d.tickets, func(t Ticket) bool { return t.ID == id })
	if i < 0 {
		return "", unknown(id)
	}
	answer, err := change(&d.tickets[i])
	if err == nil && key != "" {
		d.remember(key, answer)
	}
	return answer, err
}

// remember stores the answer of a key. If there are maxKeys keys already, it removes the oldest one.
func (d *Desk) remember(key, answer string) {
	if len(d.keys) >= maxKeys {
		delete(d.answers, d.keys[0])
		d.keys = d.keys[1:]
	}
	d.keys = append(d.keys, key)
	d.answers[key] = answer
}
