package postgres

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// TestConnectionTakesFewRoundTrips checks that a connection can be made on a slow network: the start of the session,
// two round trips for the password, and one for everything else.
func TestConnectionTakesFewRoundTrips(t *testing.T) {
	p := postgrestest.NewProxy(t, postgrestest.Database(t))
	s := OpenAt(t, strings.Replace(p.URL, "pool_max_conns=1", "pool_max_conns=2", 1))
	first, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()
	before, connections := p.Requests.Load(), s.pool.Stat().NewConnsCount()
	second, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Release()
	if got := p.Requests.Load() - before; got > 4 || s.pool.Stat().NewConnsCount() != connections+1 {
		t.Errorf("a connection took %d round trips, want at most 4", got)
	}
}

func TestLargeAppendsMayTakeLonger(t *testing.T) {
	for bytes, want := range map[int64]time.Duration{
		0: appendTimeout, slowestRate - 1: appendTimeout, 1 << 20: appendTimeout + 8*time.Second, 8 << 20: appendTimeout + 64*time.Second,
	} {
		if got := appendLimit(bytes); got != want {
			t.Errorf("appendLimit(%d) = %s, want %s", bytes, got, want)
		}
	}
}

func TestEncodingOfDatabase(t *testing.T) {
	tests := map[string]struct {
		reason, encoding string
		refused          bool
	}{
		"one that lacks characters": {"it could not store each requester and each text", "LATIN1", true},
		"all bytes":                 {"it stores UTF-8 as it is", "SQL_ASCII", false},
		"all characters":            {"it stores all texts", "UTF8", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			server := postgrestest.Database(t)
			u, err := url.Parse(server)
			if err != nil {
				t.Fatal(err)
			}
			database := strings.TrimPrefix(u.Path, "/") + "_encoded"
			postgrestest.Exec(t, server,
				fmt.Sprintf(`CREATE DATABASE %s ENCODING '%s' LOCALE 'C' TEMPLATE template0`, database, tt.encoding))
			defer postgrestest.Exec(t, server, `DROP DATABASE `+database+` WITH (FORCE)`)
			u.Path = "/" + database
			s, err := Open(t.Context(), u.String())
			if tt.refused {
				if err == nil || !strings.Contains(err.Error(), tt.encoding) || !strings.Contains(err.Error(), "ENCODING 'UTF8'") ||
					IsAway(err) {
					t.Fatalf("%s: Open: %v, want a lasting error that names the encoding and the remedy", tt.reason, err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: Open: %v, want no error", tt.reason, err)
			}
			defer s.Close() //nolint:errcheck // because Close never fails
			entry := journal.Entry{Seq: 1, Epoch: 1, Kind: journal.ModelReplied, Version: 1, Time: time.Unix(1, 0), Payload: []byte(`"名前"`)}
			if err := s.Append(t.Context(), "名前", entry); err != nil {
				t.Errorf("%s: Append: %v, want no error", tt.reason, err)
			}
		})
	}
}

// TestWithoutLimit checks that a timeout is removed, and that a server of a version without it reports no error.
func TestWithoutLimit(t *testing.T) {
	s := OpenAt(t, postgrestest.Database(t))
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET idle_session_timeout = '5min'`); err != nil {
		t.Fatal(err)
	}
	var unknown *string
	var removed, now string
	err = conn.QueryRow(t.Context(), "SELECT "+withoutLimit("no_such_timeout")+", "+withoutLimit("idle_session_timeout")).
		Scan(&unknown, &removed)
	if err != nil || unknown != nil {
		t.Fatalf("a setting that the server does not have: %v, error %v, want neither", unknown, err)
	}
	if err := conn.QueryRow(t.Context(), `SHOW idle_session_timeout`).Scan(&now); err != nil || now != "0" {
		t.Errorf("idle_session_timeout is %q (error %v), want 0", now, err)
	}
	if !strings.Contains(sessionQuery("NULL"), withoutLimit("transaction_timeout")) {
		t.Error("transaction_timeout stays, want no limit: it would end a migration")
	}
}

// TestShortageNamesItsRemedy lets this process have no file descriptor for a connection.
func TestShortageNamesItsRemedy(t *testing.T) {
	p := postgrestest.NewProxy(t, postgrestest.Database(t))
	s := OpenAt(t, strings.Replace(p.URL, "pool_max_conns=1", "pool_max_conns=2", 1))
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	restore := shortagetest.NoFiles(t)
	err = s.Check(t.Context())
	restore()
	if err == nil || !strings.Contains(err.Error(), "limit of open files") || strings.Contains(err.Error(), "network policy") {
		t.Errorf("Check: %v, want an error that says to raise the limit of open files", err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("Check after the shortage: %v, want no error", err)
	}
}
