package localrun

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// discardJournal is a journal that stores nothing.
type discardJournal struct{ journal.Journal }

func (discardJournal) Append(context.Context, string, ...journal.Entry) error { return nil }

// screen keeps the text that is written to it. It is safe for concurrent use.
type screen struct {
	mu   sync.Mutex
	text string
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text += string(p)
	return len(p), nil
}

// take returns the text since the last call.
func (s *screen) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.text = "" }()
	return s.text
}

func TestSpinnerFollowsJournal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var shown screen
		env := terminal.Environment{Err: &shown, ErrIsTerminal: true, LookupEnv: func(string) (string, bool) { return "", false }}
		s := env.StartSpinner()
		defer s.Close()
		p := &progress{Journal: discardJournal{}, env: terminal.Environment{Err: io.Discard}, live: s}
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
			shown.take()
			time.Sleep(250 * time.Millisecond) // the spinner draws its next frame
			synctest.Wait()
			want := tc.want
			if want != "" {
				want += ", 0 s"
			}
			_, got, _ := strings.Cut(shown.take(), " ")
			if got, _, _ = strings.Cut(got, "\r"); got != want {
				t.Errorf("after %s: want the activity %q, have %q", tc.kind, want, got)
			}
		}
	})
}
