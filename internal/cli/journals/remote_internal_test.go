package journals

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// follow follows a journal that a server returns in parts, one per connection. The server breaks each connection except
// the last one.
func follow(t *testing.T, parts ...part) (seqs []int64, failure error) {
	t.Helper()
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i := int(n.Add(1)) - 1
		if i >= len(parts) {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("Content-Type", "application/jsonl")
		w.Header().Set("X-Capstan-Turn-UID", parts[i].uid)
		_, _ = io.WriteString(w, parts[i].body)
		_ = http.NewResponseController(w).Flush()
		if i < len(parts)-1 {
			panic(http.ErrAbortHandler)
		}
	}))
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	r := &Remote{
		env: terminal.Environment{Now: time.Now, Err: io.Discard},
		connect: func(context.Context) (*connection, error) {
			c, err := readapi.NewClient(server.URL, base)
			return &connection{Client: c, close: func() {}}, err
		},
	}
	for e, err := range r.Entries(t.Context(), readapi.Query{Follow: true}) {
		if err != nil {
			return seqs, err
		}
		seqs = append(seqs, e.Seq)
	}
	return seqs, nil
}

// part is what a server sends before the connection breaks.
type part struct{ uid, body string }

// entry returns the JSON of an entry.
func entry(seq int) string {
	return fmt.Sprintf(`{"seq":%d,"epoch":1,"kind":"run.started","version":1,"time":"2026-04-09T12:00:00Z","payload":{}}`+"\n", seq)
}

func TestFollowContinuesWithoutNewEntries(t *testing.T) {
	t.Parallel()
	got, err := follow(t, part{"a", "\n"}, part{"a", entry(1)}, part{"a", "\n"}, part{"a", entry(2)})
	if err != nil || fmt.Sprint(got) != "[1 2]" {
		t.Errorf("want both entries, although two of the four connections had none; have %v, %v", got, err)
	}
}

func TestFollowEndsWhenTheTurnIsReplaced(t *testing.T) {
	t.Parallel()
	got, err := follow(t, part{"a", entry(1)}, part{"b", entry(1) + entry(2)})
	if err == nil || !strings.Contains(err.Error(), "the Turn was deleted and created again") || fmt.Sprint(got) != "[1]" {
		t.Errorf("want no entry of another Turn with the same name, have %v, %v", got, err)
	}
}

func TestFollowWithoutUIDFromServer(t *testing.T) {
	t.Parallel()
	got, err := follow(t, part{"", entry(1)}, part{"a", entry(2)}, part{"", entry(3)})
	if err != nil || fmt.Sprint(got) != "[1 2 3]" {
		t.Errorf("want all entries, have %v, %v", got, err)
	}
}
