package localrun

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// TestRequestsOfOneStepExpireTogether checks that the end of the time for one question also ends the time of the other
// requests of its step, which were made some milliseconds later: no person can be asked about them any more.
func TestRequestsOfOneStepExpireTogether(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 4, 9, 12, 0, 0, 0, time.UTC)
	w := &localTurn{turn: &v1alpha1.Turn{}}
	open := []loop.Approval{
		{Request: "asked", Expires: at},
		{Request: "answered", Expires: at},
		{Request: "next", Expires: at.Add(20 * time.Millisecond)},
		{Request: "later", Expires: at.Add(time.Minute)},
	}
	j := &localRun{replies: map[approvalKey]reply{approvalKeyOf(w, open[1]): {approved: true}}}
	j.expire(w, open, at)
	got := map[string]reply{}
	for key, r := range j.replies {
		got[key.request] = r
	}
	want := map[string]reply{"asked": {expired: true}, "answered": {approved: true}, "next": {expired: true}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(reply{})); diff != "" {
		t.Error(diff)
	}
}
