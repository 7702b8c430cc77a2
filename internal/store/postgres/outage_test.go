package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

func TestStoreRecoversAfterServerRestart(t *testing.T) {
	databaseURL, restart := postgrestest.Restartable(t) // a server with default settings, such as fsync
	s := openAt(t, databaseURL)
	var group sync.WaitGroup
	for i := range 8 { // so that many connections are idle
		group.Go(func() {
			if err := s.Append(t.Context(), fmt.Sprint(i), entry(1, 1)); err != nil {
				t.Errorf("Append: %v", err)
			}
		})
	}
	group.Wait()
	restart(postgrestest.Fast)
	if got := entries(t, s, "0"); len(got) != 1 {
		t.Fatalf("%d entries right after a restart, want the 1 written entry", len(got))
	}
	if err := s.Append(t.Context(), "0", entry(2, 1)); err != nil {
		t.Fatalf("Append: %v, want no error, because all broken connections were replaced", err)
	}
	restart(postgrestest.Immediate)
	// The connection was in use a moment ago, so the append may use it before the pool knows that it is broken.
	if err := s.Append(t.Context(), "0", entry(3, 1)); err != nil && !strings.Contains(err.Error(), "not known") {
		t.Errorf("Append right after a restart: %v, want no error, or one that says that the outcome is not known", err)
	}
	if err := s.Append(t.Context(), "1", entry(2, 1)); err != nil {
		t.Errorf("the next Append: %v, want no error", err)
	}
}

func TestNoEntryIsLostInRestartsUnderLoad(t *testing.T) {
	databaseURL, restart := postgrestest.Restartable(t, "fsync=off")
	s := openAt(t, databaseURL)
	const turns = 8
	var stop atomic.Bool
	var written [turns]int
	var group sync.WaitGroup
	for i := range turns {
		log := open(t, s, fmt.Sprint(i))
		group.Go(func() {
			for n := 1; !stop.Load(); n++ {
				if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied, Payload: n}); err != nil {
					t.Errorf("Append: %v, want the log to retry until the server has restarted", err)
					return
				}
				written[i] = n
			}
		})
	}
	for _, mode := range []postgrestest.Mode{postgrestest.Fast, postgrestest.Immediate, postgrestest.Fast} {
		restart(mode)
	}
	stop.Store(true)
	group.Wait()
	for i, want := range written {
		got := entries(t, s, fmt.Sprint(i))
		if len(got) != want || want > 0 && string(got[want-1].Payload) != fmt.Sprint(want) {
			t.Errorf("turn %d has %d entries, want each of the %d acknowledged entries exactly once", i, len(got), want)
		}
	}
}

// open opens a log that ignores the entries it reads.
func open(t *testing.T, s *postgres.Store, uid string) *journal.Log {
	t.Helper()
	log, err := journal.Open(t.Context(), uid, 1, journal.Options{
		Journal: s, Now: time.Now, Apply: func(journal.Entry) error { return nil }, Patience: time.Minute,
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return log
}

func TestAppendWithLostReplyMayBeRepeated(t *testing.T) {
	p := postgrestest.NewProxy(t, postgrestest.Database(t))
	s := openAt(t, p.URL)
	log := open(t, s, "a")
	for _, text := range []string{"first", "second", postgrestest.LoseAnswer} { // the first two prepare the statements
		p.Lose.Store(text == postgrestest.LoseAnswer)
		if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied, Payload: text}); err != nil {
			t.Fatalf("Append(%q): %v, want no error, because the log finds that the entry was written", text, err)
		}
	}
	lost := entry(4, 1)
	lost.Payload = []byte(`"` + postgrestest.LoseAnswer + `"`)
	p.Lose.Store(true)
	if err := s.Append(t.Context(), "a", lost); err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("Append whose reply is lost: %v, want an error that says that the outcome is not known", err)
	}
	if err := s.Append(t.Context(), "a", lost); !errors.Is(err, journal.ErrSequence) {
		t.Errorf("the same Append again: %v, want ErrSequence, because the entry was written", err)
	}
	if got := entries(t, s, "a"); len(got) != 4 || p.Lost.Load() != 2 {
		t.Errorf("%d entries and %d lost replies, want 4 and 2", len(got), p.Lost.Load())
	}
}

