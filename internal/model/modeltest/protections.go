package modeltest

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Wire is a protocol as a hostile server would use it.
type Wire struct {
	// New returns an adapter.
	New func(cfg endpoint.Config) *endpoint.Provider
	// Start and End are the events before and after the text of an answer.
	Start, End string
	// Text returns an event with a piece of the text. Call returns an event that begins a call with the index n and
	// these arguments.
	Text func(piece string) string
	Call func(n int, arguments string) string
	// Lists are events with lists, or objects, of very many short elements, by name.
	Lists map[string]string
}

// maxAllocated bounds the memory that the client and the server allocate for one event of up to endpoint.MaxEventBytes.
const maxAllocated = 64 << 20

// Elements returns elements of a list, or members of an object, that fill most of an event.
func Elements(element string) string {
	n := (endpoint.MaxEventBytes - 1<<10) / (len(element) + 1)
	return strings.Repeat(element+",", n-1) + element
}

const secret = "sk-wire-0123456789abcdefghijklmnopqrstuvwxyz"

// RunProtections checks that an adapter protects the process from a hostile or broken server: it bounds the part of an
// answer that it reads, counts its memory, removes credentials, ends an exchange without progress, and leaves nothing
// running. The caller's TestMain must check for leaked goroutines.
func RunProtections(t *testing.T, wire Wire) {
	t.Helper()
	const idle = 300 * time.Millisecond
	for name, tc := range map[string]struct {
		reason string
		idle   time.Duration
		handle http.HandlerFunc
		check  func(t *testing.T, reply *model.Reply, e *model.Error)
	}{
		"compressed answer": {
			"1 MB can expand to 1 GB", 0, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				_, _ = io.WriteString(z, wire.Start+wire.Text("yes")+wire.End) // the test notices if the client is gone
				_ = z.Close()
			}, wantKind(model.InvalidRequest),
		},
		"comments": {
			"comments are not a part of an answer", idle,
			drip(wire.Start, ": keep-alive\n\n"), wantKind(model.Timeout),
		},
		"pings": {
			"pings are not a part of an answer", idle,
			drip(wire.Start, "event: ping\ndata: {\"type\": \"ping\"}\n\n"), wantKind(model.Timeout),
		},
		"single bytes": {"a byte is not an event", idle, drip(wire.Start, "x"), wantKind(model.Timeout)},
		"flood of pings": {
			"pings between two events are bounded, because reading them takes time", 0,
			repeat(wire.Start, "data: {\"type\":\"ping\"}\n\n"), wantKind(model.Malformed),
		},
		"flood of events": {
			"the number of events is bounded", 0, repeat(wire.Start, wire.Text("")), wantKind(model.ReplyTooLong),
		},
		"long text": {
			"the beginning is kept", 0, repeat(wire.Start, wire.Text(strings.Repeat("x", 64<<10))),
			func(t *testing.T, reply *model.Reply, e *model.Error) {
				t.Helper()
				if e != nil || !reply.TooLong || len(reply.Text) != endpoint.MaxReplyBytes || reply.Release == nil {
					t.Errorf("got reply %.100v, error %v; want the first %d bytes, with their memory", reply, e, endpoint.MaxReplyBytes)
				}
			},
		},
		"long event": {
			"an event is held in memory", 0, repeat(wire.Start, wire.Text(strings.Repeat("x", 3<<20))), wantKind(model.ReplyTooLong),
		},
		"endless event": {
			"the lines of an event are held in memory", 0, repeat(wire.Start, "data: {\"a\":\n"),
			func(t *testing.T, _ *model.Reply, e *model.Error) {
				t.Helper()
				if e == nil || e.Kind != model.ReplyTooLong || !strings.Contains(e.Message, "an event of the answer exceeds") {
					t.Errorf("got %v, want ReplyTooLong because of the event", e)
				}
			},
		},
		"many calls": {"the number of calls is bounded", 0, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, wire.Start)
			for n := range 1000 {
				_, _ = io.WriteString(w, wire.Call(n, `{"n":1}`))
			}
			_, _ = io.WriteString(w, wire.End)
		}, wantKind(model.ReplyTooLong)},
		"long error": {"the beginning is read, and one line is kept", 0, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, strings.Repeat("no ", 1<<20))
		}, func(t *testing.T, _ *model.Reply, e *model.Error) {
			t.Helper()
			if e == nil || e.Kind != model.Overloaded || len(e.RemoteMessage) > 1000 {
				t.Errorf("got %v, want Overloaded with a short text", e)
			}
		}},
		"key in an error": {"servers repeat the key", 0, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":{"type":"authentication_error","message":"wrong: `+secret+`"}}`)
		}, func(t *testing.T, _ *model.Reply, e *model.Error) {
			t.Helper()
			if e == nil || e.Kind != model.Auth || !strings.Contains(e.RemoteMessage, "wrong") {
				t.Errorf("got %v, want the error with the message of the server", e)
			}
		}},
		"key in a reply": {"models repeat the key, in pieces", 0, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, wire.Start+wire.Text("The key is "+secret[:20])+wire.Text(secret[20:])+wire.End)
		}, func(t *testing.T, reply *model.Reply, e *model.Error) {
			t.Helper()
			if e != nil || reply.Text != "The key is [redacted]" {
				t.Errorf("got %+v, %v; want the key redacted", reply, e)
			}
		}},
		"redirect": {"the key would be sent to another host", 0, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://example.com/", http.StatusTemporaryRedirect)
		}, wantKind(model.InvalidRequest)},
	} {
		t.Run(name, func(t *testing.T) {
			budget := bytebudget.New(1<<20, 8<<20)
			reply, e := wire.ask(t.Context(), t, tc.handle, tc.idle, budget)
			tc.check(t, reply, e)
			if t.Failed() {
				t.Log(tc.reason)
			}
			whole, err := json.Marshal([]any{reply, e})
			if err == nil && strings.Contains(string(whole), secret[8:24]) {
				t.Errorf("the reply or the error contains the key: %s", whole)
			}
			if reply != nil && reply.Release != nil {
				reply.Release()
			}
			if held := budget.Use(bytebudget.Replies).Bytes + budget.Use(bytebudget.Contents).Bytes; held != 0 {
				t.Errorf("%d bytes are still reserved", held)
			}
		})
	}
	for name, event := range wire.Lists {
		t.Run("list of "+name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _ = wire.ask(t.Context(), t, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, wire.Start+event+wire.End)
			}, 0, nil) // the reply does not matter
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > maxAllocated {
				t.Errorf("an event of %d bytes took %d bytes of memory, want at most %d", len(event), used, maxAllocated)
			}
		})
	}
	t.Run("no space", func(t *testing.T) {
		budget := bytebudget.New(1<<20, 8<<20)
		ctx := bytebudget.WithCheck(t.Context(), func() error { return errors.New("the volume is full") })
		reply, e := wire.ask(ctx, t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, wire.Start+wire.Text(strings.Repeat("x", 20<<10))+wire.End) // the client may be gone
		}, 0, budget)
		if e == nil || !errors.Is(e, model.ErrNoSpace) || !errors.Is(e, model.ErrOwnMemory) || !strings.Contains(e.Message, "is full") {
			t.Errorf("got reply %.100v, error %v; want an error that names the reason", reply, e)
		}
		if held := budget.Use(bytebudget.Replies).Bytes + budget.Use(bytebudget.Contents).Bytes; held != 0 {
			t.Errorf("%d bytes are still reserved", held)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, e := wire.ask(ctx, t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, wire.Start)
			_ = http.NewResponseController(w).Flush()
			cancel()
			<-r.Context().Done()
		}, 0, nil)
		wantKind(model.Cancelled)(t, nil, e)
	})
}

