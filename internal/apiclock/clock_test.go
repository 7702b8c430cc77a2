package apiclock

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// epoch is the start of the tests by the correct clock.
var epoch = time.Date(2026, 6, 11, 15, 4, 5, 300_000_000, time.UTC)

// world simulates a machine and API servers whose clocks are wrong.
type world struct {
	*Clock
	// passed is the correct time since the start, and local is the error of the machine's clock.
	passed, local time.Duration
	// speed is by how much the machine's clock runs too fast, in parts per million.
	speed int64
	// offsets holds the observed offsets, and lines the log messages.
	offsets []time.Duration
	lines   []string
}

func newWorld(local time.Duration) *world {
	w := &world{local: local}
	log := funcr.New(func(_, args string) { w.lines = append(w.lines, args) }, funcr.Options{})
	w.Clock = New(w.machine, func(d time.Duration) { w.offsets = append(w.offsets, d) }, log)
	return w
}

func (w *world) machine() time.Time {
	return epoch.Add(w.passed + w.local + time.Duration(int64(w.passed)/1_000_000*w.speed))
}

// correct returns the correct time.
func (w *world) correct() time.Time { return epoch.Add(w.passed) }

// request waits, and then sends a request to an API server whose clock is off by skew. The request takes the time
// there, and the response the time back.
func (w *world) request(wait, there, back, skew time.Duration) {
	w.passed += wait
	sent := w.Local()
	w.passed += there
	date := w.correct().Add(skew).Truncate(time.Second)
	w.passed += back
	w.Sample(date, sent, w.Local())
}

// clockError returns the error of the Clock.
func (w *world) clockError() time.Duration { return w.Now().Sub(w.correct()) }

func TestClockFollowsAPIServer(t *testing.T) {
	for name, local := range map[string]time.Duration{
		"correct": 0, "ahead": 10 * time.Minute, "behind": -10 * time.Minute,
		"of another century": -60 * 365 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(local)
			if got := w.clockError(); got != local {
				t.Fatalf("before the first response the clock is off by %s, want the error of the machine's clock, %s", got, local)
			}
			w.request(0, 10*time.Millisecond, 10*time.Millisecond, 0)
			if got := w.clockError(); got.Abs() > time.Second {
				t.Fatalf("after one response the clock is off by %s, want at most 1s", got)
			}
			for range 50 {
				w.request(1370*time.Millisecond, 5*time.Millisecond, 5*time.Millisecond, 0)
			}
			if got := w.clockError(); got.Abs() > 100*time.Millisecond {
				t.Errorf("after many responses the clock is off by %s, want at most 100ms", got)
			}
			if got := w.clockError(); local == 0 && got != 0 {
				t.Errorf("a correct clock was changed by %s", got)
			}
		})
	}
}

// TestErrorIsBoundedByOneResponse checks that the error of the Clock never exceeds the uncertainty of one response,
// whatever the delays are.
func TestErrorIsBoundedByOneResponse(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
		w := newWorld(upTo(2*time.Hour) - time.Hour)
		w.speed = r.Int64N(200) - 100
		w.request(0, time.Millisecond, time.Millisecond, 0)
		last := w.Now()
		for range 300 {
			w.request(upTo(20*time.Second), upTo(200*time.Millisecond), upTo(200*time.Millisecond), 0)
			now := w.Now()
			if now.Before(last) {
				t.Fatalf("seed %d: the time went back from %s to %s", seed, last, now)
			}
			last = now
			if off := w.clockError(); off.Abs() > 1200*time.Millisecond {
				t.Fatalf("seed %d: off by %s", seed, off)
			}
		}
	}
}

// TestSlightlyDifferentAPIServers checks that API servers with slightly different clocks count as one clock: the time
// stays between theirs.
func TestSlightlyDifferentAPIServers(t *testing.T) {
	w := newWorld(time.Hour)
	for i := range 200 {
		w.request(730*time.Millisecond, time.Millisecond, time.Millisecond, time.Duration(i%2)*400*time.Millisecond)
		if off := w.clockError(); i > 20 && (off < -50*time.Millisecond || off > 450*time.Millisecond) {
			t.Fatalf("response %d: off by %s, want a time between those of the servers", i, off)
		}
	}
}

