package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// owned returns an exchange with an owner.
func owned(t *testing.T) *exchange {
	t.Helper()
	return exchangeOf(withExchange(t.Context(), &exchange{}))
}

// large returns a stream that contains one event of the given size.
func large(ctx context.Context, ex *exchange, budget *serverBudget, size int) *stream {
	s := &stream{ctx: ctx, wire: &wire{serverBudget: budget, memory: processAccount}, ex: ex, cancel: func(error) {}}
	s.begin(io.NopCloser(strings.NewReader("data: "+strings.Repeat("x", size)+"\n\n")), MaxResponseBytes)
	return s
}

// holdLargest reserves the memory for a response of the maximum size.
func holdLargest(ctx context.Context, ex *exchange, budget *serverBudget, abort context.CancelCauseFunc) error {
	_, err := ex.reserve(ctx, &wire{serverBudget: budget, memory: processAccount}, MaxResponseBytes, MaxResponseBytes, abort)
	return err
}

// mustBeFree fails the test if reserved memory was not released.
func mustBeFree(t *testing.T, budgets ...*serverBudget) {
	t.Helper()
	all, err := processAccount.TryReserve(processBytes)
	if err != nil {
		t.Fatal("the memory of large responses was not released")
	}
	all.Release()
	if use := processBudget.Use(bytebudget.Contents); use.Bytes != 0 {
		t.Fatalf("%d bytes of small responses were not released", use.Bytes)
	}
	for _, budget := range budgets {
		if len(budget.shares) != 0 {
			t.Fatal("the share of a server was not released")
		}
	}
}

// TestLargeResponsesWaitForMemory checks that a large response waits if the responses of other servers fill the budget.
func TestLargeResponsesWaitForMemory(t *testing.T) {
	var exchanges []*exchange
	var shares []*serverBudget
	for range processBytes / MaxResponseBytes {
		ex, budget := owned(t), newServerBudget()
		for range 2 { // the second call reserves nothing more
			if err := holdLargest(t.Context(), ex, budget, func(error) {}); err != nil {
				t.Fatal(err)
			}
		}
		exchanges, shares = append(exchanges, ex), append(shares, budget)
	}
	next, budget := owned(t), newServerBudget()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := large(cancelled, next, budget, 2*bytebudget.MaxContent).event(); !errors.Is(err, context.Canceled) {
		t.Errorf("a further response = %v, want it to wait until its call has ended", err)
	}
	exchanges[0].free()
	exchanges[0].free() // the second call does nothing
	if data, err := large(t.Context(), next, budget, 2*bytebudget.MaxContent).event(); err != nil || len(data) != 2*bytebudget.MaxContent {
		t.Errorf("a further response after one was released = %d bytes, %v", len(data), err)
	}
	next.free()
	for _, ex := range exchanges {
		ex.free()
	}
	mustBeFree(t, append(shares, budget)...)
}

// TestBodyOfKnownLengthNeedsNoMore checks a body that fills its buffer exactly. Because its length is known, no memory
// must be reserved for a larger buffer.
func TestBodyOfKnownLengthNeedsNoMore(t *testing.T) {
	for length, want := range map[int]int64{
		unreservedBytes: 0, 2 * unreservedBytes: 16 << 10,
		bytebudget.MaxContent: bytebudget.MaxContent,
	} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			budget, ex := bytebudget.New(1<<20, 2*MaxResponseBytes), owned(t)
			s := &stream{
				ctx: t.Context(), wire: &wire{serverBudget: newServerBudget(), memory: budget.Account("team", bytebudget.Results)},
				ex: ex, cancel: func(error) {},
			}
			body := io.NopCloser(strings.NewReader(strings.Repeat("x", length)))
			if data, err := s.readAll(&http.Response{Body: body, ContentLength: int64(length)}); err != nil || len(data) != length {
				t.Errorf("%d bytes, %v; want %d", len(data), err, length)
			}
			if got := budget.Use(bytebudget.Contents).Bytes; got != want || budget.Use(bytebudget.Results).Bytes != 0 {
				t.Errorf("%d bytes are held as content and %d as a large result, want %d and none", got,
					budget.Use(bytebudget.Results).Bytes, want)
			}
			ex.end()
		})
	}
}

