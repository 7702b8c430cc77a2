package journals

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTransportWaitsForRecords checks that the transport does not give up before the server and the client do.
func TestTransportWaitsForRecords(t *testing.T) {
	t.Parallel()
	if limit := plainTransport().ResponseHeaderTimeout; limit <= readapi.RecordsTimeout {
		t.Errorf("the transport waits for %s, want more than the %s that a request for records may take", limit, readapi.RecordsTimeout)
	}
}

// silent is a transport to a server that never answers.
type silent struct{ attempts atomic.Int64 }

func (s *silent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.attempts.Add(1)
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestFollowTriesAgainAfterASilentServer checks that one server that never answers leaves time for another attempt,
// which may reach the executor that replaces it.
func TestFollowTriesAgainAfterASilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &silent{}
		client, err := readapi.NewClient("http://127.0.0.1:1", base)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for _, err := range client.Journal(t.Context(), readapi.Query{Namespace: "default", Name: "first", Follow: true}) {
			if !isTemporary(err) || !strings.Contains(err.Error(), "no answer within 1m0s") {
				t.Errorf("want a temporary error that names the limit, have %v", err)
			}
		}
		if took := time.Since(begun); base.attempts.Load() != 1 || took > followPatience/2 {
			t.Errorf("%d attempts took %s, want one of at most half of the %s for all", base.attempts.Load(), took, followPatience)
		}
	})
}

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
		if parts[i].status != 0 {
			w.WriteHeader(parts[i].status)
			_, _ = io.WriteString(w, parts[i].body)
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

// part is what a server sends before the connection breaks, or with a status the whole response.
type part struct {
	uid, body string
	status    int
}

// entry returns the JSON of an entry.
func entry(seq int) string {
	return fmt.Sprintf(`{"seq":%d,"epoch":1,"kind":"run.started","version":1,"time":"2026-04-09T12:00:00Z","payload":{}}`+"\n", seq)
}

func TestFollowContinuesWithoutNewEntries(t *testing.T) {
	t.Parallel()
	got, err := follow(t, part{uid: "a", body: "\n"}, part{uid: "a", body: entry(1)}, part{uid: "a", body: "\n"},
		part{uid: "a", body: entry(2)})
	if err != nil || fmt.Sprint(got) != "[1 2]" {
		t.Errorf("want both entries, although two of the four connections had none; have %v, %v", got, err)
	}
}

// TestFollowContinuesAfterAProxyAnswered checks that a followed journal survives the answers of a proxy whose server is
// away, for example of an Ingress while the manager is replaced.
func TestFollowContinuesAfterAProxyAnswered(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		got, err := follow(t, part{uid: "a", body: entry(1)}, part{status: status, body: "<html>The server is away.</html>"},
			part{uid: "a", body: entry(2)})
		if err != nil || fmt.Sprint(got) != "[1 2]" {
			t.Errorf("status %d: want both entries, have %v, %v", status, got, err)
		}
	}
}

// readRecordings reads recorded Turns at the same time from a server, which has an empty journal of each Turn.
func readRecordings(t *testing.T, turns int, serve func(w http.ResponseWriter) bool, during func(r *Recordings)) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if serve(w) {
			w.Header().Set("Content-Type", "application/jsonl")
		}
	}))
	defer server.Close()
	s := &Source{Env: terminal.Environment{Now: time.Now, Err: io.Discard}}
	s.Cluster.Server, s.Cluster.Token = server.URL, "token"
	r, err := s.Recordings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range turns {
		group.Go(func() {
			_, err := r.Read(t.Context(), TurnName{Namespace: "default", Name: fmt.Sprintf("turn-%d", i)})
			refused, ok := errors.AsType[*turn.NotReplayableError](err)
			if !ok || !strings.Contains(refused.Message, "journal is empty") {
				t.Errorf("Turn %d: %v, want the journal read, which is empty", i, err)
			}
		})
	}
	during(r)
	group.Wait()
}