func TestServerWithWrongClock(t *testing.T) {
	for name, wrong := range map[string]time.Duration{
		"ahead": 10 * time.Minute, "behind": -10 * time.Minute,
		"at the beginning of time": -56 * 365 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(0)
			w.request(0, time.Millisecond, time.Millisecond, 0)
			for range 20 {
				w.request(time.Second, time.Millisecond, time.Millisecond, wrong)
				w.request(time.Second, time.Millisecond, time.Millisecond, 0)
			}
			if off := w.clockError(); off.Abs() > time.Second {
				t.Errorf("with a second server whose clock is wrong, the clock is off by %s, want at most 1s", off)
			}
		})
	}
}

// TestFirstResponseWithWrongClock checks that a wrong time in the first response is replaced by that of later
// responses, without catching up, and that the time never goes back after that.
func TestFirstResponseWithWrongClock(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(0)
			w.request(0, time.Millisecond, time.Millisecond, wrong)
			if off := w.clockError() - wrong; off.Abs() > time.Second {
				t.Errorf("after the first response the clock differs from it by %s, want at most 1s", off)
			}
			for range 4 {
				w.request(2*time.Second, time.Millisecond, time.Millisecond, 0)
			}
			if off := w.clockError(); off.Abs() > time.Second {
				t.Errorf("after four responses with another time, the clock is off by %s, want at most 1s", off)
			}
			last := w.Now()
			for range 10 {
				w.request(2*time.Second, time.Millisecond, time.Millisecond, -time.Hour)
				if now := w.Now(); now.Before(last) {
					t.Fatalf("the time went back from %s to %s", last, now)
				}
				last = w.Now()
			}
		})
	}
}

// TestBurstOfWrongDates checks that many wrong dates within little more than a second do not change the clock.
func TestBurstOfWrongDates(t *testing.T) {
	w := newWorld(0)
	w.request(0, time.Millisecond, time.Millisecond, 0)
	for range 100 {
		w.request(10*time.Millisecond, time.Millisecond, time.Millisecond, time.Hour)
	}
	if off := w.clockError(); off.Abs() > time.Second {
		t.Errorf("off by %s after a second of wrong dates", off)
	}
}

// TestClockJump checks that the Clock follows a jump of the machine's or the API server's clock, and never
// goes back.
func TestClockJump(t *testing.T) {
	for name, tc := range map[string]struct{ local, server time.Duration }{
		"the machine is set forward":      {10 * time.Minute, 0},
		"the machine is set back":         {-10 * time.Minute, 0},
		"the server is set forward":       {0, 10 * time.Minute},
		"the server is set back":          {0, -10 * time.Minute},
		"both are set by the same amount": {-3 * time.Minute, -3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(0)
			for range 5 {
				w.request(2*time.Second, time.Millisecond, time.Millisecond, 0)
			}
			last := w.Now()
			w.local = tc.local
			for i := range 1000 {
				w.request(2*time.Second, time.Millisecond, time.Millisecond, tc.server)
				now := w.Now()
				if now.Before(last) {
					t.Fatalf("response %d: the time went back from %s to %s", i, last, now)
				}
				last = now
			}
			if off := w.clockError() - tc.server; off.Abs() > time.Second {
				t.Errorf("in the end the clock differs from the server's by %s", off)
			}
		})
	}
}

// TestTimeAdvancesAfterSetBack checks that Now still advances after the server's clock was set back, so that timeouts
// still end.
func TestTimeAdvancesAfterSetBack(t *testing.T) {
	w := newWorld(0)
	for range 2 {
		w.request(time.Second, 0, 0, 0)
	}
	for range 10 {
		w.request(2*time.Second, 0, 0, -time.Hour)
	}
	before := w.Now()
	w.passed += time.Minute
	if got := w.Now().Sub(before); got != 30*time.Second {
		t.Errorf("in a minute the clock advances by %s, want 30s", got)
	}
}

