package endpoint_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/model/anthropic"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// pipes is a listener whose connections are pipes, so that they work with the virtual time of synctest.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p <- server
	return client, nil
}

// ask sends a request to a server with one handler. The server and the client are in the synctest bubble of the test.
func ask(ctx context.Context, t *testing.T, first time.Duration, handle http.HandlerFunc) (*model.Reply, *model.Error) {
	t.Helper()
	p := anthropic.New(anthropic.Config{Config: endpoint.Config{
		Name: "demo", BaseURL: "http://model.test/v1", IdleTimeout: time.Minute, FirstEventTimeout: first,
	}})
	return exchange(ctx, p, &model.Request{Model: "m", Messages: []model.Message{{Role: model.RoleUser, Content: "hello"}}}, handle)
}

// exchange sends a request with a provider, and closes the provider. Otherwise it is like ask.
func exchange(ctx context.Context, p *endpoint.Provider, req *model.Request, handle http.HandlerFunc) (*model.Reply, *model.Error) {
	conns := make(pipes)
	web := &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // because a pipe has no buffer
		handle(w, r)
	})}
	go func() { _ = web.Serve(conns) }()
	p.DialWith(conns.dial)
	reply, err := p.Generate(ctx, req)
	p.Close()
	close(conns)
	_ = web.Close()
	if err != nil {
		return nil, model.AsError(err)
	}
	return reply, nil
}

