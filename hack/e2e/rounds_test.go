package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestCheckOfARound checks that a round passes if all Turns have wiped their disks once, and that each fault is a
// failure.
func TestCheckOfARound(t *testing.T) {
	for name, tc := range map[string]struct {
		lost   bool
		change func(turns []v1alpha1.Turn, wiped map[string]int)
		// want is part of the only expected failure; empty: no failure is expected.
		want string
	}{
		"no violation": {},
		"none in flight": {
			change: func(turns []v1alpha1.Turn, _ map[string]int) { turns[0].Status.Steps = nil },
			want:   "no call was in flight",
		},
		"wiped twice": {
			change: func(_ []v1alpha1.Turn, wiped map[string]int) { wiped["round-03"] = 2 },
			want:   "Turn round-03 wiped its disk 2 times",
		},
		"never wiped": {
			change: func(_ []v1alpha1.Turn, wiped map[string]int) { delete(wiped, "round-03") },
			want:   "Turn round-03 never wiped",
		},
		"unknown, and wiped": {change: func(turns []v1alpha1.Turn, _ map[string]int) {
			turns[3].Status.Steps = &v1alpha1.StepCounts{UnknownOutcomes: 1}
		}},
		"unknown, not wiped": {change: func(turns []v1alpha1.Turn, wiped map[string]int) {
			turns[3].Status.Steps = &v1alpha1.StepCounts{UnknownOutcomes: 1}
			delete(wiped, "round-03")
		}},
		"a journal lost": {
			change: func(turns []v1alpha1.Turn, _ map[string]int) { loseJournal(&turns[3], 1) },
			want:   "reports a lost journal",
		},
		"lost, as expected": {lost: true, change: func(turns []v1alpha1.Turn, _ map[string]int) { loseJournal(&turns[3], 1) }},
		"lost, and not reported": {
			lost: true, change: func(turns []v1alpha1.Turn, _ map[string]int) { loseJournal(&turns[3], 0) },
			want: "reports no unknown outcome",
		},
		"no journal lost, although expected": {lost: true, want: "no Turn reports a lost journal"},
	} {
		t.Run(name, func(t *testing.T) {
			turns, wiped := make([]v1alpha1.Turn, turnsPerRound), map[string]int{}
			for i := range turns {
				turns[i].Name = fmt.Sprintf("round-%02d", i)
				setMessage(&turns[i], "done")
				wiped[turns[i].Name] = 1
			}
			turns[0].Status.Steps = &v1alpha1.StepCounts{UnknownOutcomes: 1}
			if tc.change != nil {
				tc.change(turns, wiped)
			}
			r := result{round: round{lost: tc.lost}, Ends: map[string]int{}}
			r.check(turns, wiped)
			switch {
			case tc.want == "" && len(r.Failures) > 0:
				t.Errorf("failures = %v, want none", r.Failures)
			case tc.want != "" && (len(r.Failures) != 1 || !strings.Contains(r.Failures[0], tc.want)):
				t.Errorf("failures = %v, want one with %q", r.Failures, tc.want)
			}
		})
	}
}

// loseJournal marks the journal of a Turn as lost. The Turn then reports this number of unknown outcomes.
func loseJournal(turn *v1alpha1.Turn, unknown int32) {
	turn.Status.Steps = &v1alpha1.StepCounts{UnknownOutcomes: unknown}
	turn.Status.Conditions = append(turn.Status.Conditions,
		metav1.Condition{Type: v1alpha1.ConditionJournalLost, Status: metav1.ConditionTrue, Reason: "StoreChanged"})
}

func setMessage(turn *v1alpha1.Turn, message string) {
	turn.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionTrue, Reason: "Completed", Message: message},
	}
}

// TestReadEvents checks that an Event that was emitted again is found in both forms of Events.
func TestReadEvents(t *testing.T) {
	const repeated = "[] the Event Ready was emitted more than once: m"
	for list, want := range map[string]string{
		`{"items": [{"type": "Normal", "reason": "Ready", "message": "m", "count": 1}]}`: "[{Normal Ready m}] <nil>",
		`{"items": [{"reason": "Ready", "message": "m", "count": 2}]}`:                   repeated,
		`{"items": [{"reason": "Ready", "message": "m", "series": {"count": 2}}]}`:       repeated,
	} {
		all, err := readEvents(list)
		if got := fmt.Sprint(all, err); got != want {
			t.Errorf("%s is read as %s, want %s", list, got, want)
		}
	}
}

