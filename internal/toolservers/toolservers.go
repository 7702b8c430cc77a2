// Package toolservers turns ToolServer objects and their Secrets into connections, and keeps them, so that Turns share one
// connection to each server and what is known of its tools.
package toolservers

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/secrets"
)

const (
	// secretTTL is how long a credential is used before its Secret is read again, and secretTimeout bounds the reading of those
	// of one server.
	secretTTL     = 10 * time.Second
	secretTimeout = 10 * time.Second
	// listTTL is how long a list of tools is used without asking for it again: a server may forget to say that it has changed,
	// and what says so may get lost.
	listTTL = time.Minute
	// keep is for how many sweeps what is known of a server is kept without use.
	keep = 60
	// defaultConnect is the time to connect where an object says nothing, as of one that no API server has filled in.
	defaultConnect = 5 * time.Second
)

// Cache holds the connections that are in use, at most one for each ToolServer. It is safe for concurrent use and implements
// toolbox.Servers.
type Cache struct {
	secrets secrets.Reader
	policy  *netpolicy.Policy
	now     func() time.Time
	log     logr.Logger
	memory  *bytebudget.Budget
	known   *redact.Set
	// processors is passed by work on large answers.
	processors *fairgate.Gate
	// idle is how long a connection is kept without use; 0 for mcp.DefaultIdle.
	idle time.Duration

	mu       sync.Mutex
	entries  map[types.NamespacedName]*entry
	retired  []*mcp.Client
	onChange func(types.NamespacedName)
	closed   bool
}

// entry is one server; its lock makes all who want it wait for one reading of its Secrets, each as long as it may.
type entry struct {
	key      types.NamespacedName
	lock     chan struct{} // holds one token while somebody has the lock
	client   *mcp.Client
	settings settings
	earlier  []string // secrets of before
	uid      types.UID
	version  int64
	read     time.Time
	// idle is how many sweeps have been since the entry was last asked for. The cache's lock guards it.
	idle int

	mu sync.Mutex
	// known is what the object of a UID was last known to offer, and offered the same as tools for a generation of it.
	known      *mcp.Listing
	knownUID   types.UID
	offered    []tool.Tool
	offeredAs  *mcp.Listing
	offeredFor int64
}

// settings are all that makes one connection another.
type settings struct {
	url, token, from, bundle string
	headers                  []mcp.Header
	connect                  time.Duration
}

// NewCache returns an empty cache of servers that are reached at what a policy allows; a nil policy is the built-in table. Close
// ends it.
func NewCache(read secrets.Reader, policy *netpolicy.Policy, now func() time.Time, log logr.Logger) *Cache {
	return &Cache{secrets: read, policy: policy, now: now, log: log, entries: map[types.NamespacedName]*entry{}}
}

// Share has connections read large answers, and hold lists of tools, within a memory budget. It holds for connections that are made
// later, so it is set before the cache is used.
func (c *Cache) Share(memory *bytebudget.Budget) { c.memory = memory }

// TakeTurns has the namespaces of connections take turns at what keeps a processor busy. It is called before the cache is used.
func (c *Cache) TakeTurns(processors *fairgate.Gate) { c.processors = processors }

// NoteIn has a set know the credentials of the connections for as long as the cache keeps them. It is called before the cache is used.
func (c *Cache) NoteIn(known *redact.Set) { c.known = known }

// note says which credentials an entry has. One that was forgotten meanwhile has none.
func (c *Cache) note(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[e.key] == e {
		c.known.Put(e.key.Namespace, owner(e.key), append(mcp.Secrets(e.settings.token, e.settings.headers), e.earlier...))
	}
}

// owner names an object within its namespace.
func owner(key types.NamespacedName) string { return "ToolServer/" + key.Name }