// ask sends a request to a server with one handler.
func (w *Wire) ask(
	ctx context.Context, t *testing.T, handle http.HandlerFunc, idle time.Duration, memory *bytebudget.Budget,
) (*model.Reply, *model.Error) {
	t.Helper()
	if idle == 0 {
		idle = time.Minute
	}
	web := httptest.NewServer(handle)
	defer web.Close()
	p := w.New(endpoint.Config{
		Name: Name, BaseURL: web.URL + "/v1", APIKey: secret, ConnectTimeout: time.Minute, IdleTimeout: idle,
		FirstEventTimeout: idle,
		Policy:            netpolicy.NewLocalPolicy(), Memory: memory.Account("demo", bytebudget.Replies),
	})
	defer p.Close()
	reply, err := p.Generate(ctx, Request())
	if err != nil {
		return nil, model.AsError(err)
	}
	return reply, nil
}

// wantKind checks the kind of an error.
func wantKind(kind model.ErrorKind) func(*testing.T, *model.Reply, *model.Error) {
	return func(t *testing.T, _ *model.Reply, e *model.Error) {
		t.Helper()
		if e == nil || e.Kind != kind {
			t.Errorf("the error is %v, want %s", e, kind)
		}
	}
}

// repeat returns a handler that sends a text again and again, as fast as it is read.
func repeat(start, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, err := io.WriteString(w, start)
		for err == nil {
			_, err = io.WriteString(w, text)
		}
	}
}

// drip returns a handler that sends a text every few milliseconds.
func drip(start, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, err := io.WriteString(w, start)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for err == nil {
			if err = http.NewResponseController(w).Flush(); err != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
				_, err = io.WriteString(w, text)
			}
		}
	}
}
