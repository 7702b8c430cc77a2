package grace_test

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capstan-dev/capstan/internal/grace"
)

func TestRefusal(t *testing.T) {
	var (
		forbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "openai", errors.New("no permission"))
		away      = errors.New("connection refused")
		now       = time.Now()
		r         grace.Refusal
	)
	for i, step := range []struct {
		after time.Duration
		err   error
		want  bool
	}{
		{time.Hour, away, true},
		{time.Hour, away, true},        // an outage may take any time
		{time.Minute, forbidden, true}, // the API server starts
		{grace.Period - time.Second, forbidden, true},
		{time.Second, forbidden, false}, // the permission was withdrawn
		{time.Minute, away, false},      // an outage does not give it back
		{time.Minute, forbidden, false},
	} {
		now = now.Add(step.after)
		if got := r.Bridges(step.err, now); got != step.want {
			t.Errorf("step %d: Bridges = %t, want %t", i, got, step.want)
		}
	}
}
