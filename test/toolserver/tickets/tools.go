package tickets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// IdempotencyKey is the name of the idempotency key in a call's _meta. Repetitions of a call have the same key.
const IdempotencyKey = "capstan.dev/idempotencyKey"

// The names of the tools.
const (
	ToolSearch     = "search_tickets"
	ToolGet        = "get_ticket"
	ToolClose      = "close_ticket"
	ToolNote       = "add_note"
	ToolRemoveNote = "remove_note"
	ToolHandOver   = "hand_over"
	ToolContext    = "ticket_context"
)

// arguments holds the arguments of all tools. Each tool has its own schema for the ones that it accepts.
type arguments struct {
	ID         string `json:"id"`
	Query      string `json:"query"`
	Limit      int    `json:"limit"`
	Resolution string `json:"resolution"`
	Note       string `json:"note"`
	Team       string `json:"team"`
	Message    string `json:"message"`
	TopK       int    `json:"topK"`
}

const idSchema = `"id": {"type": "string", "pattern": "^[0-9]{4}$", "description": "The number of the ticket, such as 1042."}`

// addTools adds the tools of a desk to a server. The annotations mark the tools that only read and those that may
// be repeated. close_ticket is destructive, but a second call with the same key has no further effect. The
// annotations grant nothing: the ToolServer declares the effects.
func addTools(s *mcp.Server, d *Desk) {
	readOnly := &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)}
	repeatable := &mcp.ToolAnnotations{IdempotentHint: true, DestructiveHint: new(false), OpenWorldHint: new(false)}
	destructive := &mcp.ToolAnnotations{IdempotentHint: true, DestructiveHint: new(true), OpenWorldHint: new(false)}

	add(s, ToolSearch, "Searches the tickets by the words of their number, title and requester. Gives one line for each that is found.",
		readOnly,
		`"query": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "Words to look for."},
		"limit": {"type": "integer", "minimum": 1, "maximum": 20, "default": 5, "description": "How many tickets at most."}`, `"query"`,
		func(a arguments, _ string) (string, error) { return d.search(a), nil })
	add(s, ToolGet, "Gives a ticket with all of its notes.", readOnly, idSchema, `"id"`,
		func(a arguments, _ string) (string, error) {
			t, err := d.Get(a.ID)
			return t.page(), err
		})
	add(s, ToolClose, "Closes a ticket. It cannot be opened again.", destructive,
		idSchema+`, "resolution": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "What was done, in one sentence."}`,
		`"id", "resolution"`,
		func(a arguments, key string) (string, error) { return d.Close(key, a.ID, a.Resolution) })
	add(s, ToolNote, "Adds a note to a ticket. A note that it has already is not added again.", repeatable,
		idSchema+`, "note": {"type": "string", "minLength": 1, "maxLength": 1000}`, `"id", "note"`,
		func(a arguments, _ string) (string, error) { return d.AddNote(a.ID, a.Note) })
	add(s, ToolRemoveNote, "Removes a note from a ticket. It does nothing if the ticket does not have the note.", repeatable,
		idSchema+`, "note": {"type": "string", "minLength": 1, "maxLength": 1000}`, `"id", "note"`,
		func(a arguments, _ string) (string, error) { return d.RemoveNote(a.ID, a.Note) })
	add(s, ToolHandOver, "Hands a ticket over to another team, which then answers.", repeatable,
		idSchema+`, "team": {"type": "string", "enum": ["network", "facilities", "purchasing"]}`, `"id", "team"`,
		func(a arguments, _ string) (string, error) { return d.HandOver(a.ID, a.Team) })
	add(s, ToolContext, "Gives the tickets that bear on a message, as facts.", readOnly,
		`"message": {"type": "string"}, "topK": {"type": "integer", "minimum": 1, "maximum": 100, "default": 8}`, `"message"`,
		func(a arguments, _ string) (string, error) { return d.facts(a) })
}

// add adds one tool to a server. do receives the arguments, which match the schema, and the call's idempotency key.
func add(s *mcp.Server, name, description string, hints *mcp.ToolAnnotations, properties, required string,
	do func(a arguments, key string) (string, error),
) {
	schema := json.RawMessage(fmt.Sprintf(`{"type": "object", "properties": {%s}, "required": [%s], "additionalProperties": false}`,
		properties, required))
	tool := &mcp.Tool{Name: name, Description: description, Annotations: hints, InputSchema: schema}
	mcp.AddTool(s, tool, func(_ context.Context, r *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, any, error) {
		key, _ := r.Params.Meta[IdempotencyKey].(string)
		text, err := do(a, key)
		if err != nil {
			return nil, nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	})
}

// search returns the answer of search_tickets.
func (d *Desk) search(a arguments) string {
	found := d.Search(a.Query, a.Limit)
	if len(found) == 0 {
		return "no ticket matches: use other words"
	}
	var text strings.Builder
	for _, t := range found {
		fmt.Fprintf(&text, "%s [%s] %s, for %s\n", t.ID, t.State, t.Title, t.Requester)
	}
	return strings.TrimRight(text.String(), "\n")
}

// page returns a ticket as text for people.
func (t Ticket) page() string {
	lines := []string{fmt.Sprintf("Ticket %s [%s]: %s", t.ID, t.State, t.Title), "Requester: " + t.Requester, "Opened: " + t.Opened}
	if t.Team != "" {
		lines = append(lines, "Team: "+t.Team)
	}
	for _, n := range t.Notes {
		lines = append(lines, "- "+n)
	}
	return strings.Join(lines, "\n")
}

// fact is a fact in the answer of ticket_context.
type fact struct {
	ID     string `json:"id"`
	Text   string `json:"text"`
	Source string `json:"source"`
}

// facts returns the answer of ticket_context.
func (d *Desk) facts(a arguments) (string, error) {
	answer := struct {
		Facts []fact `json:"facts"`
	}{Facts: []fact{}}
	for _, t := range d.Search(a.Message, a.TopK) {
		answer.Facts = append(answer.Facts, fact{
			ID: "ticket-" + t.ID, Text: fmt.Sprintf("Ticket %s, %s, is %s.", t.ID, t.Title, t.State), Source: "tickets/" + t.ID,
		})
	}
	data, err := json.Marshal(answer)
	if err != nil {
		return "", errors.New("failed to encode the facts")
	}
	return string(data), nil
}