// OnChange has f called when the tools of a server are found to differ from what they were, with the object's name. f returns
// soon. It holds for connections that are made later, so it is set before the cache is used.
func (c *Cache) OnChange(f func(types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onChange = f
}

func (c *Cache) changed(key types.NamespacedName) {
	c.mu.Lock()
	f := c.onChange
	c.mu.Unlock()
	if f != nil {
		f(key)
	}
}

// Forget ends the connection of an object that is gone. Calls under way go on.
func (c *Cache) Forget(key types.NamespacedName) {
	c.mu.Lock()
	e := c.entries[key]
	delete(c.entries, key)
	c.known.Put(key.Namespace, owner(key), nil)
	c.mu.Unlock()
	if e == nil {
		return
	}
	e.lock <- struct{}{}
	defer e.unlock()
	if e.client != nil {
		c.retire(e.client)
	}
	e.client, e.settings, e.earlier = nil, settings{}, nil
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known, e.offered, e.offeredAs = nil, nil, nil // a connection that is ending holds the entry, and must not hold its list
}

// Sweep forgets what was not used since the sixtieth sweep before, and connections that have ended. A Turn that outlives the object of its server may use
// it once more after Forget.
func (c *Cache) Sweep() {
	c.mu.Lock()
	c.retired = slices.DeleteFunc(c.retired, (*mcp.Client).Ended)
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

// cool gives a connection up that has not been used for a while, with its credentials: an entry that was forgotten may have been in use just
// then. What is known of the tools stays.
func (c *Cache) cool(e *entry, client *mcp.Client) {
	select {
	case e.lock <- struct{}{}:
	default:
		return // somebody is about to use it
	}
	defer e.unlock()
	if e.client == client {
		c.retire(client)
		e.client, e.settings, e.earlier = nil, settings{}, nil
		c.note(e)
	}
}

// retire ends a connection when the calls under way have ended.
func (c *Cache) retire(client *mcp.Client) {
	client.Retire()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = append(slices.DeleteFunc(c.retired, (*mcp.Client).Ended), client)
}

// Close ends all connections with the calls under way, and returns when they have ended.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	entries := c.entries
	c.entries = map[types.NamespacedName]*entry{}
	c.mu.Unlock()
	var all sync.WaitGroup
	for _, e := range entries {
		e.lock <- struct{}{}
		if e.client != nil {
			all.Go(e.client.Close)
		}
		e.unlock()
	}
	c.mu.Lock()
	retired := c.retired
	c.retired = nil
	c.mu.Unlock()
	for _, client := range retired {
		all.Go(client.Close)
	}
	all.Wait()
}

// errClosed means that the cache was closed.
var errClosed = errors.New("connections to tool servers have been closed: the process stops")

// entry returns the entry of an object.
func (c *Cache) entry(s *v1alpha1.ToolServer) (*entry, error) {
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	e := c.entries[key]
	if e == nil {
		e = &entry{key: key, lock: make(chan struct{}, 1)}
		c.entries[key] = e
	}
	e.idle = 0
	return e, nil
}

// connection returns the client of an object, with credentials at most so old, or older ones while the API server is away. It
// returns a *secrets.Error if they are not to be had, or the error of reading them.
func (c *Cache) connection(ctx context.Context, e *entry, s *v1alpha1.ToolServer, ttl time.Duration) (*mcp.Client, error) {
	if err := e.acquire(ctx); err != nil {
		return nil, err
	}
	defer e.unlock()
	current := e.client != nil && e.uid == s.UID && e.version == s.Generation
	if current && c.now().Sub(e.read) < ttl {
		return e.client, nil
	}
	bounded, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	settings, err := c.settings(bounded, s)
	if err != nil && ttl > 0 && secrets.IsAway(err) && current {
		e.read = c.now() // the credentials of before serve while the API server is away; it is asked again in a while
		return e.client, nil
	}
	if err != nil {
		return nil, err
	}
	if e.client == nil || e.uid != s.UID || !reflect.DeepEqual(settings, e.settings) {
		earlier := redact.Earlier(e.earlier, mcp.Secrets(e.settings.token, e.settings.headers), mcp.Secrets(settings.token, settings.headers))
		if e.uid != s.UID {
			earlier = nil
		}
		client, err := c.newClient(s.Name, e, settings, earlier)
		if err != nil {
			return nil, err
		}
		if e.client != nil {
			c.retire(e.client)
		}
		e.client, e.settings, e.earlier = client, settings, earlier
		c.note(e)
	}
	e.uid, e.version, e.read = s.UID, s.Generation, c.now()
	return e.client, nil
}

func (c *Cache) newClient(name string, e *entry, s settings, earlier []string) (*mcp.Client, error) {
	var roots *x509.CertPool
	if s.bundle != "" {
		var err error
		if roots, err = netpolicy.Roots([]byte(s.bundle)); err != nil {
			return nil, fmt.Errorf("failed to read the CA bundle of tool server %q: %w", name, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	var client *mcp.Client
	client = mcp.New(mcp.Config{
		Name: name, URL: s.url, Token: s.token, CredentialsFrom: s.from, Headers: s.headers, Earlier: earlier, ConnectTimeout: s.connect,
		Memory: c.memory.Account(e.key.Namespace, bytebudget.Results), Listings: c.memory.Account(e.key.Namespace, bytebudget.Listings),
		Processors: c.processors, Namespace: e.key.Namespace, Policy: c.policy.In(e.key.Namespace), Roots: roots, Now: c.now, OnChange: func() { c.changed(e.key) },
		Idle: c.idle, OnIdle: func() { c.cool(e, client) },
		Log: c.log.WithValues("toolServer", e.key.String()),
	})
	return client, nil
}

func (c *Cache) settings(ctx context.Context, s *v1alpha1.ToolServer) (out settings, err error) {
	if s.Spec.MCP == nil {
		return out, &mcp.Error{Kind: mcp.Protocol, Message: "the ToolServer has no mcp.url"}
	}
	out.url, out.connect = s.Spec.MCP.URL, time.Duration(s.Spec.ConnectTimeoutSeconds)*time.Second
	if out.connect <= 0 {
		out.connect = defaultConnect
	}
	if ref := s.Spec.CredentialsRef; ref != nil {
		out.from = fmt.Sprintf("key %q of Secret %q in namespace %q", ref.Key, ref.Name, s.Namespace)
		if out.token, err = c.secrets.Header(ctx, s.Namespace, *ref, s.Spec.MCP.URL); err != nil {
			return out, err
		}
	}
	values, err := c.secrets.Headers(ctx, s.Namespace, s.Spec.Headers, s.Spec.MCP.URL)
	if err != nil {
		return out, err
	}
	for i, h := range s.Spec.Headers {
		out.headers = append(out.headers, mcp.Header{Name: h.Name, Value: values[i], Secret: h.ValueFrom != nil})
	}
	if s.Spec.TLS != nil {
		out.bundle, err = c.secrets.CABundle(ctx, s.Namespace, s.Spec.TLS.CABundleRef)
	}
	return out, err
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
