// Package toolservers creates connections from ToolServer objects and their Secrets, and caches them. So all Turns
// share one connection to each server, and one list of its tools.
package toolservers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/grace"
	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/secrets"
)

const (
	// secretTTL is how long a credential is used before its Secret is read again. secretTimeout limits how long reading
	// the Secrets of one server takes.
	secretTTL     = 10 * time.Second
	secretTimeout = 10 * time.Second
	// listTTL is how long a list of tools is used before it is requested again. A server may not report a change, or
	// its report may get lost.
	listTTL = time.Minute
	// maxIdleSweeps is the number of sweeps for which the entry of an unused server is kept.
	maxIdleSweeps = 60
	// defaultConnect is the connect timeout of an object without one, for example because no API server has set its
	// defaults.
	defaultConnect = 5 * time.Second
)

// Cache holds the connections in use, at most one for each ToolServer. It implements toolbox.Servers. It is safe
// for concurrent use.
type Cache struct {
	secrets secrets.Reader
	policy  *netpolicy.Policy
	now     func() time.Time
	log     logr.Logger
	memory  *bytebudget.Budget
	known   *redact.Set
	// processors shares the processors between namespaces that work on large answers.
	processors *fairgate.Processors
	// idle is how long an unused connection is kept; 0 means mcp.DefaultIdle.
	idle time.Duration

	mu       sync.Mutex
	entries  map[types.NamespacedName]*entry
	retired  []*mcp.Client
	onChange func(types.NamespacedName)
	closed   bool
}

// entry is the cache entry of one server. Its lock lets one caller read the server's Secrets while the others wait.
// Each caller waits no longer than until its own context ends.
type entry struct {
	key      types.NamespacedName
	lock     chan struct{} // holds one token while the entry is locked
	client   *mcp.Client
	settings settings
	earlier  []string // credentials used before the current ones
	uid      types.UID
	version  int64
	// read is the time at which the API server was last asked for the Secrets, and refusal holds whether it has
	// forbidden to read them since it last answered.
	read    time.Time
	refusal grace.Refusal
	// idle is the number of sweeps since the entry was last requested. The cache's lock guards it.
	idle int

	mu sync.Mutex
	// known is the last known list of the object with the UID knownUID. offered holds the tools that were made from the
	// list offeredAs, with the declarations of the object's generation offeredFor.
	known      *mcp.Listing
	knownUID   types.UID
	offered    []tool.Tool
	offeredAs  *mcp.Listing
	offeredFor int64
}

// settings holds the values of a connection. If one changes, a new connection is needed.
type settings struct {
	url, token, from string
	headers          []mcp.Header
	certificates     netpolicy.Certificates
	connect          time.Duration
}

// NewCache returns an empty cache. The policy decides which addresses it may connect to; if policy is nil, the built-in
// table does. The caller must call Close.
func NewCache(read secrets.Reader, policy *netpolicy.Policy, now func() time.Time, log logr.Logger) *Cache {
	return &Cache{secrets: read, policy: policy, now: now, log: log, entries: map[types.NamespacedName]*entry{}}
}

// SetMemoryBudget sets the memory budget for large answers, lists of tools, credentials and certificates. It applies to
// later connections, so it must be called before the cache is used.
func (c *Cache) SetMemoryBudget(memory *bytebudget.Budget) { c.memory = memory }

// SetProcessors sets the gate at which namespaces take turns with work that needs a processor. It must be called before
// the cache is used.
func (c *Cache) SetProcessors(processors *fairgate.Processors) { c.processors = processors }

// SetCredentialSet sets the set that the cache adds the connections' credentials to, for as long as it keeps them. It
// must be called before the cache is used.
func (c *Cache) SetCredentialSet(known *redact.Set) { c.known = known }

// recordCredentials records the credentials of an entry, unless the cache has forgotten the entry.
func (c *Cache) recordCredentials(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[e.key] == e {
		c.known.Put(e.key.Namespace, owner(e.key), append(mcp.Secrets(e.settings.token, e.settings.headers), e.earlier...))
	}
}

// owner returns the name of an object within the credential set of its namespace.
func owner(key types.NamespacedName) string { return "ToolServer/" + key.Name }

// OnChange sets a function that is called with the name of a ToolServer when its tools have changed. f must return
// quickly. OnChange applies to later connections, so it must be called before the cache is used.
func (c *Cache) OnChange(f func(types.NamespacedName)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onChange = f
}

func (c *Cache) notify(key types.NamespacedName) {
	c.mu.Lock()
	f := c.onChange
	c.mu.Unlock()
	if f != nil {
		f(key)
	}
}

// Forget ends the connection of a deleted object. Running calls continue.
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
	// A connection that is ending refers to the entry, so the entry must not hold the list.
	e.known, e.offered, e.offeredAs = nil, nil, nil
}

