package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

func TestLocation(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		options Options
		want    []any
	}{
		"DataDir": {
			"the default is a file in the data folder",
			Options{DataDir: "/var/lib/capstan"},
			[]any{"store", "sqlite", "journal", "/var/lib/capstan/journal.db"},
		},
		"File": {
			"the URL takes precedence over the data folder",
			Options{DataDir: "/var/lib/capstan", Store: "sqlite:///srv/j.db"},
			[]any{"store", "sqlite", "journal", "/srv/j.db"},
		},
		"Postgres": {
			"the user must not be shown",
			Options{Store: "postgres://me:hunter2@db/d"},
			[]any{"store", "postgresql", "hosts", []string{"db:5432"}, "database", "d"},
		},
		"LongName": {
			"PostgreSQL's own programs know both names",
			Options{Store: "postgresql://me@a:1,b:2/d"},
			[]any{"store", "postgresql", "hosts", []string{"a:1", "b:2"}, "database", "d"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := tc.options.location()
			if diff := cmp.Diff(tc.want, l.shown()); diff != "" || err != nil {
				t.Errorf("%s: %v, shown values (-want +got):\n%s", tc.reason, err, diff)
			}
		})
	}
}

func TestOpenStore(t *testing.T) {
	for name, url := range map[string]string{
		"SQLite":     "sqlite://" + filepath.Join(t.TempDir(), "journal.db"),
		"PostgreSQL": postgrestest.Database(t),
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Store: url}
			s, err := openStore(t.Context(), &o, time.Now().Add(startPatience), logr.Discard())
			if err != nil {
				t.Fatal(err)
			}
			e := journal.Entry{Seq: 1, Epoch: 1, Kind: journal.Prepared, Time: time.Unix(1, 0), Payload: []byte("{}")}
			if err := errors.Join(s.Append(t.Context(), "a", e), s.Check(t.Context()), s.Close()); err != nil {
				t.Errorf("the store must work: %v", err)
			}
		})
	}
}

// TestStoreDeletesOnlyInWatchedNamespaces checks that the retention of this manager does not apply to the namespaces of
// another installation, which may use the same database.
func TestStoreDeletesOnlyInWatchedNamespaces(t *testing.T) {
	o := Options{Store: postgrestest.Database(t), WatchNamespaces: []string{"helpdesk"}}
	s, err := openStore(t.Context(), &o, time.Now().Add(startPatience), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := s.AddRecords(t.Context(), turnrecord.Record{UID: "a", Namespace: "sales", Completed: time.Unix(1, 0)}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.PurgeRecords(t.Context(), time.Now(), 10); n != 0 || err != nil {
		t.Errorf("PurgeRecords: %d, %v; want the record of a namespace that is not watched to be kept", n, err)
	}
}

// TestOpenStoreWaitsForPreviousProcess checks that a new Pod waits for the store while the process of the old Pod still
// runs.
func TestOpenStoreWaitsForPreviousProcess(t *testing.T) {
	o := Options{Store: "sqlite://" + filepath.Join(t.TempDir(), "journal.db")}
	before, err := openStore(t.Context(), &o, time.Now().Add(startPatience), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	var logged string
	log := funcr.New(func(_, args string) {
		logged = args
		if err := before.Close(); err != nil { // Close may be called more than once
			t.Error(err)
		}
	}, funcr.Options{})
	after, err := openStore(t.Context(), &o, time.Now().Add(startPatience), log)
	if err != nil {
		t.Fatalf("openStore: %v, want it to wait for the previous process", err)
	}
	if err := after.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(logged, "Waiting for the store") || !strings.Contains(logged, "another process uses it") {
		t.Errorf("logged %q, want the reason of the wait", logged)
	}
}

func TestOpenStoreErrors(t *testing.T) {
	for name, tc := range map[string]struct{ url, want string }{
		"a directory":     {"sqlite://" + t.TempDir(), "failed to open the journal"},
		"another program": {"mysql://me:hunter2@db/d", "--store must be a URL"},
		"no such user": {
			strings.Replace(postgrestest.Database(t), "postgres://", "postgres://hunter2", 1), "check the user",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			log := funcr.New(func(_, args string) { text.WriteString(args) }, funcr.Options{})
			s, err := openStore(t.Context(), &Options{Store: tc.url}, time.Now().Add(startPatience), log)
			if s != nil || err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "stopped") {
				t.Errorf("openStore = %v, %v; want an error with %q, without a wait", s, err, tc.want)
			}
			if text.Len() > 0 {
				t.Errorf("logged %s, want no wait", &text)
			}
		})
	}
}

// opened is a store that does nothing.
type opened struct{ store.Store }

func TestAwait(t *testing.T) {
	unavailable, permanent := errors.New("connection refused"), errors.New("wrong password")
	for name, tc := range map[string]struct {
		reason string
		// after is when the store becomes available. Until then, opening it fails with err.
		after time.Duration
		err   error
		// stop is when the process is asked to stop; 0 for never.
		stop time.Duration
		want error
		text string // a part of the error
	}{
		"available": {reason: "a store that opens needs no wait"},
		"available later": {
			reason: "a server that starts at the same time is awaited", after: 20 * time.Second, err: unavailable,
		},
		"unavailable": {
			reason: "a server that stays unavailable is a visible failure", after: time.Hour, err: unavailable, want: unavailable,
			text: "stopped waiting",
		},
		"a permanent error": {
			reason: "a permanent error is returned immediately", after: 20 * time.Second, err: permanent, want: permanent,
			text: "wrong password",
		},
		"a stop": {
			reason: "a process that must stop does not wait", after: time.Hour, err: unavailable, stop: 5 * time.Second,
			want: context.Canceled,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.stop > 0 {
					time.AfterFunc(tc.stop, cancel)
				}
				var lines []string
				log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: 1})
				begin, tries := time.Now(), 0
				isUnavailable := func(err error) bool { return errors.Is(err, unavailable) }
				s, err := await(ctx, begin.Add(startPatience), log, isUnavailable, func(context.Context) (store.Store, error) {
					tries++
					if time.Since(begin) < tc.after {
						return nil, fmt.Errorf("failed to open: %w", tc.err)
					}
					return opened{}, nil
				})
				if !errors.Is(err, tc.want) || tc.want == nil && err != nil || (s == nil) != (err != nil) || err != nil &&
					!strings.Contains(err.Error(), tc.text) {
					t.Errorf("await = %v, %v; want %v with %q: %s", s, err, tc.want, tc.text, tc.reason)
				}
				if took := time.Since(begin); took > startPatience {
					t.Errorf("it took %s, want at most %s", took, startPatience)
				}
				if len(lines) < tries-1 || tries > 1 && !strings.Contains(lines[0], unavailable.Error()) {
					t.Errorf("logged %q for %d tries, want a line with the cause for each try", lines, tries)
				}
				for i, line := range lines {
					if repeated := strings.Contains(line, `"level"=1`); repeated != (i > 0) {
						t.Errorf("logged %q, want the first line with a cause at info, and its repetitions at debug", line)
					}
				}
			})
		})
	}
}

