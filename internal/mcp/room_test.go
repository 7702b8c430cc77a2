package mcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// owned returns an exchange that somebody frees.
func owned(t *testing.T) *exchange {
	t.Helper()
	ex := &exchange{}
	_ = withExchange(t.Context(), ex) // which owns it
	return ex
}

// large is a stream that holds one event of so many bytes.
func large(ctx context.Context, ex *exchange, share *room, size int) *stream {
	s := &stream{ctx: ctx, wire: &wire{share: share, memory: process}, ex: ex, cancel: func(error) {}}
	s.begin(io.NopCloser(strings.NewReader("data: "+strings.Repeat("x", size)+"\n\n")), MaxResponseBytes)
	return s
}

// mustBeFree fails where room was not given back.
func mustBeFree(t *testing.T, rooms ...*room) {
	t.Helper()
	all, err := process.Try(processRoom)
	if err != nil {
		t.Fatal("room was not given back")
	}
	all.Release()
	for _, share := range rooms {
		if !share.TryAcquire(serverRoom) {
			t.Fatal("room of a server was not given back")
		}
	}
}

// TestLargeAnswersTakeTurns has more of them than there is room for, each of another server.
func TestLargeAnswersTakeTurns(t *testing.T) {
	var exchanges []*exchange
	var shares []*room
	for range processRoom / MaxResponseBytes {
		ex, share := owned(t), newRoom()
		for range 2 { // the second time is the same room
			if err := ex.hold(t.Context(), share, process, MaxResponseBytes, func(error) {}); err != nil {
				t.Fatal(err)
			}
		}
		exchanges, shares = append(exchanges, ex), append(shares, share)
	}
	next, share := owned(t), newRoom()
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := large(gone, next, share, 2*freeBytes).event(); !errors.Is(err, context.Canceled) {
		t.Errorf("one more = %v, want it to wait until its call is over", err)
	}
	exchanges[0].free()
	exchanges[0].free() // which is nothing
	if data, err := large(t.Context(), next, share, 2*freeBytes).event(); err != nil || len(data) != 2*freeBytes {
		t.Errorf("one more when there is room = %d bytes, %v", len(data), err)
	}
	next.free()
	for _, ex := range exchanges {
		ex.free()
	}
	mustBeFree(t, append(shares, share)...)
}

// TestAnExchangeThatHasEndedHoldsNoRoom has an answer come in after its call is over, as where the SDK still reads it.
func TestAnExchangeThatHasEndedHoldsNoRoom(t *testing.T) {
	ex, share := owned(t), newRoom()
	ex.end()
	if err := ex.hold(t.Context(), share, process, MaxResponseBytes, func(error) {}); !errors.Is(err, errBroken) {
		t.Errorf("hold = %v, want none for an exchange that nobody frees any more", err)
	}
	mustBeFree(t, share)
}

// TestOneServerHoldsAShareOfTheRoom has a server whose answers come in slowly, many at a time.
func TestOneServerHoldsAShareOfTheRoom(t *testing.T) {
	slow, other := newRoom(), newRoom()
	first := owned(t)
	if err := first.hold(t.Context(), slow, process, MaxResponseBytes, func(error) {}); err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := large(gone, owned(t), slow, 2*freeBytes).event(); !errors.Is(err, context.Canceled) {
		t.Errorf("one more of the server = %v, want it to wait for the first", err)
	}
	var rest []*exchange
	for range processRoom/serverRoom - 1 {
		ex := owned(t)
		if data, err := large(t.Context(), ex, other, 2*freeBytes).event(); err != nil || len(data) != 2*freeBytes {
			t.Errorf("one of another server = %d bytes, %v; want its room", len(data), err)
		}
		rest, other = append(rest, ex), newRoom()
	}
	first.free()
	for _, ex := range rest {
		ex.free()
	}
	mustBeFree(t, slow, other)
}

