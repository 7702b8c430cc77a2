package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/capstan-dev/capstan/internal/bytebudget"
)

// SetMemoryBudget sets the budget whose use the metrics show. The only label of the metrics is the kind: namespaces
// would make too many series.
func SetMemoryBudget(b *bytebudget.Budget) { memory.budget.Store(b) }

// memoryUse collects the metrics of the memory budget. They are exported once a budget is set.
type memoryUse struct {
	budget atomic.Pointer[bytebudget.Budget]
}

var memory = &memoryUse{}

// memoryMetrics are the metrics of each kind of memory.
var memoryMetrics = []struct {
	desc      *prometheus.Desc
	valueType prometheus.ValueType
	value     func(bytebudget.Use) int64
}{
	{
		byKind("capstan_memory_bytes", "Bytes of RAM that namespaces have reserved."), prometheus.GaugeValue,
		func(u bytebudget.Use) int64 { return u.Bytes },
	},
	{
		byKind("capstan_memory_budget_bytes", "Bytes of RAM in the pool that this kind shares with other kinds: do not add the kinds up."),
		prometheus.GaugeValue,
		func(u bytebudget.Use) int64 { return u.Size },
	},
	{
		byKind("capstan_memory_waiting", "Reservations of RAM that wait."), prometheus.GaugeValue,
		func(u bytebudget.Use) int64 { return int64(u.Waiting) },
	},
	{
		byKind("capstan_memory_refused_total", "Reservations of RAM that were refused."), prometheus.CounterValue,
		func(u bytebudget.Use) int64 { return u.Refused },
	},
}

func byKind(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"kind"}, nil)
}

// Describe sends the descriptions of all metrics.
func (m *memoryUse) Describe(out chan<- *prometheus.Desc) {
	for _, g := range memoryMetrics {
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
		for _, g := range memoryMetrics {
			out <- prometheus.MustNewConstMetric(g.desc, g.valueType, float64(g.value(u)), string(kind))
		}
	}
}