func TestErrorsContainAdviceAndNoSecrets(t *testing.T) {
	good, err := url.Parse(postgrestest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	const secret = "s3cr3t"
	password, _ := good.User.Password()
	if len(password) < 8 {
		password = secret // the password of the server in CAPSTAN_TEST_POSTGRES may be too short to find in a text
	}
	wrong, unknown := *good, *good
	wrong.User = url.UserPassword("nobody_of_that_name", secret) // a server refuses this user even if it requires no password
	unknown.Path = "/nowhere"
	readOnly := postgrestest.Database(t)
	postgrestest.Exec(t, readOnly, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+
		`default_transaction_read_only TO on', current_database()); END $$`)
	tests := map[string]struct{ url, want string }{
		"wrong user and password":        {wrong.String(), "check the user"},
		"unknown database":               {unknown.String(), "create the database"},
		"server that takes no writes":    {readOnly, "takes writes"},
		"no server listens":              {"postgres://u:" + secret + "@127.0.0.1:1/d", "check the host"},
		"no such host":                   {"postgres://u:" + secret + "@db.invalid/d", "check the host"},
		"no such socket":                 {"postgres://u:" + secret + "@/d?host=/nowhere", "check the host"},
		"URL of another database system": {"mysql://u:" + secret + "@h/d", "want postgres://"},
		"settings instead of a URL":      {"host=h password=" + secret, "want postgres://"},
		"empty":                          {"", "want postgres://"},
		"bad port":                       {"postgres://u:" + secret + "@h:port/d", "want postgres://"},
		"bad escape":                     {"postgres://u:%zz" + secret + "@h/d", "want postgres://"},
		"bad option":                     {"postgres://u:" + secret + "@h/d?sslmode=maybe", "sslmode"},
		"bad number":                     {"postgres://u:" + secret + "@h/d?pool_max_conns=many", "want postgres://"},
		"password as an option":          {"postgres://u@h/d?password=" + secret + "&sslmode=" + secret, "want postgres://"},
		"certificate that is missing":    {"postgres://u:" + secret + "@h/d?sslmode=verify-full&sslrootcert=/nowhere.pem", "/nowhere.pem"},
		"slash in the password":          {"postgres://u:12/" + secret + "@h/d", "%-escapes"},
		"question mark in the password":  {"postgres://u:12?" + secret + "@h/d", "%-escapes"},
		"hash in the password":           {"postgres://u:12#" + secret + "@h/d", "%-escapes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := postgres.Open(t.Context(), tt.url)
			if err == nil {
				t.Fatal(errors.Join(errors.New("Open did not fail"), s.Close()))
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q, want it to contain %q", err, tt.want)
			}
			// %#v shows what a logger of structured errors would show.
			for e := err; e != nil; e = errors.Unwrap(e) {
				for _, bad := range []string{secret, password, "postgres://u", "@h"} {
					if text := fmt.Sprintf("%s %+v %#v", e, e, e); strings.Contains(text, bad) {
						t.Errorf("error %q contains %q, want no secret in it", text, bad)
					}
				}
			}
		})
	}
}

func TestErrorsOfStoppedServer(t *testing.T) {
	p := postgrestest.NewProxy(t, postgrestest.Database(t))
	s := openAt(t, p.URL)
	p.Shut()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 3 { // the first call loses its connection, and the other calls cannot connect
		_, err := journal.Collect(ctx, s, "a")
		if err == nil || ctx.Err() != nil {
			t.Fatalf("Collect: %v, want an error in time", err)
		}
		if strings.Contains(err.Error(), "not-to-be-shown") || !strings.Contains(err.Error(), "check the host") {
			t.Errorf("error %q, want one that says what to check, without the password", err)
		}
	}
}
