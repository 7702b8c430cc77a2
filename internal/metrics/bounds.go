package metrics

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Tenants choose the names of namespaces, Agents, judges, ModelProviders and models, so the number of series with these
// names is bounded. Each namespace has its own share, which other namespaces cannot use up.
const (
	// mostNamespaces is the number of namespaces that have their own series.
	mostNamespaces = 256
	// mostModels is the number of pairs of a ModelProvider and a model that have their own series in one namespace.
	mostModels = 16
	// mostGroups is the number of groups (an Agent, a ModelProvider and a model) that have their own series in one
	// namespace. A namespace always has room for ownGroups groups. The groups beyond that, of all namespaces together,
	// are at most sharedGroups. A group has about 60 series.
	mostGroups   = 16
	ownGroups    = 4
	sharedGroups = 256
	// mostCurrencies is the number of currencies that have their own series in one namespace.
	mostCurrencies = 4
	// Other is the value of the labels namespace, agent, judge, provider, model and currency for everything beyond
	// these bounds.
	Other = "other"
	// keepGone is the number of sweeps without use after which the series of a deleted object are removed, so that they
	// are scraped once more.
	keepGone = 15
	// keepIdle is the number of sweeps without use after which series may be removed to make room for new series.
	keepIdle = 60
)

// Live maps each namespace that has Agents or ModelProviders to their names.
type Live map[string]Names

// Names are the names of the Agents and of the ModelProviders of a namespace.
type Names struct{ Agents, Providers map[string]bool }

// hasProvider reports whether a ModelProvider exists. name is its name as Turns of the namespace write it:
// NAMESPACE/NAME if it is in another namespace.
func (l Live) hasProvider(namespace, name string) bool {
	namespace, name = objectOf(namespace, name)
	return l[namespace].Providers[name]
}

// hasAgent is hasProvider for an Agent.
func (l Live) hasAgent(namespace, name string) bool {
	namespace, name = objectOf(namespace, name)
	return l[namespace].Agents[name]
}

// objectOf returns the namespace and the name of the object that Turns of a namespace know by a name, which may be
// NAMESPACE/NAME.
func objectOf(namespace, name string) (objectNamespace, objectName string) {
	if objectNamespace, objectName, ok := strings.Cut(name, "/"); ok {
		return objectNamespace, objectName
	}
	return namespace, name
}

// Sweep removes the series of deleted namespaces, Agents and ModelProviders, some time after their last use. The
// manager calls it once a minute.
func Sweep(live Live) { known.sweep(live) }

// known holds the values of labels that have series.
var known = &bounds{}

// bounds decides which values of labels get series. Its lock is held while a series is counted. Otherwise a series
// could be created after a sweep has dropped its namespace, and would never be removed.
type bounds struct {
	mu         sync.Mutex
	namespaces map[string]*namespaceSeries
}

// namespaceSeries is a namespace that has its own series.
type namespaceSeries struct {
	// running is the number of running Turns of the namespace.
	running int
	// idle is the number of sweeps since a metric of the namespace last changed.
	idle   int
	models map[pair]*int
	groups map[group]*int
	judges map[judgeKey]*int
	// providers are the ModelProviders that have refused requests. The values are the numbers of sweeps since the last
	// refused request.
	providers map[string]*int
	// currencies are the currencies that have series, unordered.
	currencies []string
}

// pair is a model of a ModelProvider. Its value in the map models is the number of sweeps since its metrics last
// changed.
type pair struct{ provider, model string }

// group is a model that an Agent uses. Its value in the map groups is the number of sweeps since its metrics last
// changed.
type group struct{ agent, provider, model string }

// withNamespace calls count with the value of the label namespace and with the state of the namespace, which is nil
// for Other. A namespace with that name has no series of its own: they would be removed with it.
func (b *bounds) withNamespace(name string, count func(label string, n *namespaceSeries)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.namespaces[name]
	if n == nil {
		if name == Other || len(b.namespaces) >= mostNamespaces && !b.evict() {
			count(Other, nil)
			return
		}
		n = b.add(name)
	}
	n.idle = 0
	count(name, n)
}

// add adds a namespace. The caller must hold the lock.
func (b *bounds) add(name string) *namespaceSeries {
	if b.namespaces == nil {
		b.namespaces = map[string]*namespaceSeries{}
	}
	n := &namespaceSeries{
		models: map[pair]*int{}, groups: map[group]*int{}, judges: map[judgeKey]*int{}, providers: map[string]*int{},
	}
	b.namespaces[name] = n
	return n
}