// Sweep forgets the entries that were not used during the last sixty sweeps, and connections that have ended. Entries
// may come back after Forget: a Turn that runs longer than its ToolServer exists may use the server once more.
func (c *Cache) Sweep() {
	c.mu.Lock()
	c.retired = slices.DeleteFunc(c.retired, (*mcp.Client).Ended)
	var idle []types.NamespacedName
	for key, e := range c.entries {
		if e.idle++; e.idle > maxIdleSweeps {
			idle = append(idle, key)
		}
	}
	c.mu.Unlock()
	for _, key := range idle {
		c.Forget(key)
	}
}

// dropIdle ends a connection that was not used for a while, and forgets its credentials. It keeps the known tools. It
// also ends the connection of an entry that is no longer in the cache: a caller that uses an entry while it is
// forgotten may connect again.
func (c *Cache) dropIdle(e *entry, client *mcp.Client) {
	select {
	case e.lock <- struct{}{}:
	default:
		return // another caller is about to use it
	}
	defer e.unlock()
	if e.client == client {
		c.retire(client)
		e.client, e.settings, e.earlier = nil, settings{}, nil
		c.recordCredentials(e)
	}
}

// retire ends a connection as soon as its running calls have ended.
func (c *Cache) retire(client *mcp.Client) {
	client.Retire()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = append(slices.DeleteFunc(c.retired, (*mcp.Client).Ended), client)
}

// Close ends all connections and their running calls, and returns when they have ended.
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

// connection returns the client of an object, with credentials that are at most ttl old, or older while the API server
// is unreachable, or has just begun to forbid to read them. It returns a *secrets.Error if the credentials are missing,
// or the error of reading them, which matches tool.ErrUnread if the API server did not return them for the moment.
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
	if err != nil && ttl > 0 && current && secrets.MayKeep(err, &e.refusal, c.now()) {
		e.read = c.now() // use the old credentials, and ask the API server again after ttl
		return e.client, nil
	}
	if err != nil {
		return nil, unread(err)
	}
	if e.client == nil || e.uid != s.UID || !reflect.DeepEqual(settings, e.settings) {
		earlier := redact.RetainPrevious(e.earlier, mcp.Secrets(e.settings.token, e.settings.headers),
			mcp.Secrets(settings.token, settings.headers))
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
		c.recordCredentials(e)
	}
	e.uid, e.version, e.read, e.refusal = s.UID, s.Generation, c.now(), grace.Refusal{}
	return e.client, nil
}

// unread returns an error of settings. The error matches tool.ErrUnread if the Secrets may be readable soon.
func unread(err error) error {
	if _, ofServer := errors.AsType[*mcp.Error](err); ofServer || !secrets.IsAway(err) {
		return err
	}
	return &unreadError{err}
}

// unreadError is tool.ErrUnread with the text of its cause.
type unreadError struct{ error }

// Is reports whether the target is tool.ErrUnread.
func (e *unreadError) Is(target error) bool { return target == tool.ErrUnread }

// Unwrap returns the cause.
func (e *unreadError) Unwrap() error { return e.error }

func (c *Cache) newClient(name string, e *entry, s settings, earlier []string) (*mcp.Client, error) {
	certificates, err := s.certificates.TLS()
	if err != nil {
		return nil, fmt.Errorf("failed to read the certificates of tool server %q: %w", name, err)
	}
	reservation, err := secrets.Reserve(c.memory.Account(e.key.Namespace, bytebudget.Objects),
		append(mcp.Secrets(s.token, s.headers), earlier...), s.certificates)
	if err != nil {
		return nil, &mcp.Error{Kind: mcp.NoMemory, Message: err.Error()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		reservation.Release()
		return nil, errClosed
	}
	var client *mcp.Client
	client = mcp.New(mcp.Config{
		Name: name, URL: s.url, Token: s.token, CredentialsFrom: s.from, Headers: s.headers, Earlier: earlier, ConnectTimeout: s.connect,
		Memory: c.memory.Account(e.key.Namespace, bytebudget.Results), Listings: c.memory.Account(e.key.Namespace, bytebudget.Listings),
		Processors: c.processors, Namespace: e.key.Namespace, Policy: c.policy.ForNamespace(e.key.Namespace), TLS: certificates,
		Now: c.now, OnChange: func() { c.notify(e.key) },
		Idle: c.idle, OnIdle: func() { c.dropIdle(e, client) },
		Log: c.log.WithValues("toolServer", e.key.String()),
	})
	// Calls in progress may use the client after it was retired.
	runtime.AddCleanup(client, (*bytebudget.Reservation).Release, reservation)
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
	if err := secrets.CheckTotal(mcp.Secrets(out.token, out.headers)); err != nil {
		return out, err
	}
	out.certificates, err = c.secrets.Certificates(ctx, s.Namespace, s.Spec.TLS, out.url)
	return out, err
}

// acquire takes the lock. If ctx ends while it waits, it returns the cause.
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
