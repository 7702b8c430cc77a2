package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Wait is a group of waiting Turns: their namespace, and the reason of their main condition, or of their Event if they
// can have no condition.
type Wait struct{ Namespace, Reason string }

// SetWaitingCount sets the function that counts the waiting Turns. Each scrape calls the function, so it must return
// soon and must be safe for concurrent use.
func SetWaitingCount(count func() map[Wait]int) { waiting.count.Store(&count) }

// waits collects the gauge of waiting Turns. Only the active controller exports it.
type waits struct {
	count atomic.Pointer[func() map[Wait]int]
}

var turnsWaiting = prometheus.NewDesc("capstan_turns_waiting",
	"Turns that wait to start or to continue, by the reason of their main condition, or StatusRejected if the API "+
		"server rejects each status. Turns that wait for approvals or sub-agents are not counted.",
	[]string{"namespace", "reason"}, nil)

// Describe sends the description of the gauge.
func (w *waits) Describe(out chan<- *prometheus.Desc) { out <- turnsWaiting }

// Collect sends the number of Turns that wait now. The number of namespaces is bounded as for all metrics.
func (w *waits) Collect(out chan<- prometheus.Metric) {
	count := w.count.Load()
	if count == nil {
		return
	}
	shown := map[Wait]int{}
	for wait, n := range (*count)() {
		shown[Wait{known.labelOf(wait.Namespace), wait.Reason}] += n
	}
	for wait, n := range shown {
		out <- prometheus.MustNewConstMetric(turnsWaiting, prometheus.GaugeValue, float64(n), wait.Namespace, wait.Reason)
	}
}

// SetWaitingForSlots sets the function that counts the Turns that executors with more slots would run. Each scrape
// calls the function, so it must return soon and must be safe for concurrent use.
func SetWaitingForSlots(count func() int) { slotDemand.Store(&count) }

// slotDemand is the function of SetWaitingForSlots, or nil in a process without a controller.
var slotDemand atomic.Pointer[func() int]

var waitingForSlots = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
	Name: "capstan_turns_waiting_for_slots",
	Help: "Turns that would run if the executors had more slots. Turns that wait for another reason, such as the limit of " +
		"their Agent, are not counted.",
}, func() float64 {
	if count := slotDemand.Load(); count != nil {
		return float64((*count)())
	}
	return 0
})
