package mcp

import (
	"io"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/capstan-dev/capstan/internal/bytebudget"
)

// TestLargeMessagesBesideAResponseAreSkipped checks that the stream of a response keeps no large message that is not
// this response, if its beginning shows that, and reserves no memory for it. The next message is read.
func TestLargeMessagesBesideAResponseAreSkipped(t *testing.T) {
	filler := strings.Repeat("n", 1<<20)
	call, err := jsonrpc.MakeID(float64(7))
	if err != nil {
		t.Fatal(err)
	}
	const answer = `{"jsonrpc":"2.0","id":7,"result":{}}`
	for name, tc := range map[string]struct {
		message string
		skipped bool
		method  string
		hasID   bool
	}{
		"a log": {
			`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + filler + `"}}`, true,
			"notifications/message", false,
		},
		"a change of the tools": {
			`{"method":"notifications/tools/list_changed","jsonrpc":"2.0","x":"` + filler + `"}`, true,
			"notifications/tools/list_changed", false,
		},
		"a request": {
			`{"jsonrpc":"2.0","id":"a","method":"sampling/createMessage","params":"` + filler + `"}`, true,
			"sampling/createMessage", true,
		},
		"a request, ID last":       {`{"jsonrpc":"2.0","method":"ping","id":7,"params":"` + filler + `"}`, true, "ping", true},
		"another response":         {`{"jsonrpc":"2.0","id":8,"result":"` + filler + `"}`, true, "", true},
		"the response":             {`{"jsonrpc":"2.0","id":7,"result":"` + filler + `"}`, false, "", false},
		"the response, ID as text": {`{"jsonrpc":"2.0","id":"7","result":"` + filler + `"}`, false, "", false},
		"the response, ID last":    {`{"jsonrpc":"2.0","result":"` + filler + `","id":7}`, false, "", false},
		"a request without ID":     {`{"jsonrpc":"2.0","method":"ping","params":"` + filler + `"}`, false, "", false},
		"no object":                {`["` + filler + `"]`, false, "", false},
		"no JSON":                  {filler, false, "", false},
		"a method of no text":      {`{"method":7,"x":"` + filler + `"}`, false, "", false},
		"an ID of no kind":         {`{"id":{},"method":"notifications/message","x":"` + filler + `"}`, false, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			budget := bytebudget.New(1<<20, 2*MaxResponseBytes)
			s := &stream{
				ctx: t.Context(), wire: &wire{serverBudget: newServerBudget(), memory: budget.Account("team", bytebudget.Results)},
				ex: owned(t), cancel: func(error) {}, call: call,
			}
			events := "event: message\ndata: " + tc.message + "\nid: 3\n\ndata: " + answer + "\n\n"
			s.begin(io.NopCloser(strings.NewReader(events)), MaxResponseBytes)
			data, err := s.event()
			if err != nil || tc.skipped == (data != nil) || s.lastID != "3" {
				t.Fatalf("the large message is %.40q, %v, with the event ID %q; want it skipped: %t, with the event ID 3",
					data, err, s.lastID, tc.skipped)
			}
			if !tc.skipped {
				s.ex.end()
				return
			}
			if m := s.skipped; m.Method != tc.method || m.id.IsValid() != tc.hasID {
				t.Errorf("the skipped message has the method %q and an ID: %t; want %q, %t", m.Method, m.id.IsValid(), tc.method, tc.hasID)
			}
			held := budget.Use(bytebudget.Contents).Bytes + budget.Use(bytebudget.Results).Bytes
			if most := 4 * unreservedBytes; held > 0 || cap(s.line) > most {
				t.Errorf("%d bytes are reserved, and the line keeps %d bytes; want none, and at most %d", held, cap(s.line), most)
			}
			if data, err = s.event(); err != nil || string(data) != answer || s.skipped != nil {
				t.Errorf("the next event is %.40q, %v, want the response", data, err)
			}
			s.ex.end()
		})
	}
}
