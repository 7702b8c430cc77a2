// Package providers creates clients for ModelProviders from their objects and Secrets, and caches them. Turns share
// the connections, and a thousand Turns do not read a Secret a thousand times.
package providers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/grace"
	"github.com/capstan-dev/capstan/internal/model/anthropic"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// secretTTL is how long a credential is used before its Secret is read again.
const secretTTL = 10 * time.Second

// maxIdleSweeps is the number of sweeps for which an unused provider is kept.
const maxIdleSweeps = 10

// secretTimeout bounds the time for reading one provider's Secrets.
const secretTimeout = 10 * time.Second

// SecretReader reads a Secret. Its error satisfies apierrors.IsNotFound if the Secret does not exist.
type SecretReader = secrets.Reader

// SecretError means that a provider cannot use a Secret or a header; see secrets.Error.
type SecretError = secrets.Error

// Cache caches providers by object and generation. It is safe for concurrent use.
type Cache struct {
	secrets      SecretReader
	now          func() time.Time
	policy       *netpolicy.Policy
	memory       *bytebudget.Budget
	knownSecrets *redact.Set
	// workloadTokens is nil if the operator of the cluster offers none.
	workloadTokens *secrets.WorkloadTokens
	// refused is called for each request that a gate does not let in. It is nil if no function was set.
	refused func(namespace, provider string)

	mu      sync.Mutex
	entries map[types.NamespacedName]*entry
	gates   map[types.NamespacedName]*gate
	// sweeps is the number of sweeps so far.
	sweeps int
	// executors is the number of executors that share the limits of the gates.
	executors int
}

// config is the configuration of a provider.
type config struct {
	endpoint.Config
	// certificates are the certificates of the connections. The field TLS of the Config is made from them.
	certificates netpolicy.Certificates
	// dialect is nil for the Messages protocol of Anthropic, and anthropic is nil for chat completions.
	dialect   *openai.Dialect
	anthropic *anthropic.Options
	// kept is the account for the memory of the credentials and certificates.
	kept bytebudget.Account
}

// provider returns a provider with this configuration.
func (c *config) provider() *endpoint.Provider {
	if c.anthropic != nil {
		return anthropic.New(anthropic.Config{Config: c.Config, Options: *c.anthropic})
	}
	return openai.New(openai.Config{Config: c.Config, Dialect: *c.dialect})
}

// NewCache returns an empty cache. Its providers connect only to addresses that the policy allows, and read long
// replies into the memory budget. A nil policy is the built-in table, and a nil budget has no bound.
func NewCache(secrets SecretReader, now func() time.Time, policy *netpolicy.Policy, memory *bytebudget.Budget) *Cache {
	return &Cache{
		secrets: secrets, now: now, policy: policy, memory: memory,
		entries: map[types.NamespacedName]*entry{}, gates: map[types.NamespacedName]*gate{}, executors: 1,
	}
}

// SetCredentialSet makes the set contain the credentials of the providers for as long as the cache keeps them. It
// must be called before the cache is used.
func (c *Cache) SetCredentialSet(known *redact.Set) { c.knownSecrets = known }

// SetWorkloadTokens sets the tokens that the operator of the cluster offers. It must be called before the cache is
// used.
func (c *Cache) SetWorkloadTokens(tokens *secrets.WorkloadTokens) { c.workloadTokens = tokens }

// OnRefused sets a function that is called for each request that the gate of a ModelProvider does not let in. It must
// not block, and must not use the cache. It must be set before the cache is used.
func (c *Cache) OnRefused(refused func(namespace, provider string)) { c.refused = refused }

// updateKnown puts the credentials of an entry into the set, unless the cache has forgotten the entry.
func (c *Cache) updateKnown(key types.NamespacedName, e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[key] == e {
		c.knownSecrets.Put(key.Namespace, owner(key), e.known())
	}
}

// owner names an object within its namespace.
func owner(key types.NamespacedName) string { return "ModelProvider/" + key.Name }

// Get returns the provider of an object. Its credentials are at most 10 s old, or older while the API server cannot be
// reached, or has just begun to forbid to read them. Get returns a *SecretError if the credentials cannot be used, or
// the error of reading them.
func (c *Cache) Get(ctx context.Context, p *v1alpha1.ModelProvider) (*endpoint.Provider, error) {
	return c.get(ctx, p, secretTTL)
}

// Fresh is Get, but always reads the credentials again.
func (c *Cache) Fresh(ctx context.Context, p *v1alpha1.ModelProvider) (*endpoint.Provider, error) {
	return c.get(ctx, p, 0)
}