// TestLongLineIsNotKept checks that a long line that is not a response keeps no memory after its event.
func TestLongLineIsNotKept(t *testing.T) {
	s := &stream{
		ctx: t.Context(), wire: &wire{serverBudget: newServerBudget(), memory: processAccount}, ex: owned(t),
		cancel: func(error) {},
	}
	s.begin(io.NopCloser(strings.NewReader(": "+strings.Repeat("x", 50<<10)+"\n\ndata: {}\n\n")), MaxResponseBytes)
	for range 2 {
		if _, err := s.event(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(s.line) > unreservedBytes {
		t.Errorf("%d bytes are kept without a reservation", cap(s.line))
	}
	s.ex.end()
}

// TestInitializeResponseIsShortened checks that a session keeps no long text of the response to initialize.
func TestInitializeResponseIsShortened(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	r := &sdk.InitializeResult{
		Meta: sdk.Meta{"a": long}, Instructions: long, ProtocolVersion: protocol,
		Capabilities: &sdk.ServerCapabilities{
			Experimental: map[string]any{"a": long},
			Extensions:   map[string]any{"a": long}, Tools: &sdk.ToolCapabilities{},
		},
		ServerInfo: &sdk.Implementation{Name: "site", Version: long, Title: long},
	}
	shorten(r)
	kept, err := json.Marshal(r)
	if err != nil || len(kept) > 300 {
		t.Errorf("%d bytes are kept, %v", len(kept), err)
	}
	if r.ServerInfo.Name != "site" || r.ServerInfo.Version != "" || r.Capabilities.Tools == nil || r.ProtocolVersion != protocol {
		t.Errorf("the response is %s, want its name, its protocol and that the server has tools", kept)
	}
	shorten(nil) // a session without the response must not panic
}

// TestSmallResponsesReserveMemory checks that a small response of more than 4 KiB reserves memory without waiting. If
// no memory is left for small responses, the response reserves memory like a large one.
func TestSmallResponsesReserveMemory(t *testing.T) {
	const size = 200 << 10
	for name, read := range map[string]func(*stream, io.Reader) ([]byte, error){
		"a body": func(s *stream, body io.Reader) ([]byte, error) {
			return s.readAll(&http.Response{Body: io.NopCloser(body), ContentLength: -1})
		},
		"a body of known length": func(s *stream, body io.Reader) ([]byte, error) {
			return s.readAll(&http.Response{Body: io.NopCloser(body), ContentLength: size})
		},
		"an event": func(s *stream, body io.Reader) ([]byte, error) {
			s.begin(io.NopCloser(io.MultiReader(strings.NewReader("data: "), body, strings.NewReader("\n\n"))), MaxResponseBytes)
			return s.event()
		},
	} {
		t.Run(name, func(t *testing.T) {
			budget := bytebudget.New(1<<20, 2*MaxResponseBytes)
			memory := budget.Account("team", bytebudget.Results)
			get := func(bytes int) *exchange {
				ex := owned(t)
				s := &stream{ctx: t.Context(), wire: &wire{serverBudget: newServerBudget(), memory: memory}, ex: ex, cancel: func(error) {}}
				if data, err := read(s, strings.NewReader(strings.Repeat("x", bytes))); err != nil || len(data) != bytes {
					t.Errorf("%d bytes, %v; want %d", len(data), err, bytes)
				}
				return ex
			}
			tiny := get(2 << 10)
			if use := budget.Use(bytebudget.Contents); use.Bytes != 0 {
				t.Errorf("%d bytes are held for 2 KiB, want none", use.Bytes)
			}
			exchanges := []*exchange{tiny}
			for range 4 { // the fourth does not fit into seven eighths of the pool
				exchanges = append(exchanges, get(size))
			}
			if contents, results := budget.Use(bytebudget.Contents).Bytes, budget.Use(bytebudget.Results).Bytes; contents < 3*size ||
				results < size {
				t.Errorf("%d bytes are held for small responses and %d for large ones, want three small responses and one that counts "+
					"as large",
					contents, results)
			}
			for _, ex := range exchanges {
				ex.end()
			}
			if contents, results := budget.Use(bytebudget.Contents).Bytes, budget.Use(bytebudget.Results).Bytes; contents != 0 ||
				results != 0 {
				t.Errorf("%d and %d bytes are held in the end", contents, results)
			}
		})
	}
}

// TestEndedExchangeReservesNoMemory checks that a response that arrives after the end of its call, or that has no
// owner, reserves no memory, although the SDK reads it.
func TestEndedExchangeReservesNoMemory(t *testing.T) {
	ex, budget := owned(t), newServerBudget()
	ex.end()
	if err := holdLargest(t.Context(), ex, budget, func(error) {}); !errors.Is(err, errBroken) {
		t.Errorf("reserve = %v, want an error for an exchange that has ended", err)
	}
	if data, err := large(t.Context(), exchangeOf(t.Context()), budget, 2*unreservedBytes).event(); !errors.Is(err, errBroken) {
		t.Errorf("a response without an owner = %d bytes, %v; want no more than %d bytes", len(data), err, unreservedBytes)
	}
	mustBeFree(t, budget)
}

// TestServerHasAShareOfTheBudget checks that a server with many slow responses at the same time leaves memory for other
// servers.
func TestServerHasAShareOfTheBudget(t *testing.T) {
	slow, other := newServerBudget(), newServerBudget()
	first := owned(t)
	if err := holdLargest(t.Context(), first, slow, func(error) {}); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	second := owned(t)
	if _, err := large(cancelled, second, slow, 2*bytebudget.MaxContent).event(); !errors.Is(err, context.Canceled) {
		t.Errorf("a second response of the server = %v, want it to wait for the first", err)
	}
	second.free()
	var rest []*exchange
	for range processBytes/serverBytes - 1 {
		ex := owned(t)
		if data, err := large(t.Context(), ex, other, 2*bytebudget.MaxContent).event(); err != nil || len(data) != 2*bytebudget.MaxContent {
			t.Errorf("a response of another server = %d bytes, %v; want the whole response", len(data), err)
		}
		rest, other = append(rest, ex), newServerBudget()
	}
	first.free()
	for _, ex := range rest {
		ex.free()
	}
	mustBeFree(t, slow, other)
}

// TestNamespacesDoNotShareTheShareOfAServer checks that a namespace that waits for its own memory does not keep the
// large responses of a shared server from other namespaces.
func TestNamespacesDoNotShareTheShareOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, memory := newServerBudget(), bytebudget.New(1<<20, 16*MaxResponseBytes)
		busy, other := memory.Account("busy", bytebudget.Results), memory.Account("other", bytebudget.Results)
		all, err := busy.Reserve(t.Context(), busy.MaxReservation())
		if err != nil {
			t.Fatal(err)
		}
		reserve := func(ctx context.Context, ex *exchange, account bytebudget.Account) error {
			_, err := ex.reserve(ctx, &wire{serverBudget: budget, memory: account}, MaxResponseBytes, MaxResponseBytes, func(error) {})
			return err
		}
		waiting, leave := context.WithCancel(t.Context())
		for range 3 {
			ex := owned(t)
			go func() {
				if err := reserve(waiting, ex, busy); !errors.Is(err, context.Canceled) {
					t.Errorf("a response of the busy namespace = %v, want it to wait until its call has ended", err)
				}
				ex.end()
			}()
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ex := owned(t)
		if err := reserve(short, ex, other); err != nil {
			t.Errorf("a response of another namespace = %v, want it to be received", err)
		}
		ex.end()
		leave()
		synctest.Wait()
		all.Release()
		if len(budget.shares) != 0 {
			t.Errorf("the server has %d shares after all responses, want none", len(budget.shares))
		}
	})
}

