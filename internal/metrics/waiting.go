package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Wait is why Turns of a namespace wait: the reason of their main condition.
type Wait struct{ Namespace, Reason string }

// Waiting tells how to find out how many Turns wait. count is asked by each scrape, must return soon and must be safe for concurrent use.
func Waiting(count func() map[Wait]int) { waiting.count.Store(&count) }

// waits has the gauge of Turns that wait. It is shown by the process that controls.
type waits struct {
	count atomic.Pointer[func() map[Wait]int]
}

var turnsWaiting = prometheus.NewDesc("capstan_turns_waiting",
	"Turns that wait for their start, or to go on, by the reason of their main condition. Those that wait for people or sub-agents are not among them.",
	[]string{"namespace", "reason"}, nil)

// Describe sends the description of the gauge.
func (w *waits) Describe(out chan<- *prometheus.Desc) { out <- turnsWaiting }

// Collect sends how many Turns wait now. The namespaces are bounded as those of all metrics are.
func (w *waits) Collect(out chan<- prometheus.Metric) {
	count := w.count.Load()
	if count == nil {
		return
	}
	shown := map[Wait]int{}
	for wait, n := range (*count)() {
		known.in(wait.Namespace, func(label string, _ *namespaceSeries) { shown[Wait{label, wait.Reason}] += n })
	}
	for wait, n := range shown {
		out <- prometheus.MustNewConstMetric(turnsWaiting, prometheus.GaugeValue, float64(n), wait.Namespace, wait.Reason)
	}
}
