package scheduler

import (
	"fmt"
	"strconv"
	"strings"
)

// Share is a number of slots, or a percentage of all slots. The zero value means no limit.
type Share struct {
	count, percent int
}

// ParseShare parses a whole number from 0 (no limit) to 1000000, or a percentage from 1% to 100%.
func ParseShare(text string) (Share, error) {
	number, isPercentage := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(number)
	switch {
	case err == nil && isPercentage && n >= 1 && n <= 100:
		return Share{percent: n}, nil
	case err == nil && !isPercentage && n >= 0 && n <= 1_000_000:
		return Share{count: n}, nil
	}
	return Share{}, fmt.Errorf("%q must be a whole number from 0 to 1000000, or a percentage from 1%% to 100%%", text)
}

// String returns the share in the format of ParseShare.
func (s Share) String() string {
	if s.percent > 0 {
		return strconv.Itoa(s.percent) + "%"
	}
	return strconv.Itoa(s.count)
}

// slotsFor returns the share of total slots as a number; 0 means no limit. A percentage is rounded up. It applies only
// if there are at least two tenants, because a single tenant need not leave slots to other tenants.
func (s Share) slotsFor(total, tenants int) int {
	switch {
	case s.percent == 0:
		return s.count
	case tenants < 2 || s.percent == 100:
		return 0
	}
	return (total*s.percent + 99) / 100
}
