package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

func TestSpinnerShowsActivityAndIsErased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		env := Environment{Out: &out, Err: &out, ErrIsTerminal: true, LookupEnv: func(string) (string, bool) { return "", false }}
		s := env.startSpinner()
		look := func() string {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			text := out.String()
			out.Reset()
			return text
		}
		time.Sleep(time.Second)
		if got := look(); got != "" {
			t.Errorf("there is no activity: want no output, have %q", got)
		}
		s.show("waiting for small\x1b[2J\nand " + strings.Repeat("x", 200))
		time.Sleep(2500 * time.Millisecond)
		got := look()
		if !strings.HasPrefix(got, "\r\x1b[K\\ waiting for small[2J and xxx") || !strings.HasSuffix(got, "…, 2 s") {
			t.Errorf("want the activity on one short line, with the seconds, have %q", got)
		}
		if _, err := io.WriteString(env.Out, "a line\n"); err != nil {
			t.Fatal(err)
		}
		if got := look(); got != "\r\x1b[Ka line\n" {
			t.Errorf("want the line wiped off before another is written, have %q", got)
		}
		if _, err := io.WriteString(env.Err, "another\n"); err != nil {
			t.Fatal(err)
		}
		if got := look(); got != "another\n" {
			t.Errorf("want nothing wiped off that is not there, have %q", got)
		}
		time.Sleep(frame)
		s.close()
		if got := look(); !strings.HasSuffix(got, "\r\x1b[K") {
			t.Errorf("want nothing left at the end, have %q", got)
		}
		time.Sleep(time.Second)
		if got := look(); got != "" {
			t.Errorf("want nothing after the end, have %q", got)
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
			if s := env.startSpinner(); s != nil || env.Out != &out || env.Err != &errOut {
				t.Errorf("%s: want no spinner, and unchanged output", tc.reason)
			}
		})
	}
}

// nowhereJournal is a journal that stores nothing.
type nowhereJournal struct{ journal.Journal }

func (nowhereJournal) Append(context.Context, string, ...journal.Entry) error { return nil }

func TestSpinnerFollowsJournal(t *testing.T) {
	t.Parallel()
	s := &spinner{out: io.Discard, since: time.Since}
	p := &progress{Journal: nowhereJournal{}, env: Environment{Err: io.Discard}, live: s}
	for _, tc := range []struct {
		kind          journal.Kind
		payload, want string
	}{
		{journal.ModelRequested, `{"step":1,"model":"small"}`, "waiting for small"},
		{journal.ModelReplied, `{"step":1,"model":"small","reply":{}}`, ""},
		{journal.ToolIntended, `{"step":1,"callID":"a","name":"search"}`, "search is running"},
		{journal.ToolIntended, `{"step":1,"callID":"b","name":"read"}`, "search is running, read is running"},
		{journal.ToolRepaired, `{"step":1,"callID":"c","name":"x"}`, "search is running, read is running"},
		{journal.ToolFinished, `{"step":1,"callID":"a","name":"search"}`, "read is running"},
		{journal.ToolIntended, `{"step":1,"callID":"b","name":"read","attempt":2}`, "read is running"},
		{journal.RunParked, `{"approvals":1}`, ""},
		{journal.ToolIntended, `{"step":2,"callID":"a","name":"search"}`, "search is running"},
		{journal.RunStarted, `{"name":"first"}`, ""},
		{journal.ModelRequested, `{"step":3,"model":"small"}`, "waiting for small"},
		{journal.ModelFailed, `{"step":3,"model":"small"}`, ""},
		{journal.ModelRequested, `{"step":3,"model":"small"}`, "waiting for small"},
		{journal.Finalized, `{}`, ""},
	} {
		if err := p.Append(t.Context(), "u", journal.Entry{Kind: tc.kind, Payload: []byte(tc.payload)}); err != nil {
			t.Fatal(err)
		}
		if s.activity != tc.want {
			t.Errorf("after %s: want %q shown, have %q", tc.kind, tc.want, s.activity)
		}
	}
}
