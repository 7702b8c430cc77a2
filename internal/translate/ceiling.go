package translate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// bounds maps each limit that is a number to its lowest and highest value, as in the schema of Turns.
var bounds = map[string][2]int64{
	"timeoutSeconds": {1, 86400}, "startingDeadlineSeconds": {1, 604800}, "maxSteps": {1, 100}, "maxToolCalls": {0, 1000},
	"maxTokens": {1, 1_000_000_000}, "maxDepth": {0, 8}, "maxDescendants": {0, 1000}, "approvalTimeoutSeconds": {1, 2592000},
}

// maxCost is the name of the limit that is a decimal.
const maxCost = "maxCost"

// Ceiling parses the highest limits that a manager's Turns may have. values maps the name of a limit to its value.
// Ceiling returns nil if values is empty. The error names the first invalid limit, in alphabetical order, and its
// allowed values.
func Ceiling(values map[string]string) (*v1alpha1.Limits, error) {
	if len(values) == 0 {
		return nil, nil //nolint:nilnil // because a nil ceiling limits nothing
	}
	fields := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		bound, isNumber := bounds[name]
		switch {
		case isNumber:
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < bound[0] || n > bound[1] {
				return nil, fmt.Errorf("%s=%s must be a whole number from %d to %d", name, value, bound[0], bound[1])
			}
			fields[name] = n
		case name == maxCost:
			if d, err := decimal.NewFromString(value); err != nil || !d.IsPositive() || len(value) > 24 ||
				strings.ContainsAny(value, "eE+") {
				return nil, fmt.Errorf("%s=%s must be a decimal above 0, such as 0.50", name, value)
			}
			fields[name] = value
		default:
			return nil, fmt.Errorf("%q is not a limit: use one of %s", name,
				strings.Join(append(slices.Sorted(maps.Keys(bounds)), maxCost), ", "))
		}
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("failed to write the limits: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var out v1alpha1.Limits
	if err := decoder.Decode(&out); err != nil {
		return nil, fmt.Errorf("failed to read the limits: %w", err)
	}
	return &out, nil
}

// WithinCeiling returns an Agent whose limits are lowered, so that no limit of the Turn t exceeds the ceiling. If t is
// nil, this holds for any Turn that sets no limits. A nil ceiling limits nothing. A limit that neither object sets
// keeps its default, unless the ceiling is lower. The default of maxCost depends on the currency, so the ceiling
// replaces it. WithinCeiling does not change a.
func WithinCeiling(a *v1alpha1.Agent, t *v1alpha1.Turn, ceiling *v1alpha1.Limits) *v1alpha1.Agent {
	if a == nil || ceiling == nil {
		return a
	}
	given := []*v1alpha1.Limits{a.Spec.Limits}
	if t != nil {
		given = append(given, t.Spec.Limits)
	}
	limits := v1alpha1.Limits{}
	if a.Spec.Limits != nil {
		limits = *a.Spec.Limits
	}
	//nolint:gosec // because the value was an int32 before
	lowered := lower(&limits.TimeoutSeconds, ceiling.TimeoutSeconds, int32(v1alpha1.Timeout(given...)/time.Second))
	//nolint:gosec // because the value was an int32 before
	lowered = lower(&limits.StartingDeadlineSeconds, ceiling.StartingDeadlineSeconds,
		int32(v1alpha1.StartingDeadline(given...)/time.Second)) || lowered
	//nolint:gosec // because the value was an int32 before
	lowered = lower(&limits.ApprovalTimeoutSeconds, ceiling.ApprovalTimeoutSeconds,
		int32(v1alpha1.ApprovalTimeout(given...)/time.Second)) || lowered
	//nolint:gosec // because the value was an int32 before
	lowered = lower(&limits.MaxSteps, ceiling.MaxSteps, int32(v1alpha1.MaxSteps(given...))) || lowered
	//nolint:gosec // because the value was an int32 before
	lowered = lower(&limits.MaxToolCalls, ceiling.MaxToolCalls, int32(v1alpha1.MaxToolCalls(given...))) || lowered
	//nolint:gosec // because the value was an int32 before
	lowered = lower(&limits.MaxDepth, ceiling.MaxDepth, int32(v1alpha1.MaxDepth(given...))) || lowered
	//nolint:gosec // because the value was an int32 before
	lowered = lower(&limits.MaxDescendants, ceiling.MaxDescendants, int32(v1alpha1.MaxDescendants(nil, a.Spec.Limits))) || lowered
	lowered = lower(&limits.MaxTokens, ceiling.MaxTokens, v1alpha1.MaxTokens(given...)) || lowered
	if own := costOf(&limits); ceiling.MaxCost != nil && (own == nil || *own > *costOf(ceiling)) {
		limits.MaxCost, lowered = ceiling.MaxCost, true
	}
	if !lowered {
		return a // thousands of Turns share this object
	}
	bounded := *a // a shallow copy: the values behind its pointers are shared and must not change
	bounded.Spec.Limits = &limits
	return &bounded
}

// lower sets a limit to its ceiling if the ceiling is below effective, the value that applies now. It reports whether
// it has changed the limit.
func lower[T int32 | int64](limit **T, ceiling *T, effective T) bool {
	if ceiling == nil || *ceiling >= effective {
		return false
	}
	*limit = new(*ceiling)
	return true
}
