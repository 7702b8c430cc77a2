package terminal

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSpinnerShowsActivityAndIsErased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		env := Environment{Out: &out, Err: &out, ErrIsTerminal: true, LookupEnv: func(string) (string, bool) { return "", false }}
		s := env.StartSpinner()
		newOutput := func() string {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			text := out.String()
			out.Reset()
			return text
		}
		time.Sleep(time.Second)
		if got := newOutput(); got != "" {
			t.Errorf("want no output without an activity, have %q", got)
		}
		s.Show("waiting for small\x1b[2J\nand " + strings.Repeat("x", 200))
		time.Sleep(2500 * time.Millisecond)
		got := newOutput()
		if !strings.HasPrefix(got, "\r\x1b[K\\ waiting for small[2J and xxx") || !strings.HasSuffix(got, "…, 2 s") {
			t.Errorf("want the activity on one line, cut and with its duration in seconds, have %q", got)
		}
		if _, err := io.WriteString(env.Out, "a line\n"); err != nil {
			t.Fatal(err)
		}
		if got := newOutput(); got != "\r\x1b[Ka line\n" {
			t.Errorf("want the spinner's line erased before another line is written, have %q", got)
		}
		if _, err := io.WriteString(env.Err, "another\n"); err != nil {
			t.Fatal(err)
		}
		if got := newOutput(); got != "another\n" {
			t.Errorf("want no line erased, because the spinner's line is not on the screen; have %q", got)
		}
		time.Sleep(frameInterval)
		s.Close()
		if got := newOutput(); !strings.HasSuffix(got, "\r\x1b[K") {
			t.Errorf("want the line erased after Close, have %q", got)
		}
		time.Sleep(time.Second)
		if got := newOutput(); got != "" {
			t.Errorf("want no output after Close, have %q", got)
		}
	})
}

// TestSpinnerFitsTheTerminal checks that the line takes fewer columns than the terminal has, also after the terminal
// has become narrower.
func TestSpinnerFitsTheTerminal(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		width    int
		activity string
		want     string
	}{
		"enough columns":         {40, "waiting for small", "| waiting for small, 0 s"},
		"just enough columns":    {25, "waiting for small", "| waiting for small, 0 s"},
		"one column too few":     {24, "waiting for small", "| waiting for sma…, 0 s"},
		"few columns":            {20, "search is running, read is running", "| search is r…, 0 s"},
		"wide characters":        {20, "検索検索検索検索 is running", "| 検索検索検…, 0 s"},
		"marks without a column": {20, strings.Repeat("e\u0301", 12) + " runs", "| " + strings.Repeat("e\u0301", 11) + "…, 0 s"},
		"almost no columns":      {6, "waiting", "| , …"},
		"one column":             {1, "waiting", ""},
		"unknown":                {0, strings.Repeat("検", 60), "| " + strings.Repeat("検", 35) + "…, 0 s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			width := 200
			s := &Spinner{out: &out, width: func() int { return width }, since: func(time.Time) time.Duration { return 0 }, drawings: 1}
			s.Show(tc.activity)
			s.draw()
			out.Reset()
			width, s.drawings = tc.width, 1
			if s.draw(); out.String() != eraseLine+tc.want {
				t.Errorf("want %q, have %q", tc.want, out.String())
			}
		})
	}
}

func TestNoSpinnerIfLinesCannotBeErased(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason   string
		terminal bool
		kind     string
		console  bool
	}{
		"a file":          {"a file is not a terminal", false, "xterm", false},
		"a dumb terminal": {"it cannot erase a line", true, "dumb", false},
		"an old console":  {"it shows escape sequences as text", true, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			env := Environment{
				Out: &out, Err: &errOut, ErrIsTerminal: tc.terminal, NoEscapes: tc.console,
				LookupEnv: func(string) (string, bool) { return tc.kind, true },
			}
			if s := env.StartSpinner(); s != nil || env.Out != &out || env.Err != &errOut {
				t.Errorf("%s: want no spinner, and unchanged output", tc.reason)
			}
		})
	}
}
