package approvals

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// named returns ToolApprovals with these names.
func named(names ...string) []v1alpha1.ToolApproval {
	var all []v1alpha1.ToolApproval
	for _, name := range names {
		all = append(all, v1alpha1.ToolApproval{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now)}})
	}
	return all
}

func TestUnused(t *testing.T) {
	ages := named("a", "b", "c", "d", "e")
	ages[3].CreationTimestamp = metav1.NewTime(now.Add(time.Second))
	for name, tc := range map[string]struct {
		reason string
		made   []v1alpha1.ToolApproval
		want   string
	}{
		"one":   {"the message names it", named("a"), "ToolApproval a is not used: why"},
		"three": {"the message names all, in alphabetical order", named("c", "a", "b"), "ToolApprovals a, b, c are not used: why"},
		"many": {
			"the message names the first three", named("e", "d", "c", "b", "a"), "ToolApprovals a, b, c and 2 more are not used: why",
		},
		"a new one": {"its author may be waiting", ages, "ToolApprovals d, a, b and 2 more are not used: why"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, unused(tc.made, "why")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestAcceptAll(t *testing.T) {
	made := named("a", "b")
	got, why, err := AcceptAll(t.Context(), made)
	if diff := cmp.Diff(made, got); diff != "" || why != "" || err != nil {
		t.Errorf("why %q, error %v: -want +got:\n%s", why, err, diff)
	}
}

func TestFindingExpires(t *testing.T) {
	before, after := now.Add(-time.Minute), now.Add(time.Second)
	for name, tc := range map[string]struct {
		reason string
		last   finding
		newest time.Time
		want   bool
	}{
		"never checked": {"there is no finding", finding{}, before, false},
		"just checked": {
			"the policy was in force after the decision",
			finding{at: now.Add(-29 * time.Second), newest: before},
			before, true,
		},
		"checked long ago": {
			"the policy may have been removed since", finding{at: now.Add(-30 * time.Second), newest: before}, before, false,
		},
		"a newer decision":  {"the policy may have been removed before the decision", finding{at: now, newest: now}, after, false},
		"an older decision": {"the policy was in force after the decision", finding{at: now, newest: now}, before, true},
		"a problem": {
			"the finding is used for 5 seconds, also for newer decisions",
			finding{at: now.Add(-4 * time.Second), problem: "it is not installed", newest: before},
			after, true,
		},
		"an old problem": {
			"the policy may have been installed since then",
			finding{at: now.Add(-5 * time.Second), problem: "it is not installed"},
			before, false,
		},
		"the clock was set back": {
			"the age of the finding is unknown", finding{at: after, newest: before}, before, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.last.isUsable(now, tc.newest); got != tc.want {
				t.Errorf("isUsable = %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestCheckStopsWaiting checks that a caller stops waiting for another caller's read of the policy when its own context
// ends.
func TestCheckStopsWaiting(t *testing.T) {
	p := NewPolicy(DefaultPolicy, nil, func() time.Time { return now }, logr.Discard())
	p.lock <- struct{}{}
	stopped := errors.New("stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(stopped)
	if _, _, err := p.Check(ctx, named("a")); !errors.Is(err, stopped) {
		t.Errorf("error %v, want %v", err, stopped)
	}
	if checked, why, err := p.Check(ctx, nil); checked != nil || why != "" || err != nil {
		t.Errorf("%v, %q, %v; want no read of the policy without decisions", checked, why, err)
	}
}

func TestUnchangedSince(t *testing.T) {
	at := func(seconds int, subresource string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Time: new(metav1.NewTime(now.Add(time.Duration(seconds) * time.Second))), Subresource: subresource}
	}
	for name, tc := range map[string]struct {
		reason     string
		generation int64
		changes    []metav1.ManagedFieldsEntry
		want       time.Time
	}{
		"never changed": {"only metadata has changed, such as labels", 1, []metav1.ManagedFieldsEntry{at(9, "")}, now},
		"changed": {
			"the spec may have been different before", 2,
			[]metav1.ManagedFieldsEntry{at(9, ""), at(5, "")},
			now.Add(9 * time.Second),
		},
		"status": {
			"changes of the status do not count", 2,
			[]metav1.ManagedFieldsEntry{at(5, ""), at(9, "status")},
			now.Add(5 * time.Second),
		},
		"changed at an unknown time": {"the creation time counts", 2, []metav1.ManagedFieldsEntry{{}}, now},
	} {
		t.Run(name, func(t *testing.T) {
			got := unchangedSince(&metav1.ObjectMeta{
				CreationTimestamp: metav1.NewTime(now), Generation: tc.generation,
				ManagedFields: tc.changes,
			})
			if !got.Equal(tc.want) {
				t.Errorf("since %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}