// failing is a store whose state cannot be read.
type failing struct{ store.Store }

func (failing) State(context.Context) (store.State, error) {
	return store.State{}, errors.New("connection refused")
}

// noAnswer is a connection to an API server that does not exist.
type noAnswer struct{}

func (noAnswer) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

// TestStartHasOneDeadline checks that the wait for the store shortens the later waits of the start.
func TestStartHasOneDeadline(t *testing.T) {
	for name, later := range map[string]func(ctx context.Context, until time.Time, c kubernetes.Interface) error{
		"the API server": func(ctx context.Context, until time.Time, c kubernetes.Interface) error {
			return awaitAPIServer(ctx, until, c, "capstan-system", logr.Discard())
		},
		"the definitions": func(ctx context.Context, until time.Time, c kubernetes.Interface) error {
			return awaitDefinitions(ctx, until, c.Discovery(), logr.Discard())
		},
		"the identity": func(ctx context.Context, until time.Time, c kubernetes.Interface) error {
			return (&parts{store: failing{}, clientset: c, log: logr.Discard()}).identify(ctx, until)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://192.0.2.1", QPS: -1, Transport: noAnswer{}})
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				until := begin.Add(startPatience)
				always := func(error) bool { return true }
				_, err = await(t.Context(), until, logr.Discard(), always, func(context.Context) (store.Store, error) {
					if time.Since(begin) < startPatience/2 {
						return nil, errors.New("connection refused")
					}
					return opened{}, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				opened := time.Since(begin)
				if err := later(t.Context(), until, client); err == nil || time.Since(begin) > startPatience {
					t.Errorf("error %v %s after the start, want one within %s", err, time.Since(begin), startPatience)
				}
				if time.Since(begin) == opened {
					t.Error("it was tried only once, want it to use the rest of the time")
				}
				if err := later(t.Context(), begin, client); err == nil || !strings.Contains(err.Error(), "connection refused") {
					t.Errorf("error %v, want that of one try after the deadline", err)
				}
			})
		})
	}
}
