// Package quota decides how much of the store the journals of a namespace may use, and which Turns must wait for more
// space. The executor's process measures the use and publishes a Report in its Lease. Controllers, which must not wait
// for the store, read the Reports of all executors there.
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
	// tightTenths is the part of a quota, in tenths, at which new Turns wait. The rest is for running Turns.
	tightTenths = 8
	// volumeTenths is the part of a volume, in tenths, that journals may use. The rest is for the log of the database,
	// and for other users of the volume.
	volumeTenths = 9
	// userParts decides which namespaces share the total quota: those that use at least a twentieth of it.
	userParts = 20
	// maxNamespaces limits the namespaces in a Report, because a Lease holds the Report. The namespaces with the
	// fullest quotas are included.
	maxNamespaces = 500
)

// Limits are the quotas of the journals, in bytes.
type Limits struct {
	// Total limits all journals. 0 means nine tenths of the store's volume, or no limit if the store does not know
	// its volume. If the volume has less space than Total, the volume limits the journals.
	Total int64
	// Volume is the size of the store's volume, for a volume on a larger file system that does not enforce this size,
	// such as an emptyDir with a size limit. It applies only if Total is 0 and the store knows its free space. 0 means
	// that the file system has the size of the volume.
	Volume int64
	// PerNamespace limits the journals of a namespace. If it is 0, a namespace may use as much as is free in the total
	// quota: one namespace alone may use half of that quota, and each of two namespaces a third. The bytes that running
	// Turns will still write do not count as free, but each namespace may use a twentieth of the quota if that is free.
	// If there is no total quota either, a namespace has no limit.
	PerNamespace int64
}

// Budget is the use of a quota, in bytes. A Limit of 0 or less means no quota.
type Budget struct {
	Used int64 `json:"used"`
	// Expected is the number of bytes that running Turns will still write.
	Expected int64 `json:"expected,omitempty"`
	Limit    int64 `json:"limit"`
	// Share is the use up to which running Turns continue, even if other namespaces have left less space. 0 means
	// Limit.
	Share int64 `json:"share,omitempty"`
}

// IsNearlyFull reports whether new Turns must wait: the use, including the expected bytes of running Turns, has
// reached 80 %.
func (b Budget) IsNearlyFull() bool { return b.Limit > 0 && b.Expected >= b.unreserved() }

// unreserved returns how many bytes running Turns may reserve until new Turns must wait.
func (b Budget) unreserved() int64 { return b.Limit/10*tightTenths - b.Used }

// IsUsedUp reports whether running Turns must wait as well, because the quota is used up. The expected bytes do not
// count: otherwise running Turns would wait for their own bytes.
func (b Budget) IsUsedUp() bool { return b.Limit > 0 && b.Used >= max(b.Limit, b.Share) }

// inUse returns the used and the expected bytes of the quota as a part of a message.
func (b Budget) inUse() string {
	text := FormatBytes(b.Used) + " of their quota of " + FormatBytes(b.Limit)
	if b.Expected > 0 {
		text += ", and running Turns will write about " + FormatBytes(b.Expected) + " more"
	}
	return text
}

// compareFullness orders budgets by how full they are, the fullest first.
func compareFullness(a, b Budget) int {
	full := func(b Budget) float64 { return float64(b.Used+b.Expected) / float64(max(b.Limit, 1)) }
	return cmp.Compare(full(b), full(a))
}

// Report is the use of a store, as controllers and executors need it.
type Report struct {
	// Total is the budget of all journals.
	Total Budget `json:"total"`
	// Namespaces are the budgets of the namespaces whose quotas are nearly full, or may be so because of the Turns of
	// other executors, at most 500.
	Namespaces map[string]Budget `json:"namespaces,omitempty"`
}

// Evaluate returns the Report of the only executor for a use. expected is the number of bytes that the Turns of each
// namespace will still write.
func (l Limits) Evaluate(u store.Use, expected map[string]int64) Report {
	return l.evaluate(u, expected, 1)
}

// evaluate does the same as Evaluate for one of several executors. The Report has each namespace that may be nearly
// full if the other executors have up to twice as many Turns of it: Turns are spread over all executors, but not
// exactly.
func (l Limits) evaluate(u store.Use, expected map[string]int64, executors int64) Report {
	spread := int64(1)
	if executors > 1 {
		spread = 2 * executors
	}
	r := Report{Total: Budget{Used: u.Bytes, Limit: l.total(u)}}
	budgets := map[string]Budget{}
	for _, namespaces := range []map[string]int64{u.Namespaces, expected} {
		for namespace := range namespaces {
			b := l.namespace(u, namespace, expected)
			if all := (Budget{Used: b.Used, Expected: b.Expected * spread, Limit: b.Limit}); all.IsNearlyFull() {
				budgets[namespace] = b
			}
		}
	}
	tight := slices.SortedFunc(maps.Keys(budgets), func(a, b string) int {
		return cmp.Or(compareFullness(budgets[a], budgets[b]), cmp.Compare(a, b))
	})
	for _, namespace := range tight[min(len(tight), maxNamespaces):] {
		delete(budgets, namespace)
	}
	if len(budgets) > 0 {
		r.Namespaces = budgets
	}
	return r
}

