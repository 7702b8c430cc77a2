package main

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestWhatARoundFinds: a round whose Turns have all wiped their disks once passes, and each fault is found.
func TestWhatARoundFinds(t *testing.T) {
	for name, tc := range map[string]struct {
		lost   bool
		change func(turns []v1alpha1.Turn, wiped map[string]int)
		// want is part of the one failure; empty for none.
		want string
	}{
		"as it must be": {},
		"wiped twice":   {change: func(_ []v1alpha1.Turn, wiped map[string]int) { wiped["round-03"] = 2 }, want: "Turn round-03 wiped its disk 2 times"},
		"never wiped":   {change: func(_ []v1alpha1.Turn, wiped map[string]int) { delete(wiped, "round-03") }, want: "Turn round-03 never wiped"},
		"unknown, and wiped": {change: func(turns []v1alpha1.Turn, _ map[string]int) {
			turns[3].Status.Steps = &v1alpha1.StepCounts{UnknownOutcomes: 1}
		}},
		"unknown, not wiped": {change: func(turns []v1alpha1.Turn, wiped map[string]int) {
			turns[3].Status.Steps = &v1alpha1.StepCounts{UnknownOutcomes: 1}
			delete(wiped, "round-03")
		}},
		"a journal lost":      {change: func(turns []v1alpha1.Turn, _ map[string]int) { says(&turns[3], "the journal was lost") }, want: "says that its journal was lost"},
		"lost, as expected":   {lost: true, change: func(turns []v1alpha1.Turn, _ map[string]int) { says(&turns[3], "the journal was lost") }},
		"not lost, unnoticed": {lost: true, want: "no Turn says that its journal was lost"},
	} {
		t.Run(name, func(t *testing.T) {
			turns, wiped := make([]v1alpha1.Turn, turnsPerRound), map[string]int{}
			for i := range turns {
				turns[i].Name = fmt.Sprintf("round-%02d", i)
				says(&turns[i], "done")
				wiped[turns[i].Name] = 1
			}
			if tc.change != nil {
				tc.change(turns, wiped)
			}
			r := result{round: round{lost: tc.lost}, Ends: map[string]int{}}
			r.judge(turns, wiped)
			switch {
			case tc.want == "" && len(r.Failures) > 0:
				t.Errorf("failures = %v, want none", r.Failures)
			case tc.want != "" && (len(r.Failures) != 1 || !strings.Contains(r.Failures[0], tc.want)):
				t.Errorf("failures = %v, want one that says %q", r.Failures, tc.want)
			}
		})
	}
}

func says(turn *v1alpha1.Turn, message string) {
	turn.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionTrue, Reason: "Completed", Message: message}}
}

func TestCallsOfARoundTakeDifferentTimes(t *testing.T) {
	seconds := upTo(8)
	if first, last := seconds(0), seconds(turnsPerRound-1); first != 2 || last != 8 {
		t.Errorf("calls take %d to %d s, want 2 to 8", first, last)
	}
}
