package quota_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/store"
)

// forecast is a Meter for an empty store, with a quota of 100 MiB for each namespace.
type forecast struct {
	*quota.Meter
	t       *testing.T
	journal journal.Journal
}

func newForecast(t *testing.T) *forecast {
	t.Helper()
	m := &quota.Meter{
		Store: &uses{use: store.Use{Free: -1}}, Limits: quota.Limits{PerNamespace: 100 << 20},
		Forecast: &quota.Forecast{}, Log: logr.Discard(),
	}
	return &forecast{Meter: m, t: t, journal: m.Journal(&journaltest.Store{})}
}

// write makes a Turn write about the given number of MiB.
func (f *forecast) write(uid string, mebibytes int) {
	f.t.Helper()
	payload := json.RawMessage(`"` + strings.Repeat("x", mebibytes<<20) + `"`)
	if err := f.journal.Append(f.t.Context(), uid,
		journal.Entry{Seq: 1, Epoch: 1, Kind: journal.ModelReplied, Version: 1, Payload: payload}); err != nil {
		f.t.Fatal(err)
	}
}

// verdict returns the current verdict for namespace "a".
func (f *forecast) verdict() quota.Verdict {
	f.t.Helper()
	if err := f.Measure(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return quota.Decode(f.Last().Encode()).VerdictFor("a")
}

func TestExpectedBytesCount(t *testing.T) {
	f := newForecast(t)
	begin := func(first, end int) {
		for i := first; i < end; i++ {
			f.Forecast.Begin(fmt.Sprint("turn-", i), "a", true)
		}
	}
	begin(0, 30)
	if v := f.verdict(); v.New {
		t.Errorf("%+v before a Turn has ended, want no wait: at most 30 MiB are expected", v)
	}
	f.write("turn-0", 4)
	f.Forecast.End("turn-0", true)
	v := f.verdict()
	if want := "use 0.0 KiB of their quota of 100 MiB, and running Turns will write about 116 MiB more; new Turns wait"; !v.New ||
		v.Running || !strings.Contains(v.Message, want) {
		t.Errorf("%+v, want new Turns to wait, running Turns to continue, and a message with %q", v, want)
	}
	for i := 1; i < 15; i++ {
		f.write(fmt.Sprint("turn-", i), 4)
	}
	if v := f.verdict(); v.New {
		t.Errorf("%+v, want no wait: 14 of the running Turns have written the usual size", v)
	}
	begin(1, 15)
	f.Forecast.End("turn-0", true)
	f.Forecast.End("never", true)
	if v := f.verdict(); v.New {
		t.Errorf("%+v, want no wait: a second Begin or End has no effect, nor has an End without a Begin", v)
	}
	begin(30, 36)
	if v := f.verdict(); !v.New {
		t.Errorf("%+v, want new Turns to wait: six more Turns run", v)
	}
	for i := range 36 {
		f.Forecast.End(fmt.Sprint("turn-", i), false)
	}
	if v := f.verdict(); v.New {
		t.Errorf("%+v after the Turns have ended, want no wait", v)
	}
}

// TestFirstTurnsOfANamespace checks that a namespace cannot begin any number of Turns before the first one has ended,
// and that runs that continue do not count: after a restart, thousands of them may begin, and have written all before.
func TestFirstTurnsOfANamespace(t *testing.T) {
	f := newForecast(t)
	for i := range 1000 {
		f.Forecast.Begin(fmt.Sprint("resumed-", i), "a", false)
	}
	f.verdict() // the guess depends on the quota: 800 KiB for each Turn of a namespace with 100 MiB
	for i := range 102 {
		f.Forecast.Begin(fmt.Sprint("turn-", i), "a", true)
	}
	if v := f.verdict(); v.New {
		t.Errorf("%+v with 102 Turns, want no wait", v)
	}
	f.Forecast.Begin("turn-102", "a", true)
	if v := f.verdict(); !v.New || v.Running {
		t.Errorf("%+v with 103 Turns, want new Turns to wait, and running Turns to continue", v)
	}
	f.Forecast.End("turn-0", true)
	if v := f.verdict(); v.New {
		t.Errorf("%+v, want no wait: the first Turn has ended and wrote nothing", v)
	}
}

// TestExecutorsReserveTogether checks that the reservations of several executors are added up. The usual journal has 4
// MiB, and the quota is 100 MiB, so 20 Turns reserve 80 %.
func TestExecutorsReserveTogether(t *testing.T) {
	const executors = 3
	for turns, want := range map[int]bool{1: false, 19: false, 20: true, 21: true, 60: true} {
		t.Run(fmt.Sprint(turns), func(t *testing.T) {
			var all [executors]*forecast
			for i := range all {
				f := newForecast(t)
				f.SetExecutors(executors)
				f.Forecast.Begin("first", "a", true)
				f.write("first", 4)
				f.Forecast.End("first", true)
				all[i] = f
			}
			for i := range turns {
				all[i%executors].Forecast.Begin(fmt.Sprint("turn-", i), "a", true)
			}
			reports := []*quota.Report{nil}
			for _, f := range all {
				f.verdict()
				reports = append(reports, quota.Decode(f.Last().Encode()))
			}
			combined := quota.Combine(reports...)
			if v := combined.VerdictFor("a"); v.New != want || v.Running {
				t.Errorf("%+v with %d Turns, want new Turns to wait: %t, and running Turns to continue", v, turns, want)
			}
			if got := len(combined.WaitingNamespaces()) > 0; got != want {
				t.Errorf("the waiting namespaces are %q, want the namespace among them: %t", combined.WaitingNamespaces(), want)
			}
		})
	}
}

// TestStrictestReportCounts checks which of two budgets counts, in any order.
func TestStrictestReportCounts(t *testing.T) {
	for name, tc := range map[string]struct{ strict, other quota.Budget }{
		"the quota is used up":           {quota.Budget{Used: 100, Limit: 100}, quota.Budget{Used: 199, Limit: 200, Share: 400}},
		"less space":                     {quota.Budget{Used: 70, Limit: 100}, quota.Budget{Used: 150, Limit: 1000}},
		"no quota in the other executor": {quota.Budget{Used: 1, Limit: 100}, quota.Budget{Used: 1000}},
	} {
		for _, budgets := range [][]quota.Budget{{tc.strict, tc.other}, {tc.other, tc.strict}} {
			var reports []*quota.Report
			for _, b := range budgets {
				reports = append(reports, &quota.Report{Total: b, Namespaces: map[string]quota.Budget{"a": b}})
			}
			if got := quota.Combine(reports...); got.Total != tc.strict || got.Namespaces["a"] != tc.strict {
				t.Errorf("%s: %+v, want %+v for all and for the namespace", name, got, tc.strict)
			}
		}
	}
}

func TestForecastFollowsTheTurns(t *testing.T) {
	f := newForecast(t)
	for i := range 40 {
		uid := fmt.Sprint("turn-", i)
		f.Forecast.Begin(uid, "a", true)
		if i == 0 {
			f.write(uid, 64)
		}
		f.Forecast.End(uid, true)
	}
	f.Forecast.Begin("next", "a", true)
	if v := f.verdict(); v.New {
		t.Errorf("%+v, want no wait: only one journal was long, and that was long ago", v)
	}
	f.Forecast.Begin("resumed", "a", false)
	f.write("resumed", 90)
	f.Forecast.End("resumed", false)
	if v := f.verdict(); v.New {
		t.Errorf("%+v, want no wait: only a part of that journal is known", v)
	}
}

func TestForecastForgetsANamespaceForANewOne(t *testing.T) {
	f := newForecast(t)
	ended := func(namespace string, mebibytes int) {
		f.Forecast.Begin(namespace, namespace, true)
		f.write(namespace, mebibytes)
		f.Forecast.End(namespace, true)
	}
	for i := range 4096 {
		ended(fmt.Sprint("namespace-", i), 0)
	}
	ended("a", 90)
	f.Forecast.Begin("next", "a", true)
	if v := f.verdict(); !v.New {
		t.Errorf("%+v, want new Turns to wait: the newest namespace must be known", v)
	}
}

func TestNilForecastExpectsNothing(t *testing.T) {
	var f *quota.Forecast
	f.Begin("turn", "a", true)
	f.End("turn", true)
	m := newForecast(t)
	m.Forecast = nil
	m.write("turn", 1)
	if v := m.verdict(); v.New {
		t.Errorf("%+v, want no wait", v)
	}
}
