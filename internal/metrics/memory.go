package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/capstan-dev/capstan/internal/bytebudget"
)

// SetMemoryBudget sets the budget whose use the gauges show. The only label of the gauges is the kind: namespaces would
// make too many series.
func SetMemoryBudget(b *bytebudget.Budget) { memory.budget.Store(b) }

// memoryUse collects the gauges of the memory budget. They are exported once a budget is set.
type memoryUse struct {
	budget atomic.Pointer[bytebudget.Budget]
}

var memory = &memoryUse{}

// memoryGauges are the gauges of each kind.
var memoryGauges = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(bytebudget.Use) int64
}{
	{
		byKind("capstan_memory_bytes", "Bytes of the memory budget that namespaces hold."), prometheus.GaugeValue,
		func(u bytebudget.Use) int64 { return u.Bytes },
	},
	{
		byKind("capstan_memory_budget_bytes", "Bytes of the memory budget."), prometheus.GaugeValue,
		func(u bytebudget.Use) int64 { return u.Size },
	},
	{
		byKind("capstan_memory_waiting", "Reservations of memory that wait."), prometheus.GaugeValue,
		func(u bytebudget.Use) int64 { return int64(u.Waiting) },
	},
	{
		byKind("capstan_memory_refused_total", "Reservations of memory that were refused."), prometheus.CounterValue,
		func(u bytebudget.Use) int64 { return u.Refused },
	},
}

func byKind(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"kind"}, nil)
}

// Describe sends the descriptions of all gauges.
func (m *memoryUse) Describe(out chan<- *prometheus.Desc) {
	for _, g := range memoryGauges {
		out <- g.desc
	}
}

// Collect sends the current use.
func (m *memoryUse) Collect(out chan<- prometheus.Metric) {
	b := m.budget.Load()
	if b == nil {
		return
	}
	for _, kind := range bytebudget.Kinds() {
		u := b.Use(kind)
		for _, g := range memoryGauges {
			out <- prometheus.MustNewConstMetric(g.desc, g.kind, float64(g.value(u)), string(kind))
		}
	}
}
