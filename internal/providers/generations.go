package providers

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/grace"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// maxGenerations is the number of generations of an object whose providers are kept. A Turn continues with the
// generation that it began with, while new Turns use a newer one.
const maxGenerations = 4

// entry has the providers of one object. All callers that need a provider of the object wait for the same reading of
// its Secrets, each until its own context ends.
type entry struct {
	lock chan struct{} // a lock with the capacity 1: an element in it means locked
	uid  types.UID
	// versions are the providers of the generations in use, the most recently used first.
	versions []*version
	// earlier are credentials that no version has anymore.
	earlier []string
	// changes counts the versions that were made with new credentials.
	changes int
	// refusal holds whether the API server forbids to read the Secrets of generations that have no version. The first
	// version of a generation ends the refusal.
	refusal grace.Refusal
	// idle is the number of sweeps since the entry was last used. Cache.mu guards it.
	idle int
}

// version is the provider of one generation. Generations with the same configuration share a provider.
type version struct {
	generation int64
	provider   *endpoint.Provider
	config     config
	// changes is the value of changes of the entry when the provider was made. The provider removes from texts all
	// credentials that the entry had until then.
	changes int
	// read is the time at which the API server was last asked for the Secrets, and refusal holds whether it has
	// forbidden to read them since it last answered. used is the number of the last sweep before the last use.
	read    time.Time
	refusal grace.Refusal
	used    int
}

// find returns the version of an object, or nil. sweep is the number of the last sweep.
func (e *entry) find(p *v1alpha1.ModelProvider, sweep int) *version {
	i := slices.IndexFunc(e.versions, func(v *version) bool { return v.generation == p.Generation })
	if i < 0 || e.uid != p.UID {
		return nil
	}
	v := e.versions[i]
	v.used = sweep
	e.versions = slices.Insert(slices.Delete(e.versions, i, i+1), 0, v)
	return v
}

// put makes the version of an object with this configuration. If another version has the same configuration, the new
// version shares its provider. put drops the version that the new version replaces, and versions beyond maxGenerations.
func (e *entry) put(p *v1alpha1.ModelProvider, made config, read time.Time, sweep int) (*version, error) {
	v := &version{generation: p.Generation, config: made, read: read, used: sweep}
	if e.uid == p.UID {
		v.provider = e.shared(made)
	}
	if v.provider == nil {
		whole := made // with TLS and Earlier, which shared must not compare
		var err error
		if whole.TLS, err = made.certificates.TLS(); err != nil {
			return nil, fmt.Errorf("failed to read the certificates of provider %q: %w", p.Name, err)
		}
		var known []string
		if e.uid == p.UID {
			known = e.known()
		}
		whole.Earlier = redact.RetainPrevious(nil, known, made.Secrets())
		reservation, err := secrets.Reserve(made.kept, slices.Concat(made.Secrets(), whole.Earlier), made.certificates)
		if err != nil {
			return nil, err
		}
		if e.uid != p.UID {
			e.clear()
			e.uid = p.UID
		}
		if slices.ContainsFunc(made.Secrets(), func(s string) bool { return !slices.Contains(known, s) }) {
			e.changes++
		}
		v.provider = whole.provider()
		// Requests in progress may use the provider after it was dropped.
		runtime.AddCleanup(v.provider, (*bytebudget.Reservation).Release, reservation)
	}
	v.changes = e.changes
	others := slices.DeleteFunc(slices.Clone(e.versions), func(other *version) bool { return other.generation == p.Generation })
	e.keep(append([]*version{v}, others[:min(len(others), maxGenerations-1)]...))
	return v, nil
}

// prune drops the versions that were not used for maxIdleSweeps. sweep is the number of the last sweep.
func (e *entry) prune(sweep int) {
	e.keep(slices.DeleteFunc(slices.Clone(e.versions), func(v *version) bool { return sweep-v.used > maxIdleSweeps }))
}

// shared returns a provider with this configuration that removes all known credentials from texts, or nil.
func (e *entry) shared(made config) *endpoint.Provider {
	for _, v := range e.versions {
		if v.changes == e.changes && reflect.DeepEqual(made, v.config) {
			return v.provider
		}
	}
	return nil
}

// keep drops all versions that are not in kept. It closes their providers, and keeps their credentials in earlier.
func (e *entry) keep(kept []*version) {
	before := e.versions
	e.versions = kept
	for _, v := range before {
		if slices.Contains(kept, v) {
			continue
		}
		e.earlier = redact.RetainPrevious(e.earlier, v.config.Secrets(), e.current())
		if !slices.ContainsFunc(kept, func(other *version) bool { return other.provider == v.provider }) {
			v.provider.Close()
		}
	}
}

// current returns the credentials of all versions.
func (e *entry) current() (all []string) {
	for _, v := range e.versions {
		all = append(all, v.config.Secrets()...)
	}
	return all
}

// known returns the credentials of all versions, and the earlier ones, the newest last.
func (e *entry) known() []string { return append(slices.Clone(e.earlier), e.current()...) }

// clear drops the providers with their idle connections and their credentials. Running requests continue.
func (e *entry) clear() {
	for _, v := range e.versions {
		v.provider.Close()
	}
	e.uid, e.versions, e.earlier, e.changes, e.refusal = "", nil, nil, 0, grace.Refusal{}
}
