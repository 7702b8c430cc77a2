package netpolicy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// hostile returns a transport whose connections are served within the process. The server reads frames until reads
// returns false, and closes the connection when write returns.
func hostile(t *testing.T, reads func(http2.Frame) bool, write func(*http2.Framer)) *http.Transport {
	t.Helper()
	p := NewLocalPolicy().ForCluster(nil).Paced(fairgate.NewProcessors(1)).ForNamespace("greedy")
	pace := p.pace()
	transport := Transport(p, time.Minute, nil)
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetUnencryptedHTTP2(true)
	transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close() //nolint:errcheck // because it was only a pipe
			if _, err := io.ReadFull(far, make([]byte, len(http2.ClientPreface))); err != nil {
				return
			}
			frames := http2.NewFramer(far, far)
			go func() {
				for {
					if frame, err := frames.ReadFrame(); err != nil || !reads(frame) {
						return
					}
				}
			}()
			const window = 1 << 30 // so that a request never waits for permission to send
			if frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}) == nil &&
				frames.WriteWindowUpdate(0, window) == nil {
				write(frames)
			}
		}()
		return &watchedConn{
			Conn: near, watch: usualWatch, isSilent: func() bool { return false }, pace: pace, closed: func() {},
		}, nil
	}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// TestFloodsAreSlow checks that frames of a server that need an answer but belong to no response arrive no faster than
// the namespace may process them.
func TestFloodsAreSlow(t *testing.T) {
	const frames, atLeast = 10_000, 10_000 / 64 * time.Millisecond
	for name, send := range map[string]func(*http2.Framer) error{
		"pings":    func(f *http2.Framer) error { return f.WritePing(false, [8]byte{1}) },
		"settings": func(f *http2.Framer) error { return f.WriteSettings() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := make(chan struct{})
				transport := hostile(t, func(frame http2.Frame) bool {
					if frame.Header().Type == http2.FrameHeaders {
						close(asked)
					}
					return true
				}, func(f *http2.Framer) {
					<-asked
					for range frames {
						if send(f) != nil {
							return
						}
					}
					const ok = "\x88" // :status 200
					_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(ok), EndHeaders: true, EndStream: true})
				})
				begin := time.Now()
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://model.test/", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if took := time.Since(begin); took < atLeast {
					t.Errorf("%d frames were answered within %s, want at least %s", frames, took, atLeast)
				}
			})
		})
	}
}

// TestServerThatReadsNothing checks that a connection is closed whose server reads nothing, although the server sends
// frames, so that pings find nothing.
func TestServerThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		acknowledged := 0 // the frames of settings: the client's own, and its answer to the server's
		transport := hostile(t, func(frame http2.Frame) bool {
			if frame.Header().Type == http2.FrameSettings {
				acknowledged++
			}
			return frame.Header().Type != http2.FrameData || acknowledged < 2
		}, func(f *http2.Framer) {
			for range 7200 {
				time.Sleep(time.Second) // of virtual time
				if f.WriteWindowUpdate(0, 1) != nil {
					return
				}
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://model.test/",
			io.LimitReader(strings.NewReader(strings.Repeat("a prompt", 1<<20)), 8<<20)) // it cannot be sent again
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		resp, err := transport.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
			t.Fatal("got a response from a server that sends none")
		}
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("the request failed after %s, want at most a minute: %v", took, err)
		}
		time.Sleep(3 * time.Second) // until the server notices that the connection is closed
	})
}

// TestIdleConnectionsOfANamespace checks that all transports of a namespace together keep a bounded number of idle
// connections, and that requests in progress and other namespaces keep theirs.
func TestIdleConnectionsOfANamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const transports, requests = 50, 20
		all := NewLocalPolicy().ForCluster(nil)
		slow, fast := make(chan struct{}), make(chan struct{})
		server := &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				<-slow
			}
			<-fast
		})}
		accepted := make(listener)
		go func() { _ = server.Serve(accepted) }()
		defer server.Close() //nolint:errcheck // because the test is over
		defer close(accepted)
		ask := func(namespace, path string, count int) {
			transport := Transport(all.ForNamespace(namespace), time.Minute, nil)
			t.Cleanup(transport.CloseIdleConnections)
			transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				accepted <- far
				return &watchedConn{
					Conn: near, watch: usualWatch, isSilent: func() bool { return false }, pace: func(*fairgate.Flow) {},
					closed: all.idle.enter(namespace, transport),
				}, nil
			}
			for range count {
				go func() {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://model.test"+path, http.NoBody)
					if err != nil {
						t.Error(err)
						return
					}
					resp, err := transport.RoundTrip(req)
					if err != nil {
						t.Errorf("a request of %s failed: %v", namespace, err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body) // the connection can then be used again
					_ = resp.Body.Close()
				}()
			}
		}
		open := func(namespace string) int {
			all.idle.mu.Lock()
			defer all.idle.mu.Unlock()
			if c := all.idle.namespaces[namespace]; c != nil {
				return c.all
			}
			return 0
		}
		for range transports {
			ask("greedy", "/", requests)
		}
		ask("greedy", "/slow", 300)
		ask("other", "/", requests)
		synctest.Wait()
		if n := open("greedy"); n != transports*requests+300 {
			t.Fatalf("%d connections for requests in progress, want one for each", n)
		}
		close(fast)
		time.Sleep(3 * idleInterval) // of virtual time
		synctest.Wait()
		if n := open("greedy"); n != 300 {
			t.Errorf("%d connections are open, want only those of the 300 requests in progress", n)
		}
		if n := open("other"); n != requests {
			t.Errorf("another namespace has %d idle connections, want all %d", n, requests)
		}
		close(slow)
		time.Sleep(3 * idleInterval)
		synctest.Wait()
		if n := open("greedy"); n > maxWithIdle {
			t.Errorf("%d idle connections are open, want at most %d", n, maxWithIdle)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if all.idle.namespaces["greedy"] != nil || all.idle.namespaces["other"] != nil {
			t.Errorf("connections are counted after all were closed: %v", all.idle.namespaces)
		}
	})
}

// listener accepts connections within the process.
type listener chan net.Conn

func (l listener) Accept() (net.Conn, error) {
	if conn, ok := <-l; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (l listener) Close() error   { return nil }
func (l listener) Addr() net.Addr { return &net.TCPAddr{} }
