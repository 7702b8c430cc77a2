package providers

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// gate is the gate of one ModelProvider. Cache.mu guards it.
type gate struct {
	*pace.Gate
	uid types.UID
	// generation is the generation of the object whose limits the gate has.
	generation int64
}

// keepGateFor is how long an unused gate is kept: as long as a Turn may run. Otherwise a running Turn would use the old
// gate, and a new Turn would use a new gate.
const keepGateFor = 24 * time.Hour

// Gated returns a provider whose requests wait at the gate of the object before inner sends them. All Turns of this
// process share the gate.
func (c *Cache) Gated(p *v1alpha1.ModelProvider, caller pace.Caller, inner model.Provider) model.Provider {
	return c.gateOf(p).Provider(caller, inner)
}

// gateOf returns the gate of an object, with its newest limits.
func (c *Cache) gateOf(p *v1alpha1.ModelProvider) *pace.Gate {
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.gates[key]
	if g == nil || g.uid != p.UID {
		g = &gate{Gate: pace.New(p.Name), uid: p.UID, generation: -1}
		if c.refused != nil {
			g.OnRefused(func() { c.refused(key.Namespace, key.Name) })
		}
		c.gates[key] = g
	}
	c.applyLimits(g, p)
	return g.Gate
}

// Changed applies the limits of an object to its gate, so that waiting requests need not wait for the next Turn.
func (c *Cache) Changed(p *v1alpha1.ModelProvider) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.gates[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}]; g != nil && g.uid == p.UID {
		c.applyLimits(g, p)
	}
}

// applyLimits sets the limits of a newer generation of an object. The caller must hold the lock.
func (c *Cache) applyLimits(g *gate, p *v1alpha1.ModelProvider) {
	if p.Generation <= g.generation {
		return
	}
	g.generation = p.Generation
	models := map[string]pace.Limits{}
	for i := range p.Spec.Models {
		if m := &p.Spec.Models[i]; m.Limits != nil {
			models[m.Name] = limitsOf(m.Limits)
		}
	}
	g.SetLimits(limitsOf(p.Spec.Limits), models, c.executors)
}

// SetExecutors sets the number of executors that share the limits of all providers. It is 1 before the first call.
func (c *Cache) SetExecutors(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.executors = max(1, n)
	for _, g := range c.gates {
		g.SetExecutors(c.executors)
	}
}

// GateUse returns the use of all gates.
func (c *Cache) GateUse() map[types.NamespacedName]pace.Use {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[types.NamespacedName]pace.Use, len(c.gates))
	for key, g := range c.gates {
		all[key] = g.Use()
	}
	return all
}

func limitsOf(l *v1alpha1.RateLimits) pace.Limits {
	if l == nil {
		return pace.Limits{}
	}
	value := func(n *int64) int64 {
		if n == nil {
			return 0
		}
		return *n
	}
	return pace.Limits{
		RequestsPerMinute: value(l.RequestsPerMinute), TokensPerMinute: value(l.TokensPerMinute),
		MaxConcurrent: value(l.MaxConcurrentRequests),
	}
}
