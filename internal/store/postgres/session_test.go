package postgres

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

func TestSessionSettings(t *testing.T) {
	tests := map[string]struct {
		reason, server, want string
	}{
		"defaults": {
			reason: "every call is bounded on the server, too",
			server: "on", want: "on",
		},
		"asynchronous commit": {
			reason: "an append that returned must survive a crash",
			server: "off", want: "on",
		},
		"more than the server's own disk": {
			reason: "an administrator who wants standbys to have the entry as well must get that",
			server: "remote_apply", want: "remote_apply",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			databaseURL := postgrestest.Database(t)
			postgrestest.Exec(t, databaseURL, `DO $$ BEGIN `+
				`EXECUTE format('ALTER DATABASE %I SET synchronous_commit TO `+tt.server+`', current_database());
				EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation TO serializable', current_database()); END $$`)
			s, err := Open(t.Context(), databaseURL)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			got := map[string]string{}
			for setting := range map[string]bool{
				"synchronous_commit": true, "default_transaction_isolation": true, "statement_timeout": true,
				"lock_timeout": true, "application_name": true,
			} {
				var value string
				if err := s.pool.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&value); err != nil {
					t.Fatal(err)
				}
				got[setting] = value
			}
			want := map[string]string{
				"synchronous_commit": tt.want, "default_transaction_isolation": "read committed", "statement_timeout": "1min",
				"lock_timeout": "5s", "application_name": "capstan",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tt.reason, diff)
			}
		})
	}
}
