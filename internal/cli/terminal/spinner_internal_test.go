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

func TestNoSpinnerIfLinesCannotBeErased(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason   string
		terminal bool
		kind     string
	}{
		"a file":          {"a file is not a terminal", false, "xterm"},
		"a dumb terminal": {"it cannot erase a line", true, "dumb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			env := Environment{
				Out: &out, Err: &errOut, ErrIsTerminal: tc.terminal,
				LookupEnv: func(string) (string, bool) { return tc.kind, true },
			}
			if s := env.StartSpinner(); s != nil || env.Out != &out || env.Err != &errOut {
				t.Errorf("%s: want no spinner, and unchanged output", tc.reason)
			}
		})
	}
}