// TestSlowResponseIsAbortedWhileOthersWait checks when responses that arrive at various rates are aborted, with and
// without another call that waits for memory.
func TestSlowResponseIsAbortedWhileOthersWait(t *testing.T) {
	const pace = paceBytes // bytes per second
	for name, tc := range map[string]struct {
		reason string
		others string // whose budget another call waits for: "the server's", "the process's", or empty if no call waits
		bytes  func(second int) int
		want   time.Duration // when the response is aborted
	}{
		"a byte at a time": {
			"it falls behind by more than paceSlack", "the server's", func(int) int { return 1 },
			paceSlack + paceInterval,
		},
		"another server waits": {
			"the other server waits for the budget of the process", "the process's", func(int) int { return 1 },
			paceSlack + paceInterval,
		},
		"no call waits": {"a slow response does no harm until its time limit", "", func(int) int { return 1 }, largeTimeout},
		"at the pace":   {"it arrives in time", "the server's", func(int) int { return pace }, largeTimeout},
		"at half the pace": {
			"it falls behind by half a second each second", "the server's",
			func(int) int { return pace / 2 }, 2*paceSlack + paceInterval,
		},
		"in bursts": {"it never falls behind by more than paceSlack", "the server's", func(n int) int {
			if n%3 == 2 {
				return 3 * pace
			}
			return 0
		}, largeTimeout},
		"fast and then slow": {"being ahead of the pace gains nothing", "the server's", func(n int) int {
			if n < 10 {
				return 10 * pace
			}
			return 0
		}, 10*time.Second + paceSlack + paceInterval},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := newServerBudget()
				began, ended := time.Now(), make(chan time.Duration, 1)
				ex := owned(t)
				if err := holdLargest(t.Context(), ex, budget, func(cause error) {
					if !errors.Is(cause, errSlow) {
						t.Errorf("the response was aborted with %v, want errSlow", cause)
					}
					ended <- time.Since(began)
				}); err != nil {
					t.Fatal(err)
				}
				waiting, leave := context.WithCancel(t.Context())
				switch tc.others {
				case "the server's":
					go func() { _, _ = budget.take(waiting, processAccount.Namespace(), serverBytes) }() // it waits until leave is called
				case "the process's":
					go func() { _, _ = processAccount.Reserve(waiting, processBytes) }() // it waits until leave is called
				}
				ticks := time.NewTicker(time.Second)
				defer ticks.Stop()
				ex.countReceived(tc.bytes(0))
				var after time.Duration
				for n := 1; after == 0; n++ {
					select {
					case after = <-ended:
					case <-ticks.C:
						ex.countReceived(tc.bytes(n))
					}
				}
				if after < tc.want-time.Second || after > tc.want+time.Second {
					t.Errorf("the response was aborted after %s, want %s: %s", after, tc.want, tc.reason)
				}
				leave()
				synctest.Wait()
				ex.free()
				mustBeFree(t, budget)
			})
		})
	}
}

