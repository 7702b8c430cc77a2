package quota_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/store"
)

const gib = 1 << 30

// verdict returns the verdict for namespace a as letters: n if new Turns wait, r if running Turns wait as well.
func verdict(l quota.Limits, u store.Use, expected map[string]int64) string {
	report := l.Evaluate(u, expected)
	v := quota.Decode(report.Encode()).VerdictFor("a")
	text := ""
	if v.New {
		text += "n"
	}
	if v.Running {
		text += "r"
	}
	if (v.Message != "") != (text != "") {
		text += " message " + v.Message
	}
	return text
}

func TestEvaluate(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		limits quota.Limits
		use    store.Use
		want   string
	}{
		"no quota, unknown volume": {
			"without a quota, no Turn waits",
			quota.Limits{},
			store.Use{Bytes: 100 * gib, Free: -1, Namespaces: map[string]int64{"a": 100 * gib}},
			"",
		},
		"empty volume": {"", quota.Limits{}, store.Use{Bytes: 4096, Free: 100 * gib}, ""},
		"below": {
			"",
			quota.Limits{PerNamespace: 10 * gib},
			store.Use{Free: -1, Namespaces: map[string]int64{"a": 8*gib - 1000}},
			"",
		},
		"80 % of a namespace": {
			"new Turns wait, and running Turns continue",
			quota.Limits{PerNamespace: 10 * gib},
			store.Use{Free: -1, Namespaces: map[string]int64{"a": 8 * gib}},
			"n",
		},
		"100 % of a namespace": {
			"running Turns wait as well",
			quota.Limits{PerNamespace: 10 * gib},
			store.Use{Free: -1, Namespaces: map[string]int64{"a": 10 * gib}},
			"nr",
		},
		"another namespace": {
			"another namespace is not affected",
			quota.Limits{PerNamespace: 10 * gib},
			store.Use{Free: -1, Namespaces: map[string]int64{"a": gib, "b": 20 * gib}},
			"",
		},
		"80 % of all":      {"", quota.Limits{Total: 10 * gib}, store.Use{Bytes: 8 * gib, Free: -1}, "n"},
		"100 % of all":     {"", quota.Limits{Total: 10 * gib}, store.Use{Bytes: 10 * gib, Free: -1}, "nr"},
		"the volume":       {"nine tenths of the volume are for journals", quota.Limits{}, store.Use{Bytes: 73 * gib, Free: 27 * gib}, "n"},
		"the volume, full": {"", quota.Limits{}, store.Use{Bytes: 91 * gib, Free: 9 * gib}, "nr"},
		"another process": {
			"other data leaves less of the volume for journals",
			quota.Limits{},
			store.Use{Bytes: 9 * gib, Free: 2 * gib},
			"n",
		},
		"more than the volume": {
			"a quota cannot exceed the volume",
			quota.Limits{Total: 1000 * gib},
			store.Use{Bytes: 73 * gib, Free: 27 * gib},
			"n",
		},
		"alone": {
			"a namespace alone may have half",
			quota.Limits{Total: 90 * gib},
			store.Use{Bytes: 39 * gib, Free: -1, Namespaces: map[string]int64{"a": 39 * gib}},
			"",
		},
		"alone, tight": {
			"",
			quota.Limits{Total: 90 * gib},
			store.Use{Bytes: 41 * gib, Free: -1, Namespaces: map[string]int64{"a": 41 * gib}},
			"n",
		},
		"alone, half": {
			"",
			quota.Limits{Total: 90 * gib},
			store.Use{Bytes: 45 * gib, Free: -1, Namespaces: map[string]int64{"a": 45 * gib}},
			"nr",
		},
		"two": {
			"with two namespaces, new Turns of one wait from a third of the quota, and its running Turns stop at half",
			quota.Limits{Total: 90 * gib},
			store.Use{Bytes: 60 * gib, Free: -1, Namespaces: map[string]int64{"a": 30 * gib, "b": 30 * gib}},
			"n",
		},
		"two, one with half": {
			"it stops although the other namespace has less",
			quota.Limits{Total: 90 * gib},
			store.Use{Bytes: 83 * gib, Free: -1, Namespaces: map[string]int64{"a": 45 * gib, "b": 38 * gib}},
			"nr",
		},
		"two, one with less": {
			"it continues although the other namespace has half",
			quota.Limits{Total: 90 * gib},
			store.Use{Bytes: 83 * gib, Free: -1, Namespaces: map[string]int64{"a": 38 * gib, "b": 45 * gib}},
			"n",
		},
		"with a new namespace": {
			"running Turns of a do not stop because b is new",
			quota.Limits{Total: 100 * gib},
			store.Use{Bytes: 57 * gib, Free: -1, Namespaces: map[string]int64{"a": 43 * gib, "b": 14 * gib}},
			"n",
		},
		"with many namespaces that use little": {"they do not make the shares small", quota.Limits{Total: 100 * gib}, store.Use{
			Bytes: 59 * gib, Free: -1,
			Namespaces: map[string]int64{"a": 43 * gib, "b": 4 * gib, "c": 4 * gib, "d": 4 * gib, "e": 4 * gib},
		}, "n"},
		"three namespaces": {
			"a third each",
			quota.Limits{Total: 90 * gib},
			store.Use{Bytes: 70 * gib, Free: -1, Namespaces: map[string]int64{"a": 30 * gib, "b": 20 * gib, "c": 20 * gib}},
			"nr",
		},
		"with a large namespace": {
			"the small namespace continues while the large one waits",
			quota.Limits{Total: 90 * gib},
			store.Use{Bytes: 50 * gib, Free: -1, Namespaces: map[string]int64{"a": 5 * gib, "b": 45 * gib}},
			"",
		},
		"namespace and total": {
			"its own quota takes precedence over the share",
			quota.Limits{Total: 90 * gib, PerNamespace: 60 * gib},
			store.Use{Bytes: 45 * gib, Free: -1, Namespaces: map[string]int64{"a": 45 * gib}},
			"",
		},
		"no bytes free, small use": {
			"the total is used up, so it does not matter how little the namespace uses",
			quota.Limits{Total: gib},
			store.Use{Bytes: 2 * gib, Free: -1, Namespaces: map[string]int64{"a": 5}},
			"nr",
		},
	} {
		if got := verdict(tc.limits, tc.use, nil); got != tc.want {
			t.Errorf("%s: %q, want %q: %s", name, got, tc.want, tc.reason)
		}
	}
}

