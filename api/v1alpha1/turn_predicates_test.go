package v1alpha1

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	created = time.Date(2026, 6, 11, 15, 0, 0, 0, time.UTC)
	ended   = created.Add(90 * time.Second)
)

// turn returns a Turn with this status and reason of the condition Succeeded, or without conditions if status is empty.
// Each function in mutate then changes the Turn.
func turn(status metav1.ConditionStatus, reason string, mutate ...func(*Turn)) *Turn {
	t := &Turn{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(created)}}
	if status != "" {
		t.Status.Conditions = []metav1.Condition{
			{Type: "Succeeded", Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(ended)},
		}
	}
	for _, m := range mutate {
		m(t)
	}
	return t
}

func boundTo(name string) func(*Turn) {
	return func(t *Turn) { t.Status.Executor = &ExecutorBinding{Name: name, Epoch: 3} }
}

func TestState(t *testing.T) {
	type state struct {
		Finished        bool
		Reason, BoundTo string
		Epoch           int64
	}
	for name, tc := range map[string]struct {
		reason string
		turn   *Turn
		want   state
	}{
		"new":     {"no controller has processed it", turn("", ""), state{}},
		"waiting": {"a Turn whose Succeeded is Unknown has not ended", turn("Unknown", "Pending"), state{Reason: "Pending"}},
		"running": {"it is bound", turn("Unknown", "Running", boundTo("e")), state{Reason: "Running", BoundTo: "e", Epoch: 3}},
		"suspended": {
			"a released binding keeps its epoch", turn("Unknown", "Suspended", boundTo("")),
			state{Reason: "Suspended", Epoch: 3},
		},
		"succeeded": {
			"a finished Turn is not bound", turn("True", "Completed", boundTo("e")),
			state{Finished: true, Reason: "Completed", Epoch: 3},
		},
		"failed": {
			"False is an end, too", turn("False", "Cancelled", boundTo("e")),
			state{Finished: true, Reason: "Cancelled", Epoch: 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := state{tc.turn.IsFinished(), tc.turn.StateReason(), tc.turn.BoundTo(), tc.turn.Epoch()}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestExpiryTime(t *testing.T) {
	ttl := func(seconds int32) func(*Turn) {
		return func(t *Turn) { t.Spec.TTLSecondsAfterFinished = &seconds }
	}
	completed := func(t *Turn) {
		at := metav1.NewMicroTime(ended.Add(-500 * time.Millisecond))
		t.Status.CompletionTime = &at
	}
	for name, tc := range map[string]struct {
		reason string
		turn   *Turn
		want   time.Time
		ok     bool
	}{
		"no TTL":  {"a Turn without a TTL is kept", turn("True", "Completed"), time.Time{}, false},
		"running": {"a running Turn does not expire", turn("Unknown", "Running", ttl(5)), time.Time{}, false},
		"new":     {"a new Turn does not expire", turn("", "", ttl(0)), time.Time{}, false},
		"TTL 0": {
			"the Turn expires when it ends", turn("True", "Completed", completed, ttl(0)), ended.Add(-500 * time.Millisecond), true,
		},
		"failed": {
			"a failed Turn expires, too: the TTL counts from its completion",
			turn("False", "ModelFailed", completed, ttl(60)), ended.Add(59500 * time.Millisecond), true,
		},
		"no completion": {
			"the TTL counts from the condition if completionTime is absent", turn("True", "Completed", ttl(60)),
			ended.Add(time.Minute), true,
		},
		"a year": {"the longest TTL does not overflow", turn("True", "Completed", ttl(31536000)), ended.Add(365 * 24 * time.Hour), true},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := tc.turn.ExpiryTime()
			if !got.Equal(tc.want) || ok != tc.ok {
				t.Errorf("ExpiryTime = %s, %t; want %s, %t: %s", got, ok, tc.want, tc.ok, tc.reason)
			}
		})
	}
}

func TestWaitingSince(t *testing.T) {
	reconciling := func(t *Turn) {
		t.Status.Conditions = append(t.Status.Conditions,
			metav1.Condition{Type: "Reconciling", Status: "True", LastTransitionTime: metav1.NewTime(ended)})
	}
	for name, tc := range map[string]struct {
		reason string
		turn   *Turn
		want   time.Time
	}{
		"new":     {"a new Turn has waited since its creation", turn("", ""), created},
		"resumed": {"a resumed Turn has waited since the end of its suspension", turn("Unknown", "Pending", reconciling), ended},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.turn.WaitingSince(); !got.Equal(tc.want) {
				t.Errorf("WaitingSince = %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	limits := func(timeout, start int32) *Limits {
		l := &Limits{}
		if timeout > 0 {
			l.TimeoutSeconds = &timeout
		}
		if start > 0 {
			l.StartingDeadlineSeconds = &start
		}
		return l
	}
	for name, tc := range map[string]struct {
		reason         string
		limits         []*Limits
		timeout, start time.Duration
	}{
		"none":        {"the defaults apply", nil, time.Minute, 10 * time.Minute},
		"absent":      {"the defaults apply", []*Limits{nil, {}, nil}, time.Minute, 10 * time.Minute},
		"one":         {"a limit may be above the default", []*Limits{nil, limits(86400, 604800)}, 24 * time.Hour, 7 * 24 * time.Hour},
		"turn lowers": {"the lowest limit applies", []*Limits{limits(5, 7), limits(30, 40)}, 5 * time.Second, 7 * time.Second},
		"turn raises": {
			"a Turn cannot raise the limit of its Agent", []*Limits{limits(50, 70), limits(30, 40)}, 30 * time.Second, 40 * time.Second,
		},
		"each sets one": {"each limit applies", []*Limits{limits(5, 0), limits(0, 40)}, 5 * time.Second, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Timeout(tc.limits...); got != tc.timeout {
				t.Errorf("Timeout = %s, want %s: %s", got, tc.timeout, tc.reason)
			}
			if got := StartingDeadline(tc.limits...); got != tc.start {
				t.Errorf("StartingDeadline = %s, want %s: %s", got, tc.start, tc.reason)
			}
		})
	}
}

func TestModelProviderModel(t *testing.T) {
	p := &ModelProvider{Spec: ModelProviderSpec{Models: []Model{{Name: "a"}, {Name: "b"}}}}
	if got := p.Model("b"); got != &p.Spec.Models[1] {
		t.Errorf("Model(b) = %v, want the entry itself", got)
	}
	if got := p.Model("c"); got != nil {
		t.Errorf("Model(c) = %v, want nil: it is not listed", got)
	}
}

// TestMaxDescendants checks that a Turn can lower its Agent's limit or the default, and never raise it.
func TestMaxDescendants(t *testing.T) {
	limit := func(n int32) *Limits { return &Limits{MaxDescendants: &n} }
	for name, tc := range map[string]struct {
		turn, agent *Limits
		want        int
	}{
		"no limits":         {nil, nil, 25},
		"other limits":      {&Limits{}, &Limits{}, 25},
		"the Turn, lower":   {limit(3), nil, 3},
		"the Turn, higher":  {limit(1000), nil, 25},
		"the Agent, higher": {nil, limit(200), 200},
		"the Agent, lower":  {limit(7), limit(5), 5},
		"both":              {limit(7), limit(200), 7},
		"zero":              {limit(0), limit(200), 0},
	} {
		if got := MaxDescendants(tc.turn, tc.agent); got != tc.want {
			t.Errorf("%s: MaxDescendants = %d, want %d", name, got, tc.want)
		}
	}
}

// TestAgentOfATurn checks that a reference with the Turn's own namespace means the same as one without a namespace.
func TestAgentOfATurn(t *testing.T) {
	for _, tc := range []struct {
		namespace, name, key string
		foreign              bool
	}{
		{"", "support", "helpdesk/support", false},
		{"helpdesk", "support", "helpdesk/support", false},
		{"platform", "platform/support", "platform/support", true},
	} {
		o := &Turn{
			ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk"},
			Spec:       TurnSpec{AgentRef: SharedReference{Namespace: tc.namespace, Name: "support"}},
		}
		if o.AgentName() != tc.name || o.AgentKey().String() != tc.key || o.IsOfForeignAgent() != tc.foreign {
			t.Errorf("the Agent of namespace %q is %q, %q, foreign %t; want %q, %q, %t", tc.namespace, o.AgentName(), o.AgentKey(),
				o.IsOfForeignAgent(), tc.name, tc.key, tc.foreign)
		}
	}
}