func (c *Cache) get(ctx context.Context, p *v1alpha1.ModelProvider, ttl time.Duration) (*endpoint.Provider, error) {
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	c.mu.Lock()
	e := c.entries[key]
	if e == nil {
		e = &entry{lock: make(chan struct{}, 1)}
		c.entries[key] = e
	}
	e.idle = 0
	sweep := c.sweeps
	c.mu.Unlock()

	if err := e.acquire(ctx); err != nil {
		return nil, err
	}
	defer e.unlock()
	e.prune(sweep)
	v := e.find(p, sweep)
	isFresh := v != nil && c.now().Sub(v.read) < ttl
	if isFresh && v.changes == e.changes {
		return v.provider, nil
	}
	var made config
	var err error
	read := c.now()
	var refusal grace.Refusal
	if isFresh {
		made, read, refusal = v.config, v.read, v.refusal
	} else {
		bounded, cancel := context.WithTimeout(ctx, secretTimeout)
		defer cancel()
		made, err = c.config(bounded, p)
	}
	if err != nil && ttl > 0 && v != nil && secrets.MayKeep(err, &v.refusal, c.now()) {
		v.read = c.now() // use the old credentials for another secretTTL, and then try the API server again
		return v.provider, nil
	}
	if err != nil {
		if v == nil && apierrors.IsForbidden(err) && e.refusal.Bridges(err, c.now()) {
			err = &newlyForbiddenError{err}
		}
		return nil, err
	}
	if v == nil {
		e.refusal = grace.Refusal{}
	}
	if v, err = e.put(p, made, read, sweep); err != nil {
		return nil, err
	}
	v.refusal = refusal
	c.updateKnown(key, e)
	return v.provider, nil
}

// Forget drops the provider of an object that was deleted.
func (c *Cache) Forget(key types.NamespacedName) {
	c.mu.Lock()
	delete(c.gates, key)
	c.mu.Unlock()
	c.forgetProvider(key)
}

// forgetProvider drops the provider of an object and keeps its gate.
func (c *Cache) forgetProvider(key types.NamespacedName) {
	c.mu.Lock()
	e := c.entries[key]
	delete(c.entries, key)
	c.knownSecrets.Put(key.Namespace, owner(key), nil)
	c.mu.Unlock()
	if e == nil {
		return
	}
	e.close()
}

// Sweep forgets the providers that were not used during the last ten sweeps, and the gates that were not used for a
// day. It finds the entries that Forget missed: a Turn that outlives its object may use the provider once more after
// Forget.
func (c *Cache) Sweep() {
	c.mu.Lock()
	c.sweeps++
	var idle []types.NamespacedName
	for key, e := range c.entries {
		if e.idle++; e.idle > maxIdleSweeps {
			idle = append(idle, key)
		}
	}
	for key, g := range c.gates {
		if g.IsUnused(keepGateFor) {
			delete(c.gates, key)
		}
	}
	c.mu.Unlock()
	for _, key := range idle {
		c.forgetProvider(key)
	}
}

// acquire takes the lock. If the lock is free it succeeds even when ctx has ended.
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

// close drops the providers. Running requests continue.
func (e *entry) close() {
	e.lock <- struct{}{}
	defer e.unlock()
	e.clear()
}

// Close drops all idle connections.
func (c *Cache) Close() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.entries))
	c.mu.Unlock()
	for _, e := range all { // without c.mu, because get takes c.mu while it holds the lock of an entry
		e.close()
	}
}

// config returns the configuration of a provider, without TLS.
func (c *Cache) config(ctx context.Context, p *v1alpha1.ModelProvider) (cfg config, err error) {
	cfg = config{Config: endpoint.Config{
		Name: p.Name, BaseURL: p.Spec.BaseURL, Policy: c.policy.ForNamespace(p.Namespace),
		Memory:         c.memory.Account(p.Namespace, bytebudget.Replies),
		ConnectTimeout: time.Duration(p.Spec.Timeouts.ConnectSeconds) * time.Second,
		IdleTimeout:    time.Duration(p.Spec.Timeouts.IdleSeconds) * time.Second,
	}, kept: c.memory.Account(p.Namespace, bytebudget.Objects)}
	if first := p.Spec.Timeouts.FirstEventSeconds; first != nil {
		cfg.FirstEventTimeout = time.Duration(*first) * time.Second
	}
	if p.Spec.Type == v1alpha1.ProviderTypeAnthropic {
		cfg.anthropic = anthropicOptions(&p.Spec)
	} else {
		cfg.dialect = new(dialectOf(&p.Spec))
	}
	if ref := p.Spec.CredentialsRef; ref != nil {
		cfg.CredentialsFrom = fmt.Sprintf("key %q of Secret %q in namespace %q", ref.Key, ref.Name, p.Namespace)
		if cfg.APIKey, err = c.secrets.Header(ctx, p.Namespace, *ref, p.Spec.BaseURL); err != nil {
			return cfg, err
		}
	}
	if name := p.Spec.WorkloadToken; name != "" {
		cfg.CredentialsFrom = fmt.Sprintf("workload token %q of namespace %q", name, p.Namespace)
		if cfg.BearerToken, err = c.workloadTokens.Read(p.Namespace, name, p.Spec.BaseURL); err != nil {
			return cfg, err
		}
	}
	values, err := c.secrets.Headers(ctx, p.Namespace, p.Spec.Headers, p.Spec.BaseURL)
	if err != nil {
		return cfg, err
	}
	for i, h := range p.Spec.Headers {
		cfg.Headers = append(cfg.Headers, endpoint.Header{Name: h.Name, Value: values[i], Secret: h.ValueFrom != nil})
	}
	if err := secrets.CheckTotal(cfg.Secrets()); err != nil {
		return cfg, err
	}
	cfg.certificates, err = c.secrets.Certificates(ctx, p.Namespace, p.Spec.TLS, p.Spec.BaseURL)
	return cfg, err
}
