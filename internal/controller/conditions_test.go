package controller

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestKeepMessage checks that the message of a failure stays while only its details differ, and that it changes if
// the failure is another one with the same reason.
func TestKeepMessage(t *testing.T) {
	const unreachable, rejected = v1alpha1.ReasonEndpointUnreachable, v1alpha1.ReasonCredentialsRejected
	for name, tc := range map[string]struct {
		before, after string
		reasonBefore  string
		reason        string
		generation    int64
		kept          bool
	}{
		"the ID of the request": {
			before: "the endpoint failed (HTTP 503): overloaded, request req_011aB",
			after:  "the endpoint failed (HTTP 503): overloaded, request req_97cc2",
			kept:   true,
		},
		"the local port": {
			before: "read tcp 10.1.2.3:40123->192.0.2.1:443: connection reset by peer",
			after:  "read tcp 10.1.2.3:51877->192.0.2.1:443: connection reset by peer",
			kept:   true,
		},
		"the time to wait": {before: "try again in 1m3s", after: "try again in 58s", kept: true},
		"another status":   {before: "the endpoint failed (HTTP 503)", after: "the endpoint failed (HTTP 500)"},
		"another failure":  {before: "lookup models.example on 10.0.0.10:53: no such host", after: "the endpoint failed (HTTP 503)"},
		"the quota instead of the key": {
			before: "the endpoint refused the credentials (HTTP 401): check the Secret", after: "the quota is used up (HTTP 429)",
			reasonBefore: rejected, reason: rejected,
		},
		"another reason":     {before: "answer 1", after: "answer 2", reason: rejected},
		"another generation": {before: "answer 1", after: "answer 2", generation: 1},
		"a message about a Secret": {
			before: "Secret a1 does not exist", after: "Secret a2 does not exist",
			reasonBefore: v1alpha1.ReasonSecretNotFound, reason: v1alpha1.ReasonSecretNotFound,
		},
	} {
		t.Run(name, func(t *testing.T) {
			reasonOf := func(reason string) string {
				if reason == "" {
					return unreachable
				}
				return reason
			}
			conditions := []metav1.Condition{{
				Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonOf(tc.reasonBefore), Message: tc.before,
				ObservedGeneration: 2 - tc.generation,
			}}
			want := tc.after
			if tc.kept {
				want = tc.before
			}
			if got := keepMessage(finding{reason: reasonOf(tc.reason), message: tc.after}, conditions, 2); got.message != want {
				t.Errorf("after %q and %q, the message is %q, want %q", tc.before, tc.after, got.message, want)
			}
		})
	}
}

// TestLongMessages checks that messages are cut, because the API server would refuse the whole status otherwise.
func TestLongMessages(t *testing.T) {
	var conditions []metav1.Condition
	finding{
		reason: v1alpha1.ReasonInvalidInstructions, message: strings.Repeat("\u00e9", 40_000), inOwnText: true,
	}.setReady(&conditions, 1, time.Unix(1, 0))
	if len(conditions) != 2 {
		t.Fatalf("got %d conditions, want Ready and Stalled", len(conditions))
	}
	for _, c := range conditions {
		if n := len(c.Message); n == 0 || n > maxMessageBytes {
			t.Errorf("%s: the message has %d bytes, want at most %d", c.Type, n, maxMessageBytes)
		}
	}
}