// TestTotalQuota checks the quota of all journals on volumes whose file system does, or does not, enforce their size.
func TestTotalQuota(t *testing.T) {
	for name, tc := range map[string]struct {
		limits quota.Limits
		use    store.Use
		want   int64
	}{
		"a file system of the volume's size": {quota.Limits{}, store.Use{Bytes: gib, Free: 9 * gib}, 9 * gib},
		"a larger file system":               {quota.Limits{Volume: 10 * gib}, store.Use{Bytes: gib, Free: 800 * gib}, 9 * gib},
		"a file system that is almost full":  {quota.Limits{Volume: 100 * gib}, store.Use{Bytes: gib, Free: 9 * gib}, 9 * gib},
		"a volume that is full": {
			quota.Limits{Volume: 10 * gib}, store.Use{Bytes: 11 * gib, Free: 800 * gib}, 9 * gib,
		},
		"a quota that was set": {
			quota.Limits{Volume: 10 * gib, Total: 20 * gib}, store.Use{Bytes: gib, Free: 800 * gib}, 20 * gib,
		},
		"a quota that was set, on a smaller file system": {
			quota.Limits{Volume: 10 * gib, Total: 20 * gib}, store.Use{Bytes: gib, Free: 4 * gib}, 5 * gib / 10 * 9,
		},
		"a store that does not know its free space": {quota.Limits{Volume: 10 * gib}, store.Use{Bytes: gib, Free: -1}, 0},
	} {
		if r := tc.limits.Evaluate(tc.use, nil); r.Total.Limit != tc.want {
			t.Errorf("%s: the quota is %d, want %d", name, r.Total.Limit, tc.want)
		}
	}
}