// TestCell checks that a cell of a table is found by its column, also if cells are empty or are not in ASCII.
func TestCell(t *testing.T) {
	const table = "NAME      STATE     STEPS   AGE   ANSWER   MESSAGE\n" +
		"limited   Faïled            2s    é x      it took  too long\n"
	for column, want := range map[string]string{
		"NAME": "limited", "STATE": "Faïled", "STEPS": "", "AGE": "2s", "ANSWER": "é x", "MESSAGE": "it took  too long",
	} {
		if got, err := cell(table, column); err != nil || got != want {
			t.Errorf("column %s = %q (%v), want %q", column, got, err, want)
		}
	}
	for name, tc := range map[string]struct{ table, column string }{
		"another column": {table, "COST"}, "no row": {"NAME\n", "NAME"}, "two rows": {"NAME\na\nb\n", "NAME"}, "nothing": {"", "NAME"},
	} {
		if got, err := cell(tc.table, tc.column); err == nil {
			t.Errorf("%s: cell = %q, want an error", name, got)
		}
	}
	if got, err := cell("NAME   MESSAGE\na\n", "MESSAGE"); err != nil || got != "" {
		t.Errorf("an empty last cell = %q (%v), want an empty text", got, err)
	}
}

// TestForwardedAddress checks how the address is read from what kubectl port-forward prints.
func TestForwardedAddress(t *testing.T) {
	found := forwarded.FindStringSubmatch("Forwarding from 127.0.0.1:41731 -> 8081\n")
	if len(found) != 2 || found[1] != "127.0.0.1:41731" {
		t.Errorf("found %q, want the address", found)
	}
}

// TestExecutorsWithoutPod checks that only executors without a Pod count as gone, and no Leases of stores.
func TestExecutorsWithoutPod(t *testing.T) {
	leases := []string{"capstan-executor-a", "capstan-executor-b", "capstan-store-1"}
	if got := executorsWithoutPod(leases, []string{"b", "c"}); !slices.Equal(got, []string{"a"}) {
		t.Errorf("executors without a Pod = %q, want only a", got)
	}
}

// TestNotesCommands checks that only the commands of one paragraph are used.
func TestNotesCommands(t *testing.T) {
	notes := "Installed.\n\n   kubectl get pods\n\nFor a first answer, run:\n\n   kubectl create namespace a\n  " +
		" kubectl apply -f b\n\nThe last one ends.\n\n   kubectl get turn\n"
	if got, want := notesCommands(notes), []string{"kubectl create namespace a", "kubectl apply -f b"}; !slices.Equal(got, want) {
		t.Errorf("commands = %q, want %q", got, want)
	}
	if got := notesCommands("none"); len(got) != 0 {
		t.Errorf("commands = %q, want none", got)
	}
}

// TestTakeOverTime checks that the guaranteed time begins with the loss of the manager. The delay of the new
// container beyond a prompt start is added.
func TestTakeOverTime(t *testing.T) {
	for name, tc := range map[string]struct {
		abrupt               bool
		gone, started, first float64
		all                  float64 // 0: irrelevant, because gone is known
		fails                bool
	}{
		"in time":                    {abrupt: true, started: 1, first: 14.9},
		"too late":                   {abrupt: true, started: 1, first: 15.1, fails: true},
		"the container started late": {abrupt: true, started: 6, first: 18.9},
		"the container started late, and the Turn was bound too late": {abrupt: true, started: 6, first: 19.1, fails: true},
		"after the grace time":                                  {started: 31, first: 43.9},
		"after the grace time, too late":                        {started: 31, first: 44.1, fails: true},
		"stopped before the end of its time":                    {started: 1, first: 13.9},
		"stopped immediately, and taken over too late":          {started: 1, first: 14.1, fails: true},
		"stopped after its grace time, next to the new Pod":     {gone: 25, started: 1, first: 37.9},
		"stopped after its grace time, and taken over too late": {gone: 25, started: 1, first: 38.1, fails: true},
		"all Turns moved before the old Pod was gone":           {started: 1, first: 26.2, all: 26.2},
		"killed, and its Pod stayed for long":                   {abrupt: true, gone: 25, started: 1, first: 15.1, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
			r := result{round: round{abrupt: tc.abrupt}, Gone: seconds(tc.gone), Started: seconds(tc.started), First: seconds(tc.first)}
			r.All = seconds(tc.all)
			if r.checkTakeOver(); len(r.Failures) > 0 != tc.fails {
				t.Errorf("failures = %v, want some: %t", r.Failures, tc.fails)
			}
		})
	}
}

