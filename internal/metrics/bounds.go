package metrics

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Tenants choose the names of namespaces, ModelProviders and models, so the series that these names make are bounded. A namespace has
// its own share, which no other can use up.
const (
	// mostNamespaces is how many namespaces have series of their own.
	mostNamespaces = 256
	// mostModels is how many pairs of a ModelProvider and a model have series of their own in one namespace.
	mostModels = 16
	// mostCurrencies is how many currencies have series of their own in one namespace.
	mostCurrencies = 4
	// Other is the value of the labels namespace, provider, model and currency for all that is beyond these bounds.
	Other = "other"
	// keepGone is for how many sweeps the series of an object that is gone stay, so that they are scraped once more.
	keepGone = 15
	// keepIdle is after how many sweeps without use series may make room for others.
	keepIdle = 60
)

// Live says which namespaces have something that Turns need, and which ModelProviders each of them has.
type Live map[string]map[string]bool

// Sweep drops the series of namespaces and ModelProviders that are gone, some time after their last use. The manager calls it once a minute.
func Sweep(live Live) { known.sweep(live) }

// known are the labels that have series.
var known = &bounds{}

// bounds admits values of labels. Its lock is held while the series that it admits are counted, so that none is left behind by a sweep.
type bounds struct {
	mu         sync.Mutex
	namespaces map[string]*namespaceSeries
}

// namespaceSeries is a namespace that has series of its own.
type namespaceSeries struct {
	// running is how many of its Turns run.
	running int
	// idle is for how many sweeps nothing was counted.
	idle   int
	models map[pair]*int
	// currencies are those that have series, in no order.
	currencies []string
}

// pair is a model of a ModelProvider. The int that bounds keeps of it is for how many sweeps nothing was counted.
type pair struct{ provider, model string }

// in calls count with the value of the label namespace, and with what is known of the namespace; nil for Other.
func (b *bounds) in(name string, count func(label string, n *namespaceSeries)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.namespaces[name]
	if n == nil {
		if len(b.namespaces) >= mostNamespaces && !b.evict() {
			count(Other, nil)
			return
		}
		if b.namespaces == nil {
			b.namespaces = map[string]*namespaceSeries{}
		}
		n = &namespaceSeries{models: map[pair]*int{}}
		b.namespaces[name] = n
	}
	n.idle = 0
	count(name, n)
}

// evict drops the namespace that was idle for the longest time, if that is long enough.
func (b *bounds) evict() bool {
	longest, idle := "", keepIdle-1
	for name, n := range b.namespaces {
		if n.running == 0 && n.idle > idle {
			longest, idle = name, n.idle
		}
	}
	if longest != "" {
		b.drop(longest)
	}
	return longest != ""
}

// admit returns the labels provider and model of a pair. name is that of the namespace, which is nil for Other.
func (n *namespaceSeries) admit(name string, p pair) pair {
	if n == nil {
		return pair{Other, Other}
	}
	idle := n.models[p]
	if idle == nil {
		if len(n.models) >= mostModels && !n.evict(name) {
			return pair{Other, Other}
		}
		idle = new(int)
		n.models[p] = idle
	}
	*idle = 0
	return p
}

// currency returns the label of a currency.
func (n *namespaceSeries) currency(name string) string {
	switch {
	case n == nil:
		return Other
	case slices.Contains(n.currencies, name):
	case len(n.currencies) >= mostCurrencies:
		return Other
	default:
		n.currencies = append(n.currencies, name)
	}
	return name
}

// evict drops the pair that was idle for the longest time, if that is long enough.
func (n *namespaceSeries) evict(name string) bool {
	var longest *pair
	most := keepIdle - 1
	for p, idle := range n.models {
		if *idle > most {
			longest, most = &p, *idle
		}
	}
	if longest != nil {
		n.drop(name, *longest)
	}
	return longest != nil
}

func (b *bounds) sweep(live Live) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, n := range b.namespaces {
		providers, lives := live[name]
		if n.idle++; !lives && n.running == 0 && n.idle >= keepGone {
			b.drop(name)
			continue
		}
		for p, idle := range n.models {
			if *idle++; !providers[p.provider] && *idle >= keepGone {
				n.drop(name, p)
			}
		}
	}
}

// drop deletes all series of a namespace.
func (b *bounds) drop(name string) {
	delete(b.namespaces, name)
	for _, v := range vectors {
		v.DeletePartialMatch(prometheus.Labels{"namespace": name})
	}
}

// drop deletes all series of a pair.
func (n *namespaceSeries) drop(name string, p pair) {
	delete(n.models, p)
	tokens.DeletePartialMatch(prometheus.Labels{"namespace": name, "provider": p.provider, "model": p.model})
}