// TestReadingARecordingIsTriedAgain checks that recorded Turns are read in spite of a server that is busy.
func TestReadingARecordingIsTriedAgain(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	readRecordings(t, parallelReads, func(w http.ResponseWriter) bool {
		if requests.Add(1) <= parallelReads {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"status":503,"error":"too many journals are read at the same time"}`)
			return false
		}
		return true
	}, func(*Recordings) {})
}

// TestReadingAnArtifactOfARecordingIsTriedAgain checks that a recording reads its artifacts, for example during a
// replay, in spite of a server that is busy, and of a connection that breaks within the artifact. An artifact that the
// journal lacks is not read again.
func TestReadingAnArtifactOfARecordingIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status   int // of the first request for the artifact
		requests int64
		want     string
	}{
		{http.StatusServiceUnavailable, 2, ""},
		{http.StatusOK, 2, ""}, // and the connection breaks
		{http.StatusNotFound, 1, "the journal says no"},
	} {
		t.Run(http.StatusText(tc.status), func(t *testing.T) {
			t.Parallel()
			sum := journal.NewArtifact([]byte("notes")).SHA256
			var requests atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case !strings.HasSuffix(r.URL.Path, "/artifacts/"+sum):
					w.Header().Set("Content-Type", "application/jsonl")
					for i, e := range []string{
						`"kind":"preparation.input","version":1,"payload":{"input":{"turn":{"name":"first","attachments":[` +
							`{"name":"notes","mediaType":"text/plain","bytes":5,"sha256":"` + sum + `"}]}},"zone":"UTC"}`,
						`"kind":"prepared","version":1,"payload":{"messages":[{"role":"user","content":"Hello"}]}`,
					} {
						_, _ = fmt.Fprintf(w, `{"seq":%d,"epoch":1,"time":"2026-04-09T12:00:00Z",%s}`+"\n", i+1, e)
					}
				case requests.Add(1) == 1 && tc.status == http.StatusOK:
					w.Header().Set("Content-Type", "application/octet-stream")
					w.Header().Set("Content-Length", "5")
					_, _ = io.WriteString(w, "no")
				case requests.Load() == 1:
					w.WriteHeader(tc.status)
					_, _ = fmt.Fprintf(w, `{"status":%d,"error":"the journal says no"}`, tc.status)
				default:
					w.Header().Set("Content-Type", "application/octet-stream")
					_, _ = io.WriteString(w, "notes")
				}
			}))
			defer server.Close()
			s := &Source{Env: terminal.Environment{Now: time.Now, Err: io.Discard}}
			s.Cluster.Server, s.Cluster.Token = server.URL, "token"
			r, err := s.Recordings(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			recording, err := r.Read(t.Context(), TurnName{Namespace: "default", Name: "first"})
			if err != nil || requests.Load() > 0 {
				t.Fatalf("after %d requests for the artifact: %v, want a recording that reads it later", requests.Load(), err)
			}
			attach, _ := recording.Attach()
			all, err := attach(t.Context())
			if requests.Load() != tc.requests {
				t.Errorf("%d requests for the artifact, want %d", requests.Load(), tc.requests)
			}
			if tc.want == "" && (err != nil || len(all) != 1 || string(all[0].Data) != "notes") ||
				tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("the attachments are %v, %v; want the error %q", all, err, tc.want)
			}
		})
	}
}

// TestFewRecordingsAreReadAtTheSameTime checks the limit of the recorded Turns that are read at the same time.
func TestFewRecordingsAreReadAtTheSameTime(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan bool, 2*parallelReads), make(chan bool)
	readRecordings(t, 2*parallelReads, func(http.ResponseWriter) bool {
		arrived <- true
		<-release
		return true
	}, func(r *Recordings) {
		defer close(release)
		for range parallelReads {
			<-arrived
		}
		if r.reading.TryAcquire(1) {
			r.reading.Release(1)
			t.Errorf("another Turn could be read beside %d, want it to wait", parallelReads)
		}
	})
}

// TestAMissingArtifactIsAnError checks that a Turn whose journal lacks an artifact has an error, and is not a
// Turn that no longer exists.
func TestAMissingArtifactIsAnError(t *testing.T) {
	t.Parallel()
	sha256 := strings.Repeat("0", 64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/artifacts/"+sha256) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"status":404,"error":"the journal of the Turn has no artifact `+sha256+`"}`)
			return
		}
		w.Header().Set("Content-Type", "application/jsonl")
		_, _ = io.WriteString(w, `{"seq":1,"epoch":1,"kind":"finalized","version":2,"time":"2026-04-09T12:00:00Z",`+
			`"payload":{"stop":"Completed","answer":{"name":"answer.txt","sha256":"`+sha256+`"}}}`+"\n")
	}))
	defer server.Close()
	s := &Source{Env: terminal.Environment{Now: time.Now, Err: io.Discard}}
	s.Cluster.Server, s.Cluster.Token = server.URL, "token"
	r, err := s.Recordings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Read(t.Context(), TurnName{Namespace: "default", Name: "first"})
	refused, ok := errors.AsType[*turn.NotReplayableError](err)
	if ok || err == nil || !strings.Contains(err.Error(), "has no artifact") {
		t.Errorf("the error is %v (%v), want an error about the artifact", err, refused)
	}
}

func TestFollowEndsWhenTheTurnIsReplaced(t *testing.T) {
	t.Parallel()
	got, err := follow(t, part{uid: "a", body: entry(1)}, part{uid: "b", body: entry(1) + entry(2)})
	if err == nil || !strings.Contains(err.Error(), "the Turn was deleted and created again") || fmt.Sprint(got) != "[1]" {
		t.Errorf("want no entry of another Turn with the same name, have %v, %v", got, err)
	}
}

func TestFollowWithoutUIDFromServer(t *testing.T) {
	t.Parallel()
	got, err := follow(t, part{uid: "", body: entry(1)}, part{uid: "a", body: entry(2)}, part{uid: "", body: entry(3)})
	if err != nil || fmt.Sprint(got) != "[1 2 3]" {
		t.Errorf("want all entries, have %v, %v", got, err)
	}
}
