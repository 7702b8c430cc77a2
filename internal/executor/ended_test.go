package executor

import (
	"context"
	"errors"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// TestHasEnded checks which Turns can no longer continue a compensation.
func TestHasEnded(t *testing.T) {
	ends := func(o *v1alpha1.Turn) { turnstatus.End(o, v1alpha1.TurnReasonCancelled, "the turn was cancelled", now) }
	for name, tc := range map[string]struct {
		turn      *v1alpha1.Turn
		name, uid string
		want      bool
	}{
		"unfinished":              {turnWith(), "one", "uid-one", false},
		"finished":                {turnWith(ends), "one", "uid-one", true},
		"deleted":                 {turnWith(), "two", "uid-two", true},
		"deleted, and made again": {turnWith(), "one", "uid-old", true},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), tc.turn)...)
			in, err := newRun(t, e).input(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got, err := in.HasEnded(t.Context(), tc.name, tc.uid); err != nil || got != tc.want {
				t.Errorf("HasEnded: %t, %v; want %t", got, err, tc.want)
			}
		})
	}
	e, _ := newExecutor(t, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("no connection")
		},
	})
	if _, err := e.hasEnded(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: "one"}, "uid-one"); err == nil {
		t.Error("hasEnded: no error, want the one of the API server")
	}
}