// TestCompleteResponseIsNotAborted checks that decoding a response has no time limit.
func TestCompleteResponseIsNotAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ex, budget := owned(t), newServerBudget()
		if err := holdLargest(t.Context(), ex, budget, func(error) { t.Error("the response was aborted") }); err != nil {
			t.Fatal(err)
		}
		ex.keep([]byte("{}"), false)
		time.Sleep(2 * largeTimeout)
		ex.free()
		mustBeFree(t, budget)
	})
}

// TestErrorOfSlowResponse checks the errors of an event and of a body that stop in the middle while another response
// waits.
func TestErrorOfSlowResponse(t *testing.T) {
	for name, read := range map[string]func(*stream, io.Reader) error{
		"event": func(s *stream, body io.Reader) error {
			s.lines, s.left = bufio.NewReader(io.MultiReader(strings.NewReader("data: "), body)), MaxResponseBytes
			s.readResponse()
			return s.ex.cause(nil)
		},
		"body": func(s *stream, body io.Reader) error {
			_, err := s.readAll(&http.Response{Body: io.NopCloser(body), ContentLength: -1})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				body, server := io.Pipe()
				context.AfterFunc(ctx, func() { _ = server.CloseWithError(context.Canceled) }) // as net/http does
				go func() { _, _ = server.Write([]byte(strings.Repeat("x", 2*bytebudget.MaxContent))) }()
				ex, budget := owned(t), newServerBudget()
				next := owned(t)
				got := make(chan error, 1)
				go func() {
					synctest.Wait()
					got <- holdLargest(t.Context(), next, budget, func(error) {})
				}()
				err := read(&stream{ctx: ctx, cancel: cancel, wire: &wire{serverBudget: budget, memory: processAccount}, ex: ex}, body)
				if !errors.Is(err, errSlow) {
					t.Errorf("reading fails with %v, want errSlow", err)
				}
				ex.free()
				if err := <-got; err != nil {
					t.Errorf("the next response: %v, want it to get the memory", err)
				}
				next.free()
				mustBeFree(t, budget)
			})
		})
	}
	c := New(Config{Name: "demo"})
	t.Cleanup(c.Close)
	ex := &exchange{}
	ex.sent.Store(true)
	if e := c.callError(t.Context(), ex, fmt.Errorf("failed: %w", errSlow)); e.Class != tool.OutcomeUnknown ||
		!strings.HasSuffix(e.Message, errSlow.Error()) {
		t.Errorf("the error of a call = %s %q, want an unknown outcome and errSlow", e.Class, e.Message)
	}
	if e := c.discoveryError(t.Context(), fmt.Errorf("failed: %w", errSlow)); e.Kind != Unreachable || e.Message != errSlow.Error() {
		t.Errorf("the error of a list = %s %q, want it unreachable and errSlow", e.Kind, e.Message)
	}
}

