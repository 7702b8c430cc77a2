package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// maxNamespaces is the maximum number of namespaces with their own series. Namespaces with the fullest quotas have
// them.
const maxNamespaces = 20

// Use is the size of all journals and their quota, in bytes, and the same for each namespace. A Quota of 0 means that
// there is no quota.
type Use struct {
	Bytes, Quota int64
	Namespaces   map[string]NamespaceUse
}

// NamespaceUse is the size of the journals of a namespace and their quota, in bytes. A Quota of 0 means that there is
// no quota.
type NamespaceUse struct{ Bytes, Quota int64 }

// JournalUse sets the values of the gauges of the journals' quotas.
func JournalUse(u Use) { journalUse.use.Store(&u) }

// journalUses has the gauges of the journals' quotas. A process exports them only after it has measured the journals
// for the first time.
type journalUses struct{ use atomic.Pointer[Use] }

var (
	usedBytes      = gauge("capstan_journal_used_bytes", "Bytes that journals use, without the free space that purged journals have left.")
	quotaBytes     = gauge("capstan_journal_quota_bytes", "Bytes that all journals may use; 0 for no quota.")
	namespaceBytes = prometheus.NewDesc("capstan_journal_namespace_used_bytes",
		"Bytes that the journals of a namespace use, of the 20 namespaces with the fullest quotas.", []string{"namespace"}, nil)
	namespaceQuota = prometheus.NewDesc("capstan_journal_namespace_quota_bytes",
		"Bytes that the journals of a namespace may use, of the 20 namespaces with the fullest quotas; 0 for no quota.",
		[]string{"namespace"}, nil)
)

// Describe sends the descriptions of all gauges.
func (j *journalUses) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{usedBytes, quotaBytes, namespaceBytes, namespaceQuota} {
		out <- d
	}
}

// Collect sends the gauges with the values of the last measurement.
func (j *journalUses) Collect(out chan<- prometheus.Metric) {
	u := j.use.Load()
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

// fullest returns the namespaces with the fullest quotas, at most maxNamespaces, the fullest first.
func (u *Use) fullest() []string {
	full := func(namespace string) float64 {
		n := u.Namespaces[namespace]
		return float64(n.Bytes) / float64(max(n.Quota, 1))
	}
	all := slices.SortedFunc(maps.Keys(u.Namespaces),
		func(a, b string) int { return cmp.Or(cmp.Compare(full(b), full(a)), cmp.Compare(a, b)) })
	return all[:min(len(all), maxNamespaces)]
}