// TestASlowAnswerIsGivenUpWhereOthersWait has bodies come in at many rates, and another call that wants the room.
func TestASlowAnswerIsGivenUpWhereOthersWait(t *testing.T) {
	const second = paceBytes
	for name, tc := range map[string]struct {
		reason string
		others string // "the server's", "the process's" or nobody
		bytes  func(second int) int
		cut    time.Duration // 0: it goes on for a minute
	}{
		"a byte at a time":     {"it has had its slack", "the server's", func(int) int { return 1 }, paceSlack + paceLook},
		"another server waits": {"for the room of the process", "the process's", func(int) int { return 1 }, paceSlack + paceLook},
		"nobody waits":         {"it does no harm, for a minute", "", func(int) int { return 1 }, largeTimeout},
		"at its pace":          {"so that it ends in time", "the server's", func(int) int { return second }, largeTimeout},
		"half of that":         {"is behind by half a second each second", "the server's", func(int) int { return second / 2 }, 2*paceSlack + paceLook},
		"now and then": {"within its slack", "the server's", func(n int) int {
			if n%3 == 2 {
				return 3 * second
			}
			return 0
		}, largeTimeout},
		"fast and then not": {"what it was ahead does not count", "the server's", func(n int) int {
			if n < 10 {
				return 10 * second
			}
			return 0
		}, 10*time.Second + paceSlack + paceLook},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				share := newRoom()
				began, ended := time.Now(), make(chan time.Duration, 1)
				ex := owned(t)
				if err := ex.hold(t.Context(), share, process, MaxResponseBytes, func(cause error) {
					if !errors.Is(cause, errSlow) {
						t.Errorf("cut off with %v", cause)
					}
					ended <- time.Since(began)
				}); err != nil {
					t.Fatal(err)
				}
				wanted, leave := context.WithCancel(t.Context())
				switch tc.others {
				case "the server's":
					go func() { _ = share.take(wanted, serverRoom) }() // it waits until the test is over
				case "the process's":
					go func() { _, _ = process.Reserve(wanted, processRoom) }()
				}
				ticks := time.NewTicker(time.Second)
				defer ticks.Stop()
				ex.came(tc.bytes(0))
				var after time.Duration
				for n := 1; after == 0; n++ {
					select {
					case after = <-ended:
					case <-ticks.C:
						ex.came(tc.bytes(n))
					}
				}
				if after < tc.cut-time.Second || after > tc.cut+time.Second {
					t.Errorf("cut off after %s, want %s: %s", after, tc.cut, tc.reason)
				}
				leave()
				synctest.Wait()
				ex.free()
				mustBeFree(t, share)
			})
		})
	}
}

// TestAnAnswerThatIsThereIsNotCutOff: however long it takes to decode it.
func TestAnAnswerThatIsThereIsNotCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ex, share := owned(t), newRoom()
		if err := ex.hold(t.Context(), share, process, MaxResponseBytes, func(error) { t.Error("it was cut off") }); err != nil {
			t.Fatal(err)
		}
		ex.keep([]byte("{}"))
		time.Sleep(2 * largeTimeout)
		ex.free()
		mustBeFree(t, share)
	})
}

// TestWhatASlowAnswerIs has the event of a stream and the body of an answer stop in the middle.
func TestWhatASlowAnswerIs(t *testing.T) {
	for name, read := range map[string]func(*stream, io.Reader) error{
		"event": func(s *stream, body io.Reader) error {
			s.lines, s.left = bufio.NewReader(io.MultiReader(strings.NewReader("data: "), body)), MaxResponseBytes
			s.await()
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
				go func() { _, _ = server.Write([]byte(strings.Repeat("x", 2*freeBytes))) }()
				ex, share := owned(t), newRoom()
				waits := owned(t)
				got := make(chan error, 1)
				go func() {
					synctest.Wait()
					got <- waits.hold(t.Context(), share, process, MaxResponseBytes, func(error) {})
				}()
				err := read(&stream{ctx: ctx, cancel: cancel, wire: &wire{share: share, memory: process}, ex: ex}, body)
				if !errors.Is(err, errSlow) {
					t.Errorf("reading fails with %v, want it to say that it was too slow", err)
				}
				ex.free()
				if err := <-got; err != nil {
					t.Errorf("the next one: %v, want it to have the room", err)
				}
				waits.free()
				mustBeFree(t, share)
			})
		})
	}
	c := New(Config{Name: "demo"})
	t.Cleanup(c.Close)
	ex := &exchange{}
	ex.sent.Store(true)
	if e := c.failure(t.Context(), ex, fmt.Errorf("failed: %w", errSlow)); e.Class != tool.OutcomeUnknown || !strings.HasSuffix(e.Message, errSlow.Error()) {
		t.Errorf("a call = %s %q, want it unknown, and why", e.Class, e.Message)
	}
	if e := c.discovery(t.Context(), fmt.Errorf("failed: %w", errSlow)); e.Kind != Unreachable || e.Message != errSlow.Error() {
		t.Errorf("a list = %s %q, want it unreachable, and why", e.Kind, e.Message)
	}
}