// TestBufferIsNotLargerThanReservation checks that the buffer of a response is not larger than its reservation.
func TestBufferIsNotLargerThanReservation(t *testing.T) {
	for _, bytes := range []int{
		1, unreservedBytes, unreservedBytes + 1, 16 << 10, 17 << 10, 100 << 10, 200 << 10, 300 << 10,
		MaxResponseBytes,
	} {
		for name, known := range map[string]int64{"known": int64(bytes), "unknown": -1} {
			ex := owned(t)
			s := &stream{
				ctx: t.Context(), ex: ex, cancel: func(error) {},
				wire: &wire{
					serverBudget: newServerBudget(),
					memory:       bytebudget.New(1<<20, 2*MaxResponseBytes).Account("team", bytebudget.Results),
				},
			}
			body, err := s.readAll(&http.Response{Body: io.NopCloser(strings.NewReader(strings.Repeat("x", bytes))), ContentLength: known})
			if err != nil || len(body) != bytes {
				t.Fatalf("readAll = %d bytes, %v; want %d", len(body), err, bytes)
			}
			reserved := ex.small.Bytes()
			if ex.large != nil {
				reserved = ex.large.size + 1
			}
			if most := max(reserved, unreservedBytes); int64(cap(body)) > most {
				t.Errorf("a body of %d bytes, of %s length, has a buffer of %d bytes, want at most %d", bytes, name, cap(body), most)
			}
			ex.end()
		}
	}
}

// TestNoLongResponseWithoutSpace checks that a long response is not received while it cannot be stored, that the error
// says so, and that no memory stays reserved.
func TestNoLongResponseWithoutSpace(t *testing.T) {
	budget := bytebudget.New(1<<20, 2*MaxResponseBytes)
	ctx := bytebudget.WithCheck(t.Context(), func() error { return errors.New("the volume is full") })
	for name, read := range map[string]func(*stream, string) error{
		"a body": func(s *stream, text string) error {
			_, err := s.readAll(&http.Response{Body: io.NopCloser(strings.NewReader(text)), ContentLength: -1})
			return err
		},
		"an event": func(s *stream, text string) error {
			s.begin(io.NopCloser(strings.NewReader("data: "+text+"\n\n")), MaxResponseBytes)
			s.readResponse()
			return s.ex.cause(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ex := exchangeOf(withExchange(ctx, &exchange{}))
			s := &stream{
				ctx: ctx, ex: ex, cancel: func(error) {},
				wire: &wire{serverBudget: newServerBudget(), memory: budget.Account("team", bytebudget.Results)},
			}
			if err := read(s, strings.Repeat("x", 20<<10)); !errors.Is(err, bytebudget.ErrNoSpace) ||
				rootOf(err).Error() != bytebudget.ErrNoSpace.Error() {
				t.Errorf("read: %v, want ErrNoSpace", err)
			}
			ex.end()
			if held := budget.Use(bytebudget.Contents).Bytes + budget.Use(bytebudget.Results).Bytes; held != 0 {
				t.Errorf("%d bytes are held in the end", held)
			}
		})
	}
}
