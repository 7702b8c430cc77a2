package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// maxQuotaNamespaces is the maximum number of namespaces that have their own series about journals and quotas. Only the
// namespaces with the fullest quotas get them. mostNamespaces is the number for other metrics.
const maxQuotaNamespaces = 20

// Usage is the size of all journals and their quota, in bytes, in total and for each namespace. A Quota of 0 means that
// there is no quota.
type Usage struct {
	Bytes, Quota int64
	Namespaces   map[string]NamespaceUsage
}

// NamespaceUsage is the size of the journals of a namespace and their quota, in bytes. A Quota of 0 means that there is
// no quota.
type NamespaceUsage struct{ Bytes, Quota int64 }

// SetJournalUsage sets the values of the gauges of journal usage and quotas.
func SetJournalUsage(u Usage) { journalUsage.last.Store(&u) }

// journalUsages collects the gauges of journal usage and quotas. A process exports them only after it has measured the
// journals for the first time.
type journalUsages struct{ last atomic.Pointer[Usage] }

var (
	usedBytes      = gauge("capstan_journal_used_bytes", "Bytes used by journals, without the free space of purged journals.")
	quotaBytes     = gauge("capstan_journal_quota_bytes", "Bytes that all journals may use; 0 for no quota.")
	namespaceBytes = prometheus.NewDesc("capstan_journal_namespace_used_bytes",
		"Bytes used by the journals of a namespace. Exported only for the 20 namespaces with the fullest quotas.",
		[]string{"namespace"}, nil)
	namespaceQuota = prometheus.NewDesc("capstan_journal_namespace_quota_bytes",
		"Bytes that the journals of a namespace may use; 0 for no quota. Exported only for the 20 namespaces with the fullest quotas.",
		[]string{"namespace"}, nil)
)

// Describe sends the descriptions of all gauges.
func (j *journalUsages) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{usedBytes, quotaBytes, namespaceBytes, namespaceQuota} {
		out <- d
	}
}

// Collect sends the gauges with the values of the last measurement.
func (j *journalUsages) Collect(out chan<- prometheus.Metric) {
	u := j.last.Load()
	if u == nil {
		return
	}
	send := func(d *prometheus.Desc, value int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	send(usedBytes, u.Bytes)
	send(quotaBytes, u.Quota)
	for _, namespace := range u.fullest() {
		n := u.Namespaces[namespace]
		send(namespaceBytes, n.Bytes, namespace)
		send(namespaceQuota, n.Quota, namespace)
	}
}

// fullest returns the namespaces with the fullest quotas, at most maxQuotaNamespaces, the fullest first.
func (u *Usage) fullest() []string {
	fullness := func(namespace string) float64 {
		n := u.Namespaces[namespace]
		return float64(n.Bytes) / float64(max(n.Quota, 1))
	}
	all := slices.SortedFunc(maps.Keys(u.Namespaces),
		func(a, b string) int { return cmp.Or(cmp.Compare(fullness(b), fullness(a)), cmp.Compare(a, b)) })
	return all[:min(len(all), maxQuotaNamespaces)]
}
