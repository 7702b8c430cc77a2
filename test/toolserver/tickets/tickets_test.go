package tickets_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

// connect serves the demo's desk over real HTTP and connects the SDK's client.
func connect(t *testing.T) (*mcp.ClientSession, *tickets.Desk, string) {
	t.Helper()
	desk, err := tickets.NewDesk(nil)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(tickets.Handler(desk, nil))
	t.Cleanup(web.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: web.URL + "/mcp", HTTPClient: &http.Client{Transport: transport},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session, desk, web.URL
}

// call calls a tool. It returns the text and whether the text is an error.
func call(t *testing.T, s *mcp.ClientSession, name string, arguments map[string]any, key string) (text string, failed bool) {
	t.Helper()
	params := &mcp.CallToolParams{Name: name, Arguments: arguments}
	if key != "" {
		params.Meta = mcp.Meta{tickets.IdempotencyKey: key}
	}
	result, err := s.CallTool(t.Context(), params)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	content, ok := result.Content[0].(*mcp.TextContent)
	if len(result.Content) != 1 || !ok {
		t.Fatalf("%s gave %v, want one text", name, result.Content)
	}
	return content.Text, result.IsError
}

func TestToolsDescribeTheirEffects(t *testing.T) {
	session, _, _ := connect(t)
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, tool := range list.Tools {
		hints := tool.Annotations
		switch {
		case hints.ReadOnlyHint:
			got[tool.Name] = "ReadOnly"
		case hints.IdempotentHint && !*hints.DestructiveHint:
			got[tool.Name] = "Idempotent"
		case *hints.DestructiveHint:
			got[tool.Name] = "Destructive"
		}
		if tool.Description == "" {
			t.Errorf("%s has no description", tool.Name)
		}
	}
	want := map[string]string{
		tickets.ToolSearch: "ReadOnly", tickets.ToolGet: "ReadOnly", tickets.ToolContext: "ReadOnly",
		tickets.ToolNote: "Idempotent", tickets.ToolRemoveNote: "Idempotent", tickets.ToolHandOver: "Idempotent",
		tickets.ToolClose: "Destructive",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}

func TestCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		tool      string
		arguments map[string]any
		want      string
		failed    bool
	}{
		"search": {
			"tickets with more words of the query come first, and open tickets before closed ones",
			tickets.ToolSearch,
			map[string]any{"query": "Close the ticket of the printer on floor 3."},
			"1042 [open] Printer on floor 3 jams, for Grace\n0977 [closed] Printer on floor 3 prints stripes, for Alan", false,
		},
		"search by number": {
			"a number is a word", tickets.ToolSearch,
			map[string]any{"query": "1057", "limit": 1},
			"1057 [open] New laptop for Grace, for Grace", false,
		},
		"search with a limit": {
			"the limit bounds the number of tickets", tickets.ToolSearch,
			map[string]any{"query": "grace printer", "limit": 1},
			"1042 [open] Printer on floor 3 jams, for Grace", false,
		},
		"search without a result": {
			"common words do not match", tickets.ToolSearch,
			map[string]any{"query": "the ticket"},
			"no ticket matches: use other words", false,
		},
		"get": {
			"a ticket comes with its notes", tickets.ToolGet,
			map[string]any{"id": "1017"},
			"Ticket 1017 [open]: Projector in room 12 shows no picture\nRequester: Edsger\nOpened: 2026-11-02\n- A new cable is ordered.",
			false,
		},
		"get an unknown ticket": {
			"a tool's error is a result", tickets.ToolGet, map[string]any{"id": "9999"}, `there is no ticket "9999": search for it`, true,
		},
		"close a closed ticket": {
			"a closed ticket cannot be closed again", tickets.ToolClose,
			map[string]any{"id": "0977", "resolution": "Done."},
			"ticket 0977 is closed already", true,
		},
		"context": {
			"facts come as JSON", tickets.ToolContext,
			map[string]any{"message": "What about the projector?", "topK": 3},
			`{"facts":[{"id":"ticket-1017","text":"Ticket 1017, Projector in room 12 shows no picture, is ` +
				`open.","source":"tickets/1017"}]}`, false,
		},
		"context without facts": {
			"without facts, the list is empty", tickets.ToolContext, map[string]any{"message": "Hello"}, `{"facts":[]}`, false,
		},
		"hand over": {
			"the answer is a text for people", tickets.ToolHandOver,
			map[string]any{"id": "1061", "team": "network"},
			"Ticket 1061 (VPN drops every hour) is with the team network now.", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			session, _, _ := connect(t)
			text, failed := call(t, session, tc.tool, tc.arguments, "")
			if diff := cmp.Diff(tc.want, text); diff != "" || failed != tc.failed {
				t.Errorf("%s: error is %v, want %v (-want +got):\n%s", tc.reason, failed, tc.failed, diff)
			}
		})
	}
}