// labelOf returns the value of the label namespace for a metric that is collected at each scrape. A scrape does not use
// a namespace. So labelOf removes no idle namespace, and a namespace that only labelOf has added may be removed at any
// time.
func (b *bounds) labelOf(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.namespaces[name] == nil {
		if name == Other || len(b.namespaces) >= mostNamespaces {
			return Other
		}
		b.add(name).idle = keepIdle
	}
	return name
}

// evict removes the namespace that was idle for the longest time, if it was idle for at least keepIdle sweeps and has
// no running Turn. It reports whether it has removed a namespace.
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

// admit returns the labels provider and model of a pair. name is the name of the namespace; n is nil for Other.
func (n *namespaceSeries) admit(name string, p pair) pair {
	if n == nil {
		return pair{Other, Other}
	}
	room := func() bool { return len(n.models) < mostModels }
	if !admit(n.models, p, room, func(p pair) { n.drop(name, p) }) {
		return pair{Other, Other}
	}
	return p
}

// admitProvider returns the label provider of a ModelProvider of the namespace. name is the name of the namespace; n is
// nil for Other.
func (n *namespaceSeries) admitProvider(name, provider string) string {
	if n == nil {
		return Other
	}
	room := func() bool { return len(n.providers) < mostProviders }
	if !admit(n.providers, provider, room, func(provider string) { n.dropProvider(name, provider) }) {
		return Other
	}
	return provider
}

// admitGroup returns the labels agent, provider and model of a group. name is the name of the namespace; n is nil for
// Other. The caller must hold the lock.
func (b *bounds) admitGroup(name string, n *namespaceSeries, g group) group {
	other := group{Other, Other, Other}
	if n == nil {
		return other
	}
	room := func() bool {
		return len(n.groups) < ownGroups || len(n.groups) < mostGroups && b.shared() < sharedGroups
	}
	if !admit(n.groups, g, room, func(g group) { n.dropGroup(name, g) }) {
		return other
	}
	return g
}

// shared returns the number of groups that namespaces have beyond their own room.
func (b *bounds) shared() (sum int) {
	for _, n := range b.namespaces {
		sum += max(0, len(n.groups)-ownGroups)
	}
	return sum
}

// admit reports whether a key of a namespace has its own series. If there is no room, admit first drops the key that
// was idle for the longest time, if it was idle for at least keepIdle sweeps.
func admit[K comparable](idle map[K]*int, key K, room func() bool, drop func(K)) bool {
	if sweeps := idle[key]; sweeps != nil {
		*sweeps = 0
		return true
	}
	if !room() {
		var longest *K
		most := keepIdle - 1
		for k, sweeps := range idle {
			if *sweeps > most {
				longest, most = &k, *sweeps
			}
		}
		if longest == nil {
			return false
		}
		drop(*longest)
	}
	idle[key] = new(int)
	return true
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

func (b *bounds) sweep(live Live) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, n := range b.namespaces {
		_, lives := live[name]
		if n.idle++; !lives && n.running == 0 && n.idle >= keepGone {
			b.drop(name)
			continue
		}
		for p, idle := range n.models {
			if *idle++; !live.hasProvider(name, p.provider) && *idle >= keepGone {
				n.drop(name, p)
			}
		}
		for g, idle := range n.groups {
			if *idle++; (!live.hasProvider(name, g.provider) || !live.hasAgent(name, g.agent)) && *idle >= keepGone {
				n.dropGroup(name, g)
			}
		}
		for k, idle := range n.judges {
			if *idle++; !live.hasAgent(name, k.agent) && *idle >= keepGone {
				n.dropJudge(name, k)
			}
		}
		for provider, idle := range n.providers {
			if *idle++; !live.hasProvider(name, provider) && *idle >= keepGone {
				n.dropProvider(name, provider)
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

// dropProvider deletes the series of refused requests of a ModelProvider.
func (n *namespaceSeries) dropProvider(name, provider string) {
	delete(n.providers, provider)
	refusedRequests.DeletePartialMatch(prometheus.Labels{"namespace": name, "provider": provider})
}

// dropGroup deletes all series of a group.
func (n *namespaceSeries) dropGroup(name string, g group) {
	delete(n.groups, g)
	for _, v := range requestVectors {
		v.DeletePartialMatch(prometheus.Labels{
			"namespace": name, "agent": g.agent, "provider": g.provider, "gen_ai_request_model": g.model,
		})
	}
}