const (
	start    = `{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}`
	thinking = `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`
	text     = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"yes"}}`
	end      = `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}`
	ping     = `{"type":"ping"}`
)

// part is an event that a server sends after a pause. The server repeats the pause and the event the given number of
// times. If times is 0, it sends the event once.
type part struct {
	pause time.Duration
	event string
	times int
}

// send returns a handler that sends the parts of an answer, and then breaks the connection or waits for its end.
func send(parts []part, breaks bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, p := range parts {
			for range max(p.times, 1) {
				select {
				case <-time.After(p.pause):
				case <-r.Context().Done():
					return
				}
				line := "data: " + p.event + "\n\n"
				if strings.HasPrefix(p.event, ":") {
					line = p.event + "\n\n"
				}
				_, _ = io.WriteString(w, line)
				_ = http.NewResponseController(w).Flush()
			}
		}
		if breaks {
			panic(http.ErrAbortHandler)
		}
		<-r.Context().Done()
	}
}

// TestPatience checks how long an answer may take before and after its first part, with and without pings.
func TestPatience(t *testing.T) {
	const second, minute = time.Second, time.Minute
	for name, tc := range map[string]struct {
		reason string
		first  time.Duration
		parts  []part
		// fails is the time of the expected timeout, or 0 if the answer must arrive.
		fails time.Duration
	}{
		"silent start": {
			"an event without content does not end the wait for the first part", 0,
			[]part{{second, start, 1}, {5 * minute, text, 1}, {0, end, 1}},
			0,
		},
		"silent thinking": {
			"a thought without text does not end the wait for the first part", 0,
			[]part{{0, start, 1}, {0, thinking, 1}, {5 * minute, text, 1}, {0, end, 1}},
			0,
		},
		"pings first": {"the model thinks", 0, []part{{0, start, 1}, {20 * second, ping, 16}, {0, text, 1}, {0, end, 1}}, 0},
		"pings, first limit": {
			"pings do not extend the first limit", 2 * minute, []part{{0, start, 1}, {20 * second, ping, 100}}, 2 * minute,
		},
		"pings within":    {"the model composes a call", 0, []part{{0, text, 1}, {20 * second, ping, 16}, {0, text, 1}, {0, end, 1}}, 0},
		"pings only":      {"the answer must continue", 0, []part{{0, text, 1}, {20 * second, ping, 100}}, 10 * minute},
		"pings stop":      {"the time since the last ping counts", 0, []part{{0, text, 1}, {20 * second, ping, 3}}, 2 * minute},
		"slow pings":      {"the first ping comes too late", 0, []part{{0, text, 1}, {61 * second, ping, 3}}, minute},
		"silence within":  {"nothing arrives", 0, []part{{second, text, 1}}, 61 * second},
		"comments within": {"comments are not events", 0, []part{{0, text, 1}, {20 * second, ": still here", 100}}, minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				reply, e := ask(t.Context(), t, tc.first, send(tc.parts, false))
				took := time.Since(begin)
				if tc.fails == 0 && (e != nil || !strings.HasPrefix(reply.Text, "yes")) {
					t.Errorf("%v after %s, want the answer: %s", e, took, tc.reason)
				}
				if tc.fails > 0 && (e == nil || e.Kind != model.Timeout || !e.MayBeBilled || took != tc.fails) {
					t.Errorf("%v after %s, want a timeout after %s: %s", e, took, tc.fails, tc.reason)
				}
			})
		})
	}
}

// TestMayBeBilled checks which broken requests may be billed: those that an endpoint may have worked on.
func TestMayBeBilled(t *testing.T) {
	for name, tc := range map[string]struct {
		handle http.HandlerFunc
		cancel time.Duration
		kind   model.ErrorKind
		want   bool
	}{
		"broken immediately": {send(nil, true), 0, model.Network, false},
		"broken after a time": {func(http.ResponseWriter, *http.Request) {
			time.Sleep(4 * time.Minute)
			panic(http.ErrAbortHandler)
		}, 0, model.Network, true},
		"broken within": {send([]part{{10 * time.Second, start, 1}}, true), 0, model.Network, true},
		"ended within": {func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Second)
			_, _ = io.WriteString(w, "data: "+start+"\n\n")
		}, 0, model.Malformed, true},
		"unreadable": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "data: {\"type\":7\n\ndata: [\n\n")
		}, 0, model.Malformed, false},
		"unreadable after a time": {func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Second)
			_, _ = io.WriteString(w, "data: {\"type\":7\n\ndata: [\n\n")
		}, 0, model.Malformed, true},
		"comments alone": {func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Second)
			_, _ = io.WriteString(w, strings.Repeat(": still here\n", endpoint.MaxBetweenEvents/8))
		}, 0, model.Malformed, true},
		"error after a time": {func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Second)
			_, _ = io.WriteString(w, "data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n")
		}, 0, model.Overloaded, false},
		"refused after a time": {func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Second)
			w.WriteHeader(http.StatusServiceUnavailable)
		}, 0, model.Overloaded, false},
		"cancelled": {send(nil, false), time.Second, model.Cancelled, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.cancel > 0 {
					time.AfterFunc(tc.cancel, cancel)
				}
				if _, e := ask(ctx, t, 0, tc.handle); e == nil || e.Kind != tc.kind || e.MayBeBilled != tc.want || e.NotReached {
					t.Errorf("the error is %+v, want %s, billed %t, of a request that has reached the endpoint", e, tc.kind, tc.want)
				}
			})
		})
	}
}

// TestUnreadableVectorsMayBeBilled checks that vectors that cannot be read may be billed if the endpoint has worked on
// them for some time.
func TestUnreadableVectorsMayBeBilled(t *testing.T) {
	for worked, want := range map[time.Duration]bool{time.Second: false, 10 * time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			p := openai.New(openai.Config{Config: endpoint.Config{
				Name: "demo", BaseURL: "http://model.test/v1", IdleTimeout: time.Minute, FirstEventTimeout: time.Minute,
			}})
			_, e := exchange(t.Context(), p, &model.Request{Model: "m", Embed: &model.Embed{Texts: []string{"hello"}}},
				func(w http.ResponseWriter, _ *http.Request) {
					time.Sleep(worked)
					_, _ = io.WriteString(w, `{"data":[{"embedding":[1,2`)
				})
			if e == nil || e.Kind != model.Malformed || e.MayBeBilled != want {
				t.Errorf("the error after %s is %+v, want Malformed, billed %t", worked, e, want)
			}
		})
	}
}

// TestRequestWithoutConnection checks that a request for which no connection is made has not reached the endpoint, and
// is not billed. It is not unsent: the failure may show that the endpoint fails.
func TestRequestWithoutConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		fails  bool          // the endpoint refuses the connection; otherwise it does not answer
		cancel time.Duration // when the request is cancelled, or 0
		kind   model.ErrorKind
	}{
		"refused":            {true, 0, model.Network},
		"no answer":          {false, 0, model.Timeout},
		"cancelled":          {false, time.Second, model.Cancelled},
		"cancelled at first": {true, -1, model.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				connects := make(chan struct{})
				p := anthropic.New(anthropic.Config{Config: endpoint.Config{
					Name: "demo", BaseURL: "http://model.test/v1", IdleTimeout: time.Minute, FirstEventTimeout: time.Minute,
				}})
				defer p.Close()
				defer close(connects)
				p.DialWith(func(context.Context, string, string) (net.Conn, error) {
					if !tc.fails {
						<-connects
					}
					return nil, errors.New("no connection")
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch {
				case tc.cancel < 0:
					cancel()
				case tc.cancel > 0:
					time.AfterFunc(tc.cancel, cancel)
				}
				_, err := p.Generate(ctx, &model.Request{Model: "m"})
				if e := model.AsError(err); e.Kind != tc.kind || !e.NotReached || e.Unsent || e.MayBeBilled {
					t.Errorf("the error is %+v, want %s of a request that has not reached the endpoint", e, tc.kind)
				}
			})
		})
	}
}

// TestConnectionIsUsedAgain checks that the connection is used for the next request if the server ends the response a
// moment after the answer, and that the answer does not wait long for a server that never does.
func TestConnectionIsUsedAgain(t *testing.T) {
	const moment, never = 50 * time.Millisecond, time.Hour
	for name, tc := range map[string]struct {
		ends  time.Duration // the time from the end of the answer to the end of the response
		after string        // what the server sends at the end of the response
		takes time.Duration
		dials int
	}{
		"at once":         {0, "", 0, 1},
		"a moment later":  {moment, "", moment, 1},
		"with more bytes": {moment, ": bye\n\n", moment, 1},
		"too many bytes":  {moment, ":" + strings.Repeat(" bye", 2<<10) + "\n\n", moment, 2},
		"never":           {never, "", 100 * time.Millisecond, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conns, dials := make(pipes), 0
				web := &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body) // because a pipe has no buffer
					w.Header().Set("Content-Type", "text/event-stream")
					for _, event := range []string{start, text, end, `{"type":"message_stop"}`} {
						_, _ = io.WriteString(w, "data: "+event+"\n\n")
					}
					_ = http.NewResponseController(w).Flush()
					select {
					case <-time.After(tc.ends):
						_, _ = io.WriteString(w, tc.after)
					case <-r.Context().Done():
					}
				})}
				go func() { _ = web.Serve(conns) }()
				p := anthropic.New(anthropic.Config{Config: endpoint.Config{
					Name: "demo", BaseURL: "http://model.test/v1", IdleTimeout: time.Minute,
				}})
				p.DialWith(func(ctx context.Context, network, address string) (net.Conn, error) {
					dials++
					return conns.dial(ctx, network, address)
				})
				for range 2 {
					begun := time.Now()
					reply, err := p.Generate(t.Context(), &model.Request{
						Model: "m", Messages: []model.Message{{Role: model.RoleUser, Content: "hello"}},
					})
					if err != nil || reply.Text != "yes" || time.Since(begun) != tc.takes {
						t.Errorf("Generate = %+v, %v after %s; want the answer after %s", reply, err, time.Since(begun), tc.takes)
					}
				}
				if dials != tc.dials {
					t.Errorf("%d connections, want %d", dials, tc.dials)
				}
				p.Close()
				close(conns)
				_ = web.Close()
			})
		})
	}
}
