// Package providers turns ModelProvider objects and their Secrets into providers that can be asked, and keeps them, so
// that Turns share connections and a thousand Turns do not read a Secret a thousand times.
package providers

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// secretTTL is how long a credential is used before its Secret is read again.
const secretTTL = 10 * time.Second

// keep is for how many sweeps a provider is kept without use.
const keep = 10

// secretTimeout bounds the reading of one provider's Secrets.
const secretTimeout = 10 * time.Second

// SecretReader reads a Secret. A Secret that does not exist is an error that apierrors.IsNotFound knows.
type SecretReader = secrets.Reader

// SecretError is a Secret that is missing, or lacks what a provider needs of it.
type SecretError = secrets.Error

// Cache holds the providers that are in use. It is safe for concurrent use.
type Cache struct {
	secrets SecretReader
	now     func() time.Time
	policy  *netpolicy.Policy
	memory  *bytebudget.Budget
	known   *redact.Set

	mu      sync.Mutex
	entries map[types.NamespacedName]*entry
}

// entry is one provider; its lock makes all who want it wait for one reading of its Secrets, each as long as it may.
type entry struct {
	lock     chan struct{} // holds one token while somebody has the lock
	provider *openai.Provider
	config   openai.Config
	earlier  []string // secrets of before
	bundle   string   // of certificate authorities, in PEM
	uid      types.UID
	version  int64
	read     time.Time
	// idle is how many sweeps have been since the entry was last asked for. The cache's lock guards it.
	idle int
}

// NewCache returns an empty cache of providers that connect to what a policy allows, and read long replies into a memory budget; a nil
// policy is the built-in table, and a nil budget has no bound.
func NewCache(secrets SecretReader, now func() time.Time, policy *netpolicy.Policy, memory *bytebudget.Budget) *Cache {
	return &Cache{secrets: secrets, now: now, policy: policy, memory: memory, entries: map[types.NamespacedName]*entry{}}
}

// NoteIn has a set know the credentials of the providers for as long as the cache keeps them. It is called before the cache is used.
func (c *Cache) NoteIn(known *redact.Set) { c.known = known }

// note says which credentials an entry has. One that was forgotten meanwhile has none.
func (c *Cache) note(key types.NamespacedName, e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[key] == e {
		c.known.Put(key.Namespace, owner(key), append(e.config.Secrets(), e.earlier...))
	}
}

// owner names an object within its namespace.
func owner(key types.NamespacedName) string { return "ModelProvider/" + key.Name }

// Get returns the provider of an object, with credentials at most 10 s old, or older ones while the API server is away. It returns a *SecretError if they are not to
// be had, or the error of reading them.
func (c *Cache) Get(ctx context.Context, p *v1alpha1.ModelProvider) (*openai.Provider, error) {
	return c.get(ctx, p, secretTTL)
}

// Fresh is Get with credentials read now.
func (c *Cache) Fresh(ctx context.Context, p *v1alpha1.ModelProvider) (*openai.Provider, error) {
	return c.get(ctx, p, 0)
}

