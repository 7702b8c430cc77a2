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

// OpenCircuits holds the open circuits that the Leases of living executors report, because the circuits are in the
// memory of the executors. The zero value has no reports. It is safe for concurrent use.
type OpenCircuits struct {
	mu      sync.Mutex
	reports map[string]circuitReport // by the name of the Lease
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

// see records the report in the Lease of a living executor.
func (c *OpenCircuits) see(l *coordinationv1.Lease) {
	c.replace(l.Name, l.Annotations[executor.CircuitsAnnotation])
}

// forget drops the report of a lost executor.
func (c *OpenCircuits) forget(lease string) { c.replace(lease, "") }

func (c *OpenCircuits) replace(lease, text string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	last := c.reports[lease]
	if last.text == text {
		c.mu.Unlock()
		return
	}
	now := circuitReport{text, providers.DecodeCircuits(text)}
	if c.reports == nil {
		c.reports = map[string]circuitReport{}
	}
	if c.reports[lease] = now; text == "" {
		delete(c.reports, lease)
	}
	changed := c.changed
	c.mu.Unlock()
	concerned := maps.Clone(last.open)
	if concerned == nil {
		concerned = providers.Circuits{}
	}
	maps.Copy(concerned, now.open)
	for key := range concerned {
		if changed != nil && !slices.Equal(last.open[key], now.open[key]) {
			changed(key)
		}
	}
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

// availability returns the finding for the condition Available. ok is false if the condition is not needed: no circuit
// is open, and none was.
func availability(conditions []metav1.Condition, open []string) (found finding, ok bool) {
	if len(open) == 0 {
		return finding{holds: true, reason: v1alpha1.ReasonCircuitClosed, message: "requests are sent"},
			meta.FindStatusCondition(conditions, v1alpha1.ConditionAvailable) != nil
	}
	return finding{reason: v1alpha1.ReasonCircuitOpen, message: fmt.Sprintf(
		"requests to %s are held back, because several in a row failed: a request tries the endpoint every 10 seconds",
		strings.Join(open, ", "))}, true
}
