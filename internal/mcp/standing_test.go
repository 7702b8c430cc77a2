package mcp

import (
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// TestLargeStandingEventsAreNotKept checks that a large event of the standing stream takes little memory, because each
// ToolServer may have such a stream, and that the next event is read.
func TestLargeStandingEventsAreNotKept(t *testing.T) {
	small := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	for name, large := range map[string]string{
		"one line":         "data: " + strings.Repeat("x", 60<<10) + "\n\n",
		"many lines":       strings.Repeat("data: "+strings.Repeat("x", 1000)+"\r\n", 50) + "\r\n",
		"a large comment":  ":" + strings.Repeat("x", 60<<10) + "\ndata: {}\n\n",
		"an ID at its end": "data: " + strings.Repeat("x", 60<<10) + "\nid: 7\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := &stream{ctx: t.Context(), wire: &wire{}, ex: &exchange{}, standing: true, pause: newPause()}
			s.begin(io.NopCloser(strings.NewReader(large+"data: "+small+"\n\n")), 2*maxStandingEvent)
			data, err := s.event()
			if err != nil || data != nil {
				t.Errorf("the large event is %.40q, %v, want none", data, err)
			}
			if cap(s.line) > 4*unreservedBytes {
				t.Errorf("the line keeps %d bytes, want at most %d", cap(s.line), 4*unreservedBytes)
			}
			if data, err = s.event(); err != nil || string(data) != small {
				t.Errorf("the next event is %.40q, %v, want the small one", data, err)
			}
		})
	}
}

// TestEventIDs checks after which events a stream is resumed: after complete ones, and after one that is too large for
// a standing stream.
func TestEventIDs(t *testing.T) {
	for name, tc := range map[string]struct{ events, want string }{
		"complete":          {"id: 2\ndata: {}\n\n", "2"},
		"no message":        {"id: 2\n\n", "2"},
		"no ID":             {"data: {}\n\n", "1"},
		"cut after its ID":  {"id: 2\n", "1"},
		"cut in its data":   {"id: 2\ndata: {\"jsonrpc\"", "1"},
		"cut at its end":    {"id: 2\ndata: {}\n", "1"},
		"large and cut":     {"id: 2\ndata: " + strings.Repeat("x", maxStandingEvent/2), "1"},
		"too large to read": {"id: 2\ndata: " + strings.Repeat("x", 2*maxStandingEvent), "2"},
	} {
		s := &stream{ctx: t.Context(), wire: &wire{}, ex: &exchange{}, standing: true, pause: newPause(), lastID: "1"}
		s.begin(io.NopCloser(strings.NewReader(tc.events)), maxStandingEvent)
		if data, err := s.event(); s.lastID != tc.want {
			t.Errorf("%s: the stream is resumed after event %q, want %q (event = %q, %v)", name, s.lastID, tc.want, data, err)
		}
	}
}

// TestLargeNotificationsTakeTurns checks that a large notification in the stream of a response is decoded only when it
// is the turn of its namespace. A server may send such notifications without end.
func TestLargeNotificationsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		processors := fairgate.NewProcessors(1)
		release := fairgate.AcquireProcessor(processors.With(t.Context(), "victim"), 1<<20)
		s := &stream{ctx: processors.With(t.Context(), "attacker"), wire: &wire{}, ex: &exchange{}, resumes: 1}
		handled := make(chan struct{})
		go func() {
			defer close(handled)
			s.handle([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + strings.Repeat("n", 1<<20) + `"}}`))
		}()
		synctest.Wait()
		select {
		case <-handled:
			t.Error("the notification was decoded at the same time as the work of another namespace")
		default:
		}
		release()
		<-handled
		if s.done || s.resumes != 0 {
			t.Errorf("done %t, %d resumes; want the stream to continue after a valid message", s.done, s.resumes)
		}
	})
}

func TestKindsOfMessages(t *testing.T) {
	call, err := jsonrpc.MakeID(float64(2))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		message string
		valid   bool
		answers bool
	}{
		"the response":                {`{"jsonrpc":"2.0","id":2,"result":{}}`, true, true},
		"an error":                    {`{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"x"}}`, true, true},
		"another response":            {`{"jsonrpc":"2.0","id":3,"result":{}}`, true, false},
		"the ID as text":              {`{"jsonrpc":"2.0","id":"2","result":{}}`, true, true},
		"the ID as another text":      {`{"jsonrpc":"2.0","id":"02","result":{}}`, true, false},
		"another ID as text":          {`{"jsonrpc":"2.0","id":"3","result":{}}`, true, false},
		"an empty ID":                 {`{"jsonrpc":"2.0","id":"","result":{}}`, true, false},
		"a result and an error":       {`{"jsonrpc":"2.0","id":2,"result":{},"error":{}}`, true, false},
		"a result and a null error":   {`{"jsonrpc":"2.0","id":2,"result":{},"error":null}`, true, true},
		"an error and a null result":  {`{"jsonrpc":"2.0","id":2,"result":null,"error":{"code":1,"message":"x"}}`, true, true},
		"a null result":               {`{"jsonrpc":"2.0","id":2,"result":null}`, true, true},
		"both are null":               {`{"jsonrpc":"2.0","id":2,"result":null,"error":null}`, true, true},
		"only a null error":           {`{"jsonrpc":"2.0","id":2,"error":null}`, true, false},
		"no result and no error":      {`{"jsonrpc":"2.0","id":2}`, true, false},
		"a request with that ID":      {`{"jsonrpc":"2.0","id":2,"method":"ping"}`, true, false},
		"a notification":              {`{"jsonrpc":"2.0","method":"x"}`, true, false},
		"no ID and no method":         {`{"jsonrpc":"2.0","result":{}}`, false, false},
		"an error without an ID":      {`{"jsonrpc":"2.0","error":{"code":1,"message":"x"}}`, true, true},
		"an error with a null ID":     {`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}`, true, true},
		"both, and a null ID":         {`{"jsonrpc":"2.0","id":null,"result":{},"error":{"code":1,"message":"x"}}`, false, false},
		"an ID of another type":       {`{"jsonrpc":"2.0","id":[2],"result":{}}`, false, false},
		"a method that is not a text": {`{"jsonrpc":"2.0","method":7}`, false, false},
		"another version":             {`{"jsonrpc":"1.0","id":2,"result":{}}`, false, false},
		"no JSON":                     {`{"jsonrpc"`, false, false},
		"a list":                      {`[{"jsonrpc":"2.0","id":2,"result":{}}]`, false, false},
	} {
		m, err := decodeEnvelope(t.Context(), []byte(tc.message))
		if answers := err == nil && m.answers(call); (err == nil) != tc.valid || answers != tc.answers {
			t.Errorf("%s: decodeEnvelope = %+v, %v, want valid %t, the response to the call %t", name, m, err, tc.valid, tc.answers)
		}
	}
}