// total returns the total quota; 0 means no quota.
func (l Limits) total(u store.Use) int64 {
	if u.Free < 0 {
		return l.Total
	}
	space := u.Bytes + u.Free
	if l.Total == 0 && l.Volume > 0 {
		space = min(space, l.Volume)
	}
	quota := max(space/10*volumeTenths, 1)
	if l.Total > 0 {
		quota = min(quota, l.Total)
	}
	return quota
}

// namespace returns the budget of a namespace.
func (l Limits) namespace(u store.Use, namespace string, expected map[string]int64) Budget {
	b := Budget{Used: u.Namespaces[namespace], Expected: expected[namespace], Limit: l.PerNamespace}
	if total := l.total(u); b.Limit == 0 && total > 0 {
		free := total - u.Bytes
		b.Share = max(equalPart(u, total), free)
		unclaimed := free
		for _, bytes := range expected {
			unclaimed -= bytes
		}
		b.Limit = max(unclaimed, min(free, total/userParts), 1)
	}
	return b
}

// equalPart returns the use up to which Turns of a namespace without its own quota may run, whatever other namespaces
// have written: the total quota divided by the number of the namespaces that share it, or by two if there are fewer. So
// a namespace that writes much does not stop a namespace that has written less than its part.
func equalPart(u store.Use, total int64) int64 {
	var users int64
	for _, used := range u.Namespaces {
		if used >= total/userParts {
			users++
		}
	}
	return total / max(users, 2)
}

// Verdict is the meaning of a Report for the Turns of one namespace.
type Verdict struct {
	// New is true if new Turns must wait. Running is true if running Turns must wait as well.
	New, Running bool
	// Message says why Turns must wait, and what to do; empty if no Turn must wait.
	Message string
}

// deleteSome is how users can free space. It says when that helps, because the deleted objects cannot be restored.
const deleteSome = "delete finished Turns and Sessions, whose journals count until --journal-retention has passed since the deletion"

// VerdictFor returns the verdict for a namespace. With a nil Report, no Turn must wait.
func (r *Report) VerdictFor(namespace string) Verdict {
	if r == nil {
		return Verdict{}
	}
	total, own := r.Total, r.Namespaces[namespace]
	v := Verdict{New: total.IsNearlyFull() || own.IsNearlyFull(), Running: total.IsUsedUp() || own.IsUsedUp()}
	switch {
	case own.IsNearlyFull() && (own.IsUsedUp() || !total.IsUsedUp()):
		v.Message = fmt.Sprintf("the journals of namespace %q use %s; new Turns wait from 80 %%: "+
			"have an administrator raise --journal-quota-per-namespace or lower --journal-retention, or "+deleteSome,
			namespace, own.inUse())
	case total.IsNearlyFull():
		v.Message = fmt.Sprintf("the journals of all namespaces use %s of %s; new Turns wait from 80 %%: "+
			"have an administrator enlarge the volume (with --journal-volume-size), raise --journal-quota or "+
			"lower --journal-retention, or "+deleteSome,
			FormatBytes(total.Used), FormatBytes(total.Limit))
	}
	return v
}

// Combine returns the Report of all executors. Each executor knows only the expected bytes of its own Turns, so they
// are added up. In all else, the strictest Report counts. A Report that is nil has no effect.
func Combine(reports ...*Report) *Report {
	all := &Report{Namespaces: map[string]Budget{}}
	for _, r := range reports {
		if r == nil {
			continue
		}
		all.Total = stricter(all.Total, r.Total)
		for namespace, own := range r.Namespaces {
			last := all.Namespaces[namespace]
			b := stricter(last, own)
			b.Expected = last.Expected + own.Expected
			all.Namespaces[namespace] = b
		}
	}
	return all
}

// stricter returns the budget that leaves less space, apart from the expected bytes.
func stricter(a, b Budget) Budget {
	switch {
	case a.Limit <= 0:
		return b
	case b.Limit <= 0:
		return a
	case a.IsUsedUp() != b.IsUsedUp():
		if a.IsUsedUp() {
			return a
		}
		return b
	case b.unreserved() < a.unreserved():
		return b
	}
	return a
}

// FormatBytes formats a number of bytes for people, rounded so that a message does not change with each byte.
func FormatBytes(n int64) string {
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

// Encode returns a Report as the value of a Lease's annotation.
func (r *Report) Encode() string {
	if r == nil {
		return ""
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "" // impossible: a Report can always be encoded
	}
	return string(text)
}

// Decode parses a text from Encode. It returns nil for any other text.
func Decode(text string) *Report {
	var r Report
	if text == "" || json.Unmarshal([]byte(text), &r) != nil {
		return nil
	}
	return &r
}

// WaitingNamespaces returns the sorted namespaces whose new Turns wait. An empty name means all namespaces.
func (r *Report) WaitingNamespaces() []string {
	if r == nil {
		return nil
	}
	tight := slices.DeleteFunc(slices.Sorted(maps.Keys(r.Namespaces)), func(namespace string) bool {
		return !r.Namespaces[namespace].IsNearlyFull()
	})
	if r.Total.IsNearlyFull() {
		tight = slices.Insert(tight, 0, "")
	}
	return tight
}