// TestServerGoesBack checks that Server agrees with Now until the server's clock is set back, and then shows that
// clock, while Now is still ahead.
func TestServerGoesBack(t *testing.T) {
	w := newWorld(0)
	if got := w.Server(); !got.Equal(w.Now()) {
		t.Errorf("before the first response Server is %s, want %s", got, w.Now())
	}
	for range 5 {
		w.request(2*time.Second, 0, 0, 0)
	}
	if got := w.Server(); !got.Equal(w.Now()) {
		t.Errorf("Server is %s, want %s", got, w.Now())
	}
	for range 10 {
		w.request(2*time.Second, 0, 0, -time.Hour)
	}
	if off := w.Server().Sub(w.correct()) + time.Hour; off.Abs() > time.Second {
		t.Errorf("after the server was set back, Server differs from its clock by %s", off)
	}
	if off := w.clockError(); off < -time.Minute {
		t.Errorf("Now went back by %s", -off)
	}
}

func TestWarning(t *testing.T) {
	w := newWorld(-30 * time.Second)
	for range 100 {
		w.request(time.Second, time.Millisecond, time.Millisecond, 0)
	}
	if len(w.lines) != 1 || !strings.Contains(w.lines[0], "differs from the clock of the API server") ||
		!strings.Contains(w.lines[0], `"offsetSeconds"=`) {
		t.Errorf("logged %q, want one warning with the offset", w.lines)
	}
	if len(w.offsets) != 100 || (w.offsets[99]-30*time.Second).Abs() > time.Second {
		t.Errorf("observed %d offsets, the last %s; want 100, the last about 30s", len(w.offsets), w.offsets[len(w.offsets)-1])
	}
	w.passed += warnAgain
	w.request(0, time.Millisecond, time.Millisecond, 0)
	if len(w.lines) != 2 {
		t.Errorf("%d warnings after %s, want another one", len(w.lines), warnAgain)
	}
	small := newWorld(-900 * time.Millisecond)
	for range 100 {
		small.request(time.Second, time.Millisecond, time.Millisecond, 0)
	}
	if len(small.lines) != 0 {
		t.Errorf("logged %q for a nearly correct clock", small.lines)
	}
}

// TestTheTransport checks that only the responses of an API server are sampled.
func TestTheTransport(t *testing.T) {
	ahead := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	for name, tc := range map[string]struct {
		reason string
		status int
		header map[string]string
		want   bool
	}{
		"a response":          {"it has the time of the API server", http.StatusOK, map[string]string{"Date": ahead}, true},
		"a refusal":           {"the API server wrote this response, too", http.StatusForbidden, map[string]string{"Date": ahead}, true},
		"no date":             {"a proxy may remove it", http.StatusOK, map[string]string{"Date": ""}, false},
		"garbage":             {"it is not a date", http.StatusOK, map[string]string{"Date": "soon"}, false},
		"from a cache":        {"its date is old", http.StatusOK, map[string]string{"Date": ahead, "Age": "3"}, false},
		"an error of a proxy": {"the date comes from the proxy", http.StatusBadGateway, map[string]string{"Date": ahead}, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for k, v := range tc.header {
					w.Header()[k] = nil
					if v != "" {
						w.Header().Set(k, v)
					}
				}
				w.WriteHeader(tc.status)
			}))
			defer server.Close()
			c := New(time.Now, nil, logr.Discard())
			response, err := (&http.Client{Transport: c.Wrap(http.DefaultTransport)}).Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			if err := response.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if moved := time.Until(c.Now()) > 30*time.Minute; moved != tc.want || response.StatusCode != tc.status {
				t.Errorf("the clock has moved: %t, want %t: %s", moved, tc.want, tc.reason)
			}
		})
	}
	t.Run("no response", func(t *testing.T) {
		c := New(time.Now, nil, logr.Discard())
		response, err := (&http.Client{Transport: c.Wrap(http.DefaultTransport)}).Get("http://127.0.0.1:1")
		if err == nil {
			t.Fatal(errors.Join(errors.New("got a response, want an error"), response.Body.Close()))
		}
		if off := time.Until(c.Now()).Abs(); off > time.Minute {
			t.Errorf("the clock is off by %s", off)
		}
	})
}
