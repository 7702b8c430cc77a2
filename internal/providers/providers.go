// Package providers turns ModelProvider objects and their Secrets into providers that can be asked, and keeps them, so
// that Turns share connections and a thousand Turns do not read a Secret a thousand times.
package providers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/model/openai"
)

// secretTTL is how long a credential is used before its Secret is read again.
const secretTTL = 10 * time.Second

// secretTimeout bounds the reading of one provider's Secrets.
const secretTimeout = 10 * time.Second

// SecretReader reads a Secret. A Secret that does not exist is an error that apierrors.IsNotFound knows.
type SecretReader func(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error)

// SecretError is a Secret that is missing, or lacks what a provider needs of it.
type SecretError struct {
	// Secret and Key that are wanted.
	Secret, Key string
	// Reason says what is wrong and what to do.
	Reason string
}

// Error returns the reason.
func (e *SecretError) Error() string { return e.Reason }

// Cache holds the providers that are in use. It is safe for concurrent use.
type Cache struct {
	secrets SecretReader
	now     func() time.Time

	mu      sync.Mutex
	entries map[types.NamespacedName]*entry
}

// entry is one provider; its lock makes all who want it wait for one reading of its Secrets, each as long as it may.
type entry struct {
	lock     chan struct{} // holds one token while somebody has the lock
	provider *openai.Provider
	config   openai.Config
	uid      types.UID
	version  int64
	read     time.Time
}

// NewCache returns an empty cache.
func NewCache(secrets SecretReader, now func() time.Time) *Cache {
	return &Cache{secrets: secrets, now: now, entries: map[types.NamespacedName]*entry{}}
}

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
	config, err := c.config(bounded, p)
	if err != nil && ttl > 0 && isAway(err) && e.provider != nil && e.uid == p.UID && e.version == p.Generation {
		e.read = c.now() // the credentials of before serve while the API server is away; it is asked again in a while
		return e.provider, nil
	}
	if err != nil {
		return nil, err
	}
	if e.provider == nil || !reflect.DeepEqual(config, e.config) {
		if e.provider != nil {
			e.provider.Close()
		}
		e.provider, e.config = openai.New(config), config
	}
	e.uid, e.version, e.read = p.UID, p.Generation, c.now()
	return e.provider, nil
}

// isAway reports whether a Secret could not be read because the API server gave no answer, or none that will last.
func isAway(err error) bool {
	if _, ok := errors.AsType[*SecretError](err); ok {
		return false
	}
	if _, answered := errors.AsType[*apierrors.StatusError](err); !answered {
		return true
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// Forget drops the provider of an object that is gone.
func (c *Cache) Forget(key types.NamespacedName) {
	c.mu.Lock()
	e := c.entries[key]
	delete(c.entries, key)
	c.mu.Unlock()
	if e == nil {
		return
	}
	e.close()
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

// close drops the idle connections of the provider.
func (e *entry) close() {
	e.lock <- struct{}{}
	defer e.unlock()
	if e.provider != nil {
		e.provider.Close()
	}
}

// Close drops all idle connections.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		e.close()
	}
}

func (c *Cache) config(ctx context.Context, p *v1alpha1.ModelProvider) (openai.Config, error) {
	cfg := openai.Config{
		Name: p.Name, BaseURL: p.Spec.BaseURL,
		ConnectTimeout: time.Duration(p.Spec.Timeouts.ConnectSeconds) * time.Second,
		IdleTimeout:    time.Duration(p.Spec.Timeouts.IdleSeconds) * time.Second,
	}
	var err error
	if ref := p.Spec.CredentialsRef; ref != nil {
		cfg.CredentialsFrom = fmt.Sprintf("key %q of Secret %q in namespace %q", ref.Key, ref.Name, p.Namespace)
		if cfg.APIKey, err = c.value(ctx, p.Namespace, *ref); err != nil {
			return cfg, err
		}
	}
	for _, h := range p.Spec.Headers {
		value := ""
		switch {
		case h.Value != nil:
			value = *h.Value
		case h.ValueFrom != nil:
			if value, err = c.value(ctx, p.Namespace, h.ValueFrom.SecretKeyRef); err != nil {
				return cfg, err
			}
		}
		cfg.Headers = append(cfg.Headers, openai.Header{Name: h.Name, Value: value, Secret: h.ValueFrom != nil})
	}
	return cfg, nil
}

func (c *Cache) value(ctx context.Context, namespace string, ref v1alpha1.SecretKeyReference) (string, error) {
	secret, err := c.secrets(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name})
	refuse := func(format string, args ...any) (string, error) {
		return "", &SecretError{Secret: ref.Name, Key: ref.Key, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case apierrors.IsNotFound(err):
		return refuse("Secret %q does not exist in namespace %q: create it with key %q", ref.Name, namespace, ref.Key)
	case err != nil:
		return "", fmt.Errorf("failed to read Secret %q in namespace %q: %w", ref.Name, namespace, err)
	}
	raw, ok := secret.Data[ref.Key]
	if !ok {
		return refuse("Secret %q in namespace %q has no key %q: add it", ref.Name, namespace, ref.Key)
	}
	value := strings.TrimSpace(string(raw))
	if value == "" {
		return refuse("key %q of Secret %q in namespace %q is empty: put the credential there", ref.Key, ref.Name, namespace)
	}
	for _, r := range value {
		if r < 0x20 || r > 0x7e {
			return refuse("key %q of Secret %q in namespace %q holds characters that no HTTP header can carry: store the bare credential", ref.Key, ref.Name, namespace)
		}
	}
	return value, nil
}
