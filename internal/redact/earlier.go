package redact

import "slices"

// maxEarlier bounds how many values of before are known.
const maxEarlier = 16

// Earlier returns the values that secrets had before, the latest last, after they were changed from old to now: a run that began
// with an old value goes on, and servers keep what they were sent. It keeps at most 16.
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
	return all[max(0, len(all)-maxEarlier):]
}
