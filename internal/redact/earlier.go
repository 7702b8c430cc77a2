package redact

import "slices"

const (
	// maxEarlier bounds the number of earlier values, and maxEarlierBytes bounds their total length in bytes.
	maxEarlier      = 16
	maxEarlierBytes = 64 << 10
)

// RetainPrevious returns the earlier values of secrets that changed from old to now, the newest last. They are still
// needed: a run that began with an old value continues, and servers keep the values that they received. It keeps at
// most 16 values of at most 64 KiB together, and drops the oldest first.
func RetainPrevious(earlier, old, now []string) []string {
	var all []string
	for _, value := range append(slices.Clone(earlier), old...) {
		if slices.Contains(now, value) {
			continue
		}
		if i := slices.Index(all, value); i >= 0 {
			all = slices.Delete(all, i, i+1)
		}
		all = append(all, value)
	}
	first, size := len(all), 0
	for first > 0 && len(all)-first < maxEarlier && size+len(all[first-1]) <= maxEarlierBytes {
		first--
		size += len(all[first])
	}
	return slices.Clone(all[first:]) // without the memory of the dropped values
}
