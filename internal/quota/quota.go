// Package quota says whose journals use how much of the store's room, and who must wait for more. The process of an executor measures
// and publishes a Report, because controllers have no store; controllers and executors read it.
package quota

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/capstan-dev/capstan/internal/store"
)

const (
	// tightTenths of a quota, and new Turns wait. The rest is for those that run.
	tightTenths = 8
	// volumeTenths of a volume are for journals where no quota is given: the rest is for the log of the database, and for a volume that
	// others use as well.
	volumeTenths = 9
	// userParts is of how many parts of the quota of all a namespace uses one before it counts among those that share it.
	userParts = 20
	// maxNamespaces bounds the namespaces that a Report names, those with the fullest quotas first. A Lease holds it.
	maxNamespaces = 500
)

// Limits are the quotas of the journals, in bytes.
type Limits struct {
	// Total bounds all journals; 0 for nine tenths of the store's volume, or for nothing if the store does not know its volume. A
	// volume with less room than Total bounds them, too.
	Total int64
	// PerNamespace bounds the journals of a namespace; 0 for as much as is left free of the quota of all: a namespace alone may use
	// half of it, and each of two a third. With no quota for all, it is none.
	PerNamespace int64
}

// Budget is what is used of a quota, in bytes. A Limit of 0 or less is no quota.
type Budget struct {
	Used int64 `json:"used"`
	// Expected is what Turns that run will still write.
	Expected int64 `json:"expected,omitempty"`
	Limit    int64 `json:"limit"`
	// Share is up to where Turns that run go on although others have left less than that; 0 for Limit.
	Share int64 `json:"share,omitempty"`
}

// Tight reports whether so much is used, or will be when the Turns that run have ended, that new Turns wait: 80 %.
func (b Budget) Tight() bool {
	return b.Limit > 0 && b.Used+b.Expected >= b.Limit/10*tightTenths
}

// Spent reports whether all is used, so that Turns that run must wait as well. What they will write does not count: they would wait for
// themselves.
func (b Budget) Spent() bool { return b.Limit > 0 && b.Used >= max(b.Limit, b.Share) }

// inUse says how much of the quota is used, and what is still to come.
func (b Budget) inUse() string {
	text := Bytes(b.Used) + " of the " + Bytes(b.Limit) + " that it may have"
	if b.Expected > 0 {
		text += ", and the Turns that run will write about " + Bytes(b.Expected) + " more"
	}
	return text
}

// fuller compares how full two budgets are.
func fuller(a, b Budget) int {
	full := func(b Budget) float64 { return float64(b.Used+b.Expected) / float64(max(b.Limit, 1)) }
	return cmp.Compare(full(b), full(a))
}

// Report is what controllers and executors need to know of the use of a store.
type Report struct {
	// Total is the budget of all journals.
	Total Budget `json:"total"`
	// Namespaces are the budgets of namespaces that are tight, at most 500.
	Namespaces map[string]Budget `json:"namespaces,omitempty"`
}

// Judge returns the Report of a use. expected are the bytes that the Turns of each namespace will still write.
func (l Limits) Judge(u store.Use, expected map[string]int64) Report {
	r := Report{Total: Budget{Used: u.Bytes, Limit: l.total(u)}}
	budgets := map[string]Budget{}
	for _, namespaces := range []map[string]int64{u.Namespaces, expected} {
		for namespace := range namespaces {
			if b := l.namespace(u, namespace, expected); b.Tight() {
				budgets[namespace] = b
			}
		}
	}
	tight := slices.SortedFunc(maps.Keys(budgets), func(a, b string) int {
		return cmp.Or(fuller(budgets[a], budgets[b]), cmp.Compare(a, b))
	})
	for _, namespace := range tight[min(len(tight), maxNamespaces):] {
		delete(budgets, namespace)
	}
	if len(budgets) > 0 {
		r.Namespaces = budgets
	}
	return r
}

// total is the quota of all journals; 0 for none.
func (l Limits) total(u store.Use) int64 {
	if u.Free < 0 {
		return l.Total
	}
	volume := max((u.Bytes+u.Free)/10*volumeTenths, 1)
	if l.Total == 0 {
		return volume
	}
	return min(l.Total, volume)
}

// namespace returns the budget of a namespace.
func (l Limits) namespace(u store.Use, namespace string, expected map[string]int64) Budget {
	b := Budget{Used: u.Namespaces[namespace], Expected: expected[namespace], Limit: l.PerNamespace}
	if total := l.total(u); b.Limit == 0 && total > 0 {
		b.Limit, b.Share = max(total-u.Bytes, 1), part(u, total)
	}
	return b
}

// part is up to where the Turns of a namespace run that has no quota of its own, whatever others have written: an equal part of the quota
// of all, among at least two. So who writes much stops the Turns of nobody who has written less than that.
func part(u store.Use, total int64) int64 {
	var users int64
	for _, used := range u.Namespaces {
		if used >= total/userParts {
			users++
		}
	}
	return total / max(users, 2)
}

// Verdict is what a Report means for the Turns of one namespace.
type Verdict struct {
	// New is true if new Turns must wait, and Running if those that run must as well.
	New, Running bool
	// Message says why and what to do; empty if nobody must wait.
	Message string
}

// Of returns what a Report means for a namespace. A nil Report means nothing.
func (r *Report) Of(namespace string) Verdict {
	if r == nil {
		return Verdict{}
	}
	total, own := r.Total, r.Namespaces[namespace]
	v := Verdict{New: total.Tight() || own.Tight(), Running: total.Spent() || own.Spent()}
	switch {
	case own.Tight() && (own.Spent() || !total.Spent()):
		v.Message = fmt.Sprintf("the journals of namespace %q use %s; new Turns wait from 80 %% on: "+
			"delete finished Turns and Sessions that nobody needs, or have --journal-quota-per-namespace raised", namespace, own.inUse())
	case total.Tight():
		v.Message = fmt.Sprintf("the journals of all namespaces use %s of %s; new Turns wait from 80 %% on: "+
			"delete finished Turns and Sessions that nobody needs, or have the volume or --journal-quota enlarged", Bytes(total.Used), Bytes(total.Limit))
	}
	return v
}

// Bytes writes a number of bytes as a person reads it, rounded so that a message does not change with each byte.
func Bytes(n int64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if value >= 10 {
		return fmt.Sprintf("%.0f %s", value, units[unit])
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// Encode writes a Report as the annotation of a Lease.
func (r *Report) Encode() string {
	if r == nil {
		return ""
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "" // it has nothing that cannot be written
	}
	return string(text)
}

// Decode reads what Encode wrote; nil for anything else.
func Decode(text string) *Report {
	var r Report
	if text == "" || json.Unmarshal([]byte(text), &r) != nil {
		return nil
	}
	return &r
}

// Tight are the namespaces whose new Turns wait, in order; the empty one stands for all.
func (r *Report) Tight() []string {
	if r == nil {
		return nil
	}
	tight := slices.Sorted(maps.Keys(r.Namespaces))
	if r.Total.Tight() {
		tight = slices.Insert(tight, 0, "")
	}
	return tight
}
