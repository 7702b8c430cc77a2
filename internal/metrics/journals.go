package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/capstan-dev/capstan/internal/store"
)

// SetJournalSize sets the size of the store of the journals.
func SetJournalSize(s store.Size) { journals.size.Store(&s) }

// Purged counts journals that were purged.
func Purged(n int) { purged.Add(float64(n)) }

// journalSize collects the gauges of the store. Only the process that measures the store exports them, after its first
// measurement: zeros from other processes would be wrong.
type journalSize struct{ size atomic.Pointer[store.Size] }

// gauges are the gauges of the store.
var gauges = []struct {
	desc  *prometheus.Desc
	value func(*store.Size) int64
}{
	{
		gauge("capstan_journals", "Journals of turns and sessions in the store, including retired journals."),
		func(s *store.Size) int64 { return s.Journals },
	},
	{
		gauge("capstan_journals_retired", "Journals of deleted turns and sessions that wait to be purged."),
		func(s *store.Size) int64 { return s.Retired },
	},
	{gauge("capstan_journal_entries", "Entries of all journals."), func(s *store.Size) int64 { return s.Entries }},
	{gauge("capstan_journal_artifacts", "Artifacts of all journals."), func(s *store.Size) int64 { return s.Artifacts }},
	{gauge("capstan_journal_bytes", "Bytes that the store of the journals uses."), func(s *store.Size) int64 { return s.Bytes }},
}

func gauge(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }

// Describe sends the descriptions of all gauges.
func (j *journalSize) Describe(out chan<- *prometheus.Desc) {
	for _, g := range gauges {
		out <- g.desc
	}
}

// Collect sends the gauges with the values of the last measurement.
func (j *journalSize) Collect(out chan<- prometheus.Metric) {
	s := j.size.Load()
	if s == nil {
		return
	}
	for _, g := range gauges {
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(g.value(s)))
	}
}