func TestInvalidArgumentsAreRejected(t *testing.T) {
	session, desk, _ := connect(t)
	for name, arguments := range map[string]map[string]any{
		"no id":         {"resolution": "Done."},
		"a wrong type":  {"id": 1042, "resolution": "Done."},
		"another field": {"id": "1042", "resolution": "Done.", "force": true},
	} {
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tickets.ToolClose, Arguments: arguments})
		if err == nil && !result.IsError {
			t.Errorf("%s: the call succeeded, want an error", name)
		}
	}
	if ticket, err := desk.Get("1042"); err != nil || ticket.State != "open" {
		t.Errorf("ticket 1042 is %q, error %v; want it open", ticket.State, err)
	}
}

func TestARepeatedKeyClosesOnce(t *testing.T) {
	session, desk, url := connect(t)
	arguments := map[string]any{"id": "1042", "resolution": "A new feed roller is built in."}
	const key = "3f0c/4/call_4_0"
	for attempt := range 3 {
		if text, failed := call(t, session, tickets.ToolClose, arguments, key); failed || text != "Ticket 1042 is closed." {
			t.Errorf("call %d with one key: %q, error %v; want the confirmation", attempt+1, text, failed)
		}
	}
	if text, failed := call(t, session, tickets.ToolClose, arguments, "another"); !failed {
		t.Errorf("a call with another key: %q, want an error", text)
	}
	ticket, err := desk.Get("1042")
	if err != nil {
		t.Fatal(err)
	}
	if last := ticket.Notes[len(ticket.Notes)-1]; ticket.Closings != 1 || len(ticket.Notes) != 3 ||
		last != "Closed: A new feed roller is built in." {
		t.Errorf("closed %d times with the notes %q, want once with one more note", ticket.Closings, ticket.Notes)
	}
	if all := shown(t, url); !slices.ContainsFunc(all, func(s tickets.Ticket) bool { return s.ID == "1042" && s.Closings == 1 }) {
		t.Errorf("GET /tickets shows %v, want ticket 1042 closed once", all)
	}
}

// shown returns the tickets as GET /tickets shows them.
func shown(t *testing.T, url string) []tickets.Ticket {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/tickets", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(response.Body)
	if err != nil || response.Body.Close() != nil {
		t.Fatal(err)
	}
	var all []tickets.Ticket
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestANoteIsAddedOnce(t *testing.T) {
	session, desk, _ := connect(t)
	for range 2 {
		if text, failed := call(t, session, tickets.ToolNote, map[string]any{"id": "1061", "note": "It is the router."}, ""); failed {
			t.Errorf("add_note: %s", text)
		}
	}
	if ticket, err := desk.Get("1061"); err != nil || len(ticket.Notes) != 2 {
		t.Errorf("the notes are %q, error %v; want one more note than before", ticket.Notes, err)
	}
}

func TestManyClientsCloseOneTicketOnce(t *testing.T) {
	desk, err := tickets.NewDesk(nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	for range 20 {
		go func() { _, err := desk.Close("", "1042", "Done."); done <- err }()
	}
	closed := 0
	for range 20 {
		if <-done == nil {
			closed++
		}
	}
	if closed != 1 {
		t.Errorf("%d of 20 calls closed the ticket, want 1", closed)
	}
}

func TestNewDeskRejectsInvalidData(t *testing.T) {
	for name, tc := range map[string]struct{ data, want string }{
		"no JSON": {"tickets", "failed to read the tickets"},
		"no id":   {`[{"title": "x"}]`, `tickets[0]: id ""`},
		"one id":  {`[{"id": "1"}, {"id": "1"}]`, `tickets[1]: id "1"`},
		"many":    {"[" + strings.Repeat(`{},`, 1000) + "{}]", "must be at most 1000"},
	} {
		if _, err := tickets.NewDesk([]byte(tc.data)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
}