// TestSomeCallsOutlastTheGraceTime checks the longest call in all rounds in which the manager has a grace period.
func TestSomeCallsOutlastTheGraceTime(t *testing.T) {
	for _, r := range rounds {
		if longest := r.seconds(turnsPerRound - 1); !r.abrupt && longest <= grace {
			t.Errorf("round %s: the longest call takes %d s, want more than the grace time of %d s", r.name, longest, grace)
		}
	}
}

func TestCallsOfARoundTakeDifferentTimes(t *testing.T) {
	seconds := upTo(8)
	if first, last := seconds(0), seconds(turnsPerRound-1); first != 2 || last != 8 {
		t.Errorf("calls take %d to %d s, want 2 to 8", first, last)
	}
}

// TestHasNewerSchema checks that the migrations of the previous version are compared with the current ones.
func TestHasNewerSchema(t *testing.T) {
	e2e := &test{options: options{root: "../..", programs: t.TempDir()}}
	if _, err := e2e.hasNewerSchema(); err == nil {
		t.Error("hasNewerSchema succeeds without the list of the previous migrations")
	}
	if err := os.Mkdir(e2e.previous(""), 0o755); err != nil {
		t.Fatal(err)
	}
	current, err := os.ReadDir("../../internal/store/sqlite/migrations")
	if err != nil {
		t.Fatal(err)
	}
	list := ""
	for i, file := range current {
		list += file.Name() + "\n"
		if err := os.WriteFile(e2e.previous("migrations"), []byte(list), 0o600); err != nil {
			t.Fatal(err)
		}
		if newer, err := e2e.hasNewerSchema(); err != nil || newer != (i+1 < len(current)) {
			t.Errorf("with %d of %d migrations, hasNewerSchema is %t, %v", i+1, len(current), newer, err)
		}
	}
}

// TestChooseVictim checks that the executor with the most Turns is chosen, and that only its Turns count as in flight.
func TestChooseVictim(t *testing.T) {
	for name, tc := range map[string]struct {
		old  map[string]string
		want string
		left int
	}{
		"two":               {map[string]string{"a": "x", "b": "y", "c": "y"}, "y", 2},
		"as many on both":   {map[string]string{"a": "y", "b": "x"}, "x", 1},
		"one alone":         {map[string]string{"a": "x", "b": "x"}, "", 2},
		"nothing in flight": {map[string]string{}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := chooseVictim(tc.old); got != tc.want || len(tc.old) != tc.left {
				t.Errorf("victim = %q with %d Turns, want %q with %d", got, len(tc.old), tc.want, tc.left)
			}
		})
	}
}

// TestSelectRounds checks that a misspelt name is an error. Without the error, the test would run no round and pass.
func TestSelectRounds(t *testing.T) {
	for names, want := range map[string]string{
		"force,delete": "delete force", "postgres": "postgres", "delete,forced": `there is no round "forced", only delete, force, `,
		"delete,": `there is no round ""`,
	} {
		selected, err := selectRounds(names)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: error %v, want %q", names, err, want)
			}
			continue
		}
		var got []string
		for _, r := range selected {
			got = append(got, r.name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q selects %q, want %q", names, got, want)
		}
	}
	if all, err := selectRounds(""); err != nil || len(all) != len(rounds) {
		t.Errorf("without names: %d rounds (%v), want all %d", len(all), err, len(rounds))
	}
}
