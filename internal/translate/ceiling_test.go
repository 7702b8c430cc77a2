package translate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

func TestCeiling(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		values map[string]string
		want   *v1alpha1.Limits
		err    string // the beginning of the error
	}{
		"none": {"there is no ceiling", nil, nil, ""},
		"all": {"each limit is set by the name of its field", map[string]string{
			"timeoutSeconds": "600", "startingDeadlineSeconds": "60", "maxSteps": "20", "maxToolCalls": "0",
			"maxTokens": "1000000", "maxCost": "0.50",
			"maxDepth": "2", "maxDescendants": "9", "approvalTimeoutSeconds": "3600",
		}, &v1alpha1.Limits{
			TimeoutSeconds: new(int32(600)), StartingDeadlineSeconds: new(int32(60)), MaxSteps: new(int32(20)), MaxToolCalls: new(int32(0)),
			MaxTokens: new(int64(1_000_000)), MaxCost: new("0.50"), MaxDepth: new(int32(2)),
			MaxDescendants: new(int32(9)), ApprovalTimeoutSeconds: new(int32(3600)),
		}, ""},
		"unknown": {
			"the error names the misspelled limit",
			map[string]string{"maxStep": "3"},
			nil,
			`"maxStep" is not a limit: use one of approvalTimeoutSeconds, `,
		},
		"no number": {
			"limits are numbers",
			map[string]string{"maxSteps": "many"},
			nil,
			"maxSteps=many must be a whole number from 1 to 100",
		},
		"too high": {
			"a ceiling is within the bounds of a Turn",
			map[string]string{"maxDepth": "9"},
			nil,
			"maxDepth=9 must be a whole number from 0 to 8",
		},
		"no cost": {
			"a Turn that may cost nothing asks no model",
			map[string]string{"maxCost": "0"},
			nil,
			"maxCost=0 must be a decimal above 0",
		},
		"scientific":  {"costs are decimals", map[string]string{"maxCost": "1e3"}, nil, "maxCost=1e3 must be"},
		"not a price": {"costs are decimals", map[string]string{"maxCost": "five"}, nil, "maxCost=five must be"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := translate.Ceiling(tc.values)
			if (err == nil) != (tc.err == "") || err != nil && !strings.HasPrefix(err.Error(), tc.err) {
				t.Fatalf("Ceiling: %v, want %q: %s", err, tc.err, tc.reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestWithinCeiling(t *testing.T) {
	ceiling, err := translate.Ceiling(map[string]string{"timeoutSeconds": "300", "maxSteps": "4", "maxTokens": "1000", "maxCost": "0.5"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason      string
		agent, turn *v1alpha1.Limits
		timeout     time.Duration
		steps       int
		tokens      int64
		cost        string
	}{
		"no limits": {"a ceiling lowers a default, and does not raise it", nil, nil, time.Minute, 4, 1000, "0.5"},
		"the Turn": {
			"a higher limit of the Turn is lowered", nil,
			&v1alpha1.Limits{TimeoutSeconds: new(int32(200)), MaxSteps: new(int32(50))}, 200 * time.Second, 4, 1000, "0.5",
		},
		"the Agent": {"a higher limit of the Agent is lowered", &v1alpha1.Limits{
			TimeoutSeconds: new(int32(900)),
			MaxTokens:      new(int64(5000)), MaxCost: new("10"),
		}, nil, 5 * time.Minute, 4, 1000, "0.5"},
		"both, below": {"a lower limit applies", &v1alpha1.Limits{TimeoutSeconds: new(int32(900)), MaxTokens: new(int64(50)), MaxCost: new(
			"0.25")}, &v1alpha1.Limits{TimeoutSeconds: new(int32(30)), MaxSteps: new(int32(1))}, 30 * time.Second, 1, 50, "0.25"},
	} {
		t.Run(name, func(t *testing.T) {
			agent := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Limits: tc.agent}}
			turn := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Limits: tc.turn}}
			before := agent.DeepCopy()
			in, err := translate.Input(turn, translate.WithinCeiling(agent, turn, ceiling), nil, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if in.Limit != tc.timeout || in.Limits.MaxSteps != tc.steps || in.Limits.MaxTokens != tc.tokens ||
				in.Limits.MaxCost.String() != tc.cost {
				t.Errorf("the Turn has %s and %+v, want %s, %d steps, %d tokens, %s: %s", in.Limit, in.Limits, tc.timeout,
					tc.steps, tc.tokens, tc.cost, tc.reason)
			}
			if in.Limits.MaxToolCalls != int(v1alpha1.DefaultMaxToolCalls) || in.Limits.ApprovalTimeout != 24*time.Hour {
				t.Errorf("a limit without a ceiling has changed: %+v", in.Limits)
			}
			if diff := cmp.Diff(before, agent); diff != "" {
				t.Errorf("the shared Agent was changed: %s", diff)
			}
		})
	}
	agent := &v1alpha1.Agent{}
	if got := translate.WithinCeiling(agent, nil, nil); got != agent {
		t.Errorf("WithinCeiling without a ceiling = %+v, want the Agent itself", got)
	}
}