func (c *Cache) get(ctx context.Context, p *v1alpha1.ModelProvider, ttl time.Duration) (*openai.Provider, error) {
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	c.mu.Lock()
	e := c.entries[key]
	if e == nil {
		e = &entry{lock: make(chan struct{}, 1)}
		c.entries[key] = e
	}
	e.idle = 0
	c.mu.Unlock()

	if err := e.acquire(ctx); err != nil {
		return nil, err
	}
	defer e.unlock()
	if e.provider != nil && e.uid == p.UID && e.version == p.Generation && c.now().Sub(e.read) < ttl {
		return e.provider, nil
	}
	bounded, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	config, bundle, err := c.config(bounded, p)
	if err != nil && ttl > 0 && secrets.IsAway(err) && e.provider != nil && e.uid == p.UID && e.version == p.Generation {
		e.read = c.now() // the credentials of before serve while the API server is away; it is asked again in a while
		return e.provider, nil
	}
	if err != nil {
		return nil, err
	}
	if e.provider == nil || bundle != e.bundle || !reflect.DeepEqual(config, e.config) {
		trusting := config // with what cannot be compared
		if bundle != "" {
			if trusting.Roots, err = netpolicy.Roots([]byte(bundle)); err != nil {
				return nil, fmt.Errorf("failed to read the CA bundle of provider %q: %w", p.Name, err)
			}
		}
		if e.provider != nil {
			e.provider.Close()
		}
		if e.uid != p.UID {
			e.earlier = nil
		} else {
			e.earlier = redact.Earlier(e.earlier, e.config.Secrets(), config.Secrets())
		}
		trusting.Earlier = e.earlier
		e.provider, e.config, e.bundle = openai.New(trusting), config, bundle
		c.note(key, e)
	}
	e.uid, e.version, e.read = p.UID, p.Generation, c.now()
	return e.provider, nil
}

// Forget drops the provider of an object that is gone.
func (c *Cache) Forget(key types.NamespacedName) {
	c.mu.Lock()
	e := c.entries[key]
	delete(c.entries, key)
	c.known.Put(key.Namespace, owner(key), nil)
	c.mu.Unlock()
	if e == nil {
		return
	}
	e.close()
}

// Sweep forgets the providers that were not used since the tenth sweep before. A Turn that outlives its object may use it once more after Forget.
func (c *Cache) Sweep() {
	c.mu.Lock()
	var idle []types.NamespacedName
	for key, e := range c.entries {
		if e.idle++; e.idle > keep {
			idle = append(idle, key)
		}
	}
	c.mu.Unlock()
	for _, key := range idle {
		c.Forget(key)
	}
}

// acquire takes the lock. Only waiting for it ends with ctx.
func (e *entry) acquire(ctx context.Context) error {
	select {
	case e.lock <- struct{}{}:
		return nil
	default:
	}
	select {
	case e.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (e *entry) unlock() { <-e.lock }

// close drops the provider with its idle connections and its credentials. Requests under way go on.
func (e *entry) close() {
	e.lock <- struct{}{}
	defer e.unlock()
	if e.provider != nil {
		e.provider.Close()
	}
	e.provider, e.config, e.earlier = nil, openai.Config{}, nil
}

// Close drops all idle connections.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		e.close()
	}
}

// config returns how to reach an endpoint, but for its CA bundle, which is in PEM.
func (c *Cache) config(ctx context.Context, p *v1alpha1.ModelProvider) (cfg openai.Config, bundle string, err error) {
	cfg = openai.Config{
		Name: p.Name, BaseURL: p.Spec.BaseURL, Policy: c.policy.In(p.Namespace), Memory: c.memory.Account(p.Namespace, bytebudget.Replies),
		ConnectTimeout: time.Duration(p.Spec.Timeouts.ConnectSeconds) * time.Second,
		IdleTimeout:    time.Duration(p.Spec.Timeouts.IdleSeconds) * time.Second,
	}
	if ref := p.Spec.CredentialsRef; ref != nil {
		cfg.CredentialsFrom = fmt.Sprintf("key %q of Secret %q in namespace %q", ref.Key, ref.Name, p.Namespace)
		if cfg.APIKey, err = c.secrets.Header(ctx, p.Namespace, *ref, p.Spec.BaseURL); err != nil {
			return cfg, "", err
		}
	}
	values, err := c.secrets.Headers(ctx, p.Namespace, p.Spec.Headers, p.Spec.BaseURL)
	if err != nil {
		return cfg, "", err
	}
	for i, h := range p.Spec.Headers {
		cfg.Headers = append(cfg.Headers, openai.Header{Name: h.Name, Value: values[i], Secret: h.ValueFrom != nil})
	}
	if p.Spec.TLS != nil {
		bundle, err = c.secrets.CABundle(ctx, p.Namespace, p.Spec.TLS.CABundleRef)
	}
	return cfg, bundle, err
}