// TestExpectedBytesAreNotFree checks that expected bytes count like written bytes when the free bytes of the total
// quota are shared.
func TestExpectedBytesAreNotFree(t *testing.T) {
	for name, tc := range map[string]struct {
		used, expected map[string]int64
		want           string
	}{
		"alone":                        {map[string]int64{"a": 1}, map[string]int64{"a": 38}, ""},
		"alone, expected to have half": {map[string]int64{"a": 1}, map[string]int64{"a": 40}, "n"},
		"another will have half":       {map[string]int64{"a": 5}, map[string]int64{"b": 40}, ""},
		"little, and another will have more than the whole quota": {map[string]int64{"a": 3}, map[string]int64{"b": 100}, ""},
		"more, and another will have more than the whole quota":   {map[string]int64{"a": 4}, map[string]int64{"b": 100}, "n"},
		"running Turns do not wait for their own expected bytes": {
			map[string]int64{"a": 35, "b": 6, "c": 6}, map[string]int64{"a": 15}, "n",
		},
	} {
		use, expected := store.Use{Free: -1, Namespaces: map[string]int64{}}, map[string]int64{}
		for namespace, n := range tc.used {
			use.Namespaces[namespace] = n * gib
			use.Bytes += n * gib
		}
		for namespace, n := range tc.expected {
			expected[namespace] = n * gib
		}
		if got := verdict(quota.Limits{Total: 90 * gib}, use, expected); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestMessages(t *testing.T) {
	for name, tc := range map[string]struct {
		report quota.Report
		want   string
	}{
		"a namespace": {
			quota.Report{
				Total:      quota.Budget{Used: 5 * gib, Limit: 20 * gib},
				Namespaces: map[string]quota.Budget{"a": {Used: 3*gib + gib/4, Limit: 4 * gib}},
			},
			`the journals of namespace "a" use 3.2 GiB of their quota of 4.0 GiB; new Turns wait from 80 %: ` +
				`have an administrator raise --journal-quota-per-namespace or lower --journal-retention, or delete finished ` +
				`Turns and Sessions, whose journals count until --journal-retention has passed since the deletion`,
		},
		"all": {
			quota.Report{Total: quota.Budget{Used: 17 * gib, Limit: 20 * gib}},
			"the journals of all namespaces use 17 GiB of 20 GiB; new Turns wait from 80 %: have an administrator " +
				"enlarge the volume (with --journal-volume-size), raise --journal-quota or lower --journal-retention, or delete finished " +
				"Turns and Sessions, whose journals count until --journal-retention has passed since the deletion",
		},
	} {
		if got := tc.report.VerdictFor("a").Message; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestReportIsBounded checks that the size of a Report is limited, because a Lease holds it.
func TestReportIsBounded(t *testing.T) {
	u := store.Use{Free: -1, Namespaces: map[string]int64{}}
	for i := range 10_000 {
		u.Namespaces[fmt.Sprintf("%063d", i)] = 2*gib + int64(i)
	}
	r := quota.Limits{PerNamespace: gib}.Evaluate(u, nil)
	if len(r.Namespaces) != 500 || len(r.Encode()) > 100_000 || !r.VerdictFor(fmt.Sprintf("%063d", 9999)).Running {
		t.Errorf("%d namespaces in %d bytes; want the 500 fullest in less than 100 kB", len(r.Namespaces), len(r.Encode()))
	}
	for _, text := range []string{"", "{", "[]", `{"total":{"used":"x"}}`} {
		if got := quota.Decode(text); got != nil {
			t.Errorf("Decode(%q) = %+v, want nothing", text, got)
		}
	}
	if v := (*quota.Report)(nil).VerdictFor("a"); v != (quota.Verdict{}) {
		t.Errorf("without a report: %+v, want no wait", v)
	}
}

// uses is a store whose use the test sets.
type uses struct {
	use store.Use
	err error
}

func (u *uses) Use(context.Context) (store.Use, error) { return u.use, u.err }

func TestMeterKeepsTheLastReport(t *testing.T) {
	s := &uses{use: store.Use{Free: -1, Namespaces: map[string]int64{"a": gib}}}
	var changed []*quota.Report
	m := &quota.Meter{
		Store: s, Limits: quota.Limits{PerNamespace: gib}, Log: logr.Discard(),
		Changed: func(r *quota.Report) { changed = append(changed, r) },
	}
	if m.Last() != nil {
		t.Error("there is a report before the first measurement")
	}
	if err := m.Measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.err = errors.New("the database is away")
	if err := m.Measure(t.Context()); err == nil || !strings.Contains(err.Error(), "away") {
		t.Errorf("Measure: %v, want the failure", err)
	}
	if diff := cmp.Diff([]*quota.Report{m.Last()}, changed); diff != "" || !m.Last().VerdictFor("a").Running {
		t.Errorf("reports: -want +got:\n%s; want only the first one", diff)
	}
}

// counted counts the measurements.
type counted struct{ measurements atomic.Int64 }

func (c *counted) Use(context.Context) (store.Use, error) {
	c.measurements.Add(1)
	return store.Use{Bytes: 1 << 20, Free: -1}, nil
}

// delayed is a store whose first measurements take these times. All later measurements take no time.
type delayed struct {
	counted
	takes []time.Duration
}

func (d *delayed) Use(ctx context.Context) (store.Use, error) {
	if n := int(d.measurements.Load()); n < len(d.takes) {
		time.Sleep(d.takes[n]) // on the fake clock
	}
	return d.counted.Use(ctx)
}

// TestMeterPausesOnlyForASlowStore checks that a single slow measurement does not delay the next one, and that the
// store is rarely measured if measurements stay slow.
func TestMeterPausesOnlyForASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &delayed{takes: []time.Duration{0, time.Second, 0, time.Second, 2 * time.Second}}
		m := &quota.Meter{Store: s, Limits: quota.Limits{Total: 64 << 20}, Log: logr.Discard()}
		ended := make(chan error, 1)
		go func() { ended <- m.Start(ctx) }()
		for i, wait := range []time.Duration{0, 6 * time.Second, 5 * time.Second, 6 * time.Second, 7 * time.Second, 20 * time.Second} {
			time.Sleep(wait)
			synctest.Wait()
			if got := s.measurements.Load(); got != int64(i)+1 {
				t.Errorf("%d measurements after a pause of %s, want %d", got, wait, i+1)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
}

// TestMeterMeasuresSoonAfterMuchWasAppended checks when the store is measured early, on a fake clock.
func TestMeterMeasuresSoonAfterMuchWasAppended(t *testing.T) {
	for name, limits := range map[string]quota.Limits{
		"total":                          {Total: 64 << 20},
		"per namespace":                  {PerNamespace: 64 << 20},
		"per namespace, below the total": {Total: 1 << 40, PerNamespace: 64 << 20},
	} {
		t.Run(name, func(t *testing.T) { checkEarlyMeasurements(t, limits) })
	}
}

// checkEarlyMeasurements checks how many appended bytes cause an early measurement: 1/64 of the lowest quota, which is
// 1 MiB for each of the limits.
func checkEarlyMeasurements(t *testing.T, limits quota.Limits) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &counted{}
		m := &quota.Meter{Store: s, Limits: limits, Forecast: &quota.Forecast{}, Log: logr.Discard()}
		j := m.Journal(&journaltest.Store{})
		ended := make(chan error, 1)
		go func() { ended <- m.Start(ctx) }()
		seq := int64(0)
		write := func(bytes int) {
			t.Helper()
			seq++
			payload := json.RawMessage(`"` + strings.Repeat("x", bytes-2) + `"`)
			if err := j.Append(ctx, "turn", journal.Entry{
				Seq: seq, Epoch: 1, Kind: journal.ModelReplied, Version: 1,
				Payload: payload,
			}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		after := func(wait time.Duration, want int64, why string) {
			t.Helper()
			time.Sleep(wait) // on the fake clock
			synctest.Wait()
			if got := s.measurements.Load(); got != want {
				t.Errorf("%d measurements, want %d: %s", got, want, why)
			}
		}
		after(time.Second, 1, "the first measurement is immediate")
		write(1<<20 - 1<<10)
		after(0, 1, "less than 1 MiB causes no measurement")
		write(1 << 10)
		after(0, 2, "the appended bytes reach 1 MiB, which is 1/64 of the quota")
		write(8 << 20)
		after(100*time.Millisecond, 2, "the store is not measured for a moment")
		after(200*time.Millisecond, 3, "then it is measured again")
		after(4*time.Second, 3, "nothing was appended since")
		after(time.Second, 4, "the interval is over")
		begin := func(first, end int) {
			for i := first; i < end; i++ {
				m.Forecast.Begin(fmt.Sprint("turn-", i), "a", false)
			}
		}
		m.Forecast.Begin("turn", "a", false)
		begin(0, 4)
		write(300 << 10)
		after(250*time.Millisecond, 4, "it is unknown how much the Turns will write")
		m.Forecast.End("turn", true)
		after(0, 5, "each of four Turns will write 300 KiB")
		begin(4, 7)
		after(250*time.Millisecond, 5, "three more will write less than 1 MiB")
		begin(7, 8)
		after(0, 6, "four more will write 1 MiB")
		m.Forecast.Begin("first", "b", true)
		after(250*time.Millisecond, 6, "the first Turn of a namespace may write half of 1 MiB")
		m.Forecast.Begin("second", "b", true)
		after(0, 7, "the first two may write 1 MiB")
		if err := j.Append(ctx, "turn", journal.Entry{
			Seq: 1, Epoch: 1, Kind: journal.ModelReplied, Version: 1,
			Payload: json.RawMessage("1"),
		}); !errors.Is(err, journal.ErrSequence) {
			t.Errorf("Append with a sequence number that exists: %v, want ErrSequence", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start: %v", err)
		}
	})
}
