package budgets

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestRulesAwaitTheWatch checks that Rules waits for the first list of the watch, for at most maxSync, and that the
// wait ends with the context.
func TestRulesAwaitTheWatch(t *testing.T) {
	stopped := errors.New("the run must stop")
	for name, tc := range map[string]struct {
		stop, sync time.Duration
		takes      time.Duration
		err        error
	}{
		"the run ends":          {stop: 3 * time.Second, sync: time.Hour, takes: 3 * time.Second, err: stopped},
		"the watch syncs":       {stop: time.Hour, sync: 2 * time.Second, takes: 2 * time.Second},
		"the watch is too slow": {stop: time.Hour, sync: time.Hour, takes: maxSync, err: errUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer time.AfterFunc(tc.stop, func() { cancel(stopped) }).Stop()
				s := &Set{synced: func() bool { return time.Since(begin) >= tc.sync }}
				_, err := s.Rules(ctx, &v1alpha1.Turn{}, nil, nil)
				if took := time.Since(begin); !errors.Is(err, tc.err) || took != tc.takes {
					t.Errorf("Rules: %v after %s, want %v after %s", err, took, tc.err, tc.takes)
				}
			})
		})
	}
}
