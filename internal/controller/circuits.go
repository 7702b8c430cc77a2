package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/providers"
)

// OpenCircuits holds the open circuits that the Leases of living executors report. The circuits themselves are in the
// memory of the executors. The zero value has no reports. OpenCircuits is safe for concurrent use.
type OpenCircuits struct {
	mu sync.Mutex
	// reports holds the newest report of each living executor, by the name of its Lease.
	reports map[string]circuitReport
	// changed is called with each ModelProvider whose circuits may have changed. It must not block. It may be nil.
	changed func(types.NamespacedName)
}

type circuitReport struct {
	text string
	open providers.Circuits
}

// onChange sets the function that is called when circuits have changed.
func (c *OpenCircuits) onChange(changed func(types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = changed
}

// observe records the report in the Lease of a living executor. It returns the ModelProviders for whose Agents the
// result of isDown may have changed.
func (c *OpenCircuits) observe(l *coordinationv1.Lease) []types.NamespacedName {
	text := l.Annotations[executor.CircuitsAnnotation]
	return c.replace(l.Name, &circuitReport{text, providers.DecodeCircuits(text)})
}

// forget drops the report of a lost executor. Like observe, it returns the ModelProviders for whose Agents the result
// of isDown may have changed.
func (c *OpenCircuits) forget(lease string) []types.NamespacedName { return c.replace(lease, nil) }

// replace replaces the report of a Lease, or drops it if report is nil. It calls c.changed for each ModelProvider whose
// open circuits in this report have changed.
func (c *OpenCircuits) replace(lease string, report *circuitReport) []types.NamespacedName {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	last, known := c.reports[lease]
	if known == (report != nil) && (report == nil || last.text == report.text) {
		c.mu.Unlock()
		return nil
	}
	if c.reports == nil {
		c.reports = map[string]circuitReport{}
	}
	affected := providers.Circuits{}
	for _, r := range c.reports {
		maps.Copy(affected, r.open)
	}
	var open providers.Circuits
	if delete(c.reports, lease); report != nil {
		open = report.open
		c.reports[lease] = *report
		maps.Copy(affected, open)
	}
	changed := c.changed
	c.mu.Unlock()
	for key := range affected {
		if changed != nil && !slices.Equal(last.open[key], open[key]) {
			changed(key)
		}
	}
	return slices.Collect(maps.Keys(affected))
}

// isDown reports whether the circuits of all models of an Agent's chain are open in all living executors.
func (c *OpenCircuits) isDown(a *v1alpha1.Agent) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		for _, m := range a.Spec.Models {
			if !slices.Contains(r.open[m.ProviderRef.Key(a.Namespace)], m.Model) {
				return false
			}
		}
	}
	return len(c.reports) > 0
}

// models returns the models of a ModelProvider with an open circuit in any executor.
func (c *OpenCircuits) models(key types.NamespacedName) []string {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, r := range c.reports {
		all = append(all, r.open[key]...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// availability returns the finding for the condition Available. open are the models with an open circuit. ok is false
// if the condition is not needed, because no circuit is open and the object does not have the condition.
func availability(conditions []metav1.Condition, open []string) (found finding, ok bool) {
	if len(open) == 0 {
		return finding{holds: true, reason: v1alpha1.ReasonCircuitClosed, message: "requests are sent"},
			meta.FindStatusCondition(conditions, v1alpha1.ConditionAvailable) != nil
	}
	return finding{reason: v1alpha1.ReasonCircuitOpen, message: fmt.Sprintf(
		"requests to %s are held back, because several in a row failed: a request tries the endpoint every 10 seconds",
		strings.Join(open, ", "))}, true
}
