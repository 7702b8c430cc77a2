package redact

import "slices"

const (
	// maxEarlier bounds how many values of before are known, and maxEarlierBytes their length together, in bytes.
	maxEarlier      = 16
	maxEarlierBytes = 64 << 10
)

// Earlier returns the values that secrets had before, the latest last, after they were changed from old to now: a run that began
// with an old value goes on, and servers keep what they were sent. It keeps at most 16, of
// at most 64 KiB together: the oldest are dropped first.
func Earlier(earlier, old, now []string) []string {
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
	return slices.Clone(all[first:]) // without the room of those that are dropped
}
