package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/internal/pace"
)

// mostProviders is the number of ModelProviders that have their own series in one namespace. Of a gauge, these are the
// first in the order of their names; of a counter, the first that were counted.
const mostProviders = 16

// SetModelGates sets the function that returns the use of the gates of ModelProviders. Each scrape calls the function,
// so it must return soon and must be safe for concurrent use.
func SetModelGates(use func() map[types.NamespacedName]pace.Use) { modelGates.use.Store(&use) }

// refusedRequests counts when a request is refused, and not at scrapes: the gate of a ModelProvider is deleted with it,
// so a sum over the gates would fall.
var refusedRequests = counter("capstan_model_requests_refused_total",
	"Requests to models that were not sent, because they could not wait.", "provider")

// ModelRequestRefused counts a request that the gate of a ModelProvider has not let in.
func ModelRequestRefused(namespace, provider string) {
	known.withNamespace(namespace, func(label string, n *namespaceSeries) {
		refusedRequests.WithLabelValues(label, n.admitProvider(label, provider)).Inc()
	})
}

// gateUses collects the gauges of the gates. They are exported once SetModelGates was called.
type gateUses struct {
	use atomic.Pointer[func() map[types.NamespacedName]pace.Use]
}

var modelGates = &gateUses{}

// gateGauges are the gauges of each ModelProvider.
var gateGauges = []struct {
	desc  *prometheus.Desc
	value func(pace.Use) int64
}{
	{
		byProvider("capstan_model_requests_waiting", "Requests to models that wait for a limit or for a circuit breaker."),
		func(u pace.Use) int64 { return u.Waiting },
	},
	{
		byProvider("capstan_model_circuits_open", "Models whose circuit breaker is open in this executor."),
		func(u pace.Use) int64 { return int64(len(u.Open)) },
	},
}

func byProvider(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"namespace", "provider"}, nil)
}

// Describe sends the descriptions of all gauges.
func (g *gateUses) Describe(out chan<- *prometheus.Desc) {
	for _, gauge := range gateGauges {
		out <- gauge.desc
	}
}

// Collect sends the current use. The number of namespaces is bounded as for all metrics, and the number of
// ModelProviders by mostProviders.
func (g *gateUses) Collect(out chan<- prometheus.Metric) {
	use := g.use.Load()
	if use == nil {
		return
	}
	all := (*use)()
	shown, providers := map[types.NamespacedName][]int64{}, map[string]int{}
	for _, key := range slices.SortedFunc(maps.Keys(all), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		label := types.NamespacedName{Namespace: known.labelOf(key.Namespace), Name: Other}
		if providers[key.Namespace]++; label.Namespace != Other && providers[key.Namespace] <= mostProviders {
			label.Name = key.Name
		}
		if shown[label] == nil {
			shown[label] = make([]int64, len(gateGauges))
		}
		for i := range gateGauges {
			shown[label][i] += gateGauges[i].value(all[key])
		}
	}
	for label, values := range shown {
		for i, value := range values {
			out <- prometheus.MustNewConstMetric(gateGauges[i].desc, prometheus.GaugeValue, float64(value), label.Namespace, label.Name)
		}
	}
}
