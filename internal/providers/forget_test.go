package providers_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/redact"
)

// TestDeletedProvidersAreReleased creates and deletes many providers, each with a connection. After the deletion of its
// object, each provider is used once more, as by a Turn that still runs.
func TestDeletedProvidersAreReleased(t *testing.T) {
	_, c := newFakeCluster(t, secretValue)
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	closed := make(chan struct{}, 1)
	web := httptest.NewUnstartedServer(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data":[]}`)) }))
	web.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if state != http.StateClosed {
			open[conn] = true
			return
		}
		delete(open, conn)
		select {
		case closed <- struct{}{}:
		default:
		}
	}
	web.Start()
	t.Cleanup(web.Close)
	left := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(open)
	}
	use := func(i int) weak.Pointer[endpoint.Provider] {
		p := object(web.URL + "/v1")
		p.Name, p.UID = fmt.Sprintf("p%d", i), types.UID(fmt.Sprint(i))
		provider := mustGet(t, c, p)
		if _, err := provider.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		return weak.Make(provider)
	}
	var all []weak.Pointer[endpoint.Provider]
	for i := range 50 {
		all = append(all, use(i))
		c.Forget(types.NamespacedName{Namespace: "demo", Name: fmt.Sprintf("p%d", i)})
		all = append(all, use(i))
	}
	for range providers.MaxIdleSweeps {
		c.Sweep()
	}
	use(1000) // in use
	c.Sweep()
	for left() > 1 {
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Fatalf("%d connections are open, want only the connection of the provider in use", left())
		}
	}
	runtime.GC()
	runtime.GC() // a connection may still be closing during the first collection
	kept := 0
	for _, p := range all {
		if p.Value() != nil {
			kept++
		}
	}
	if kept > 1 {
		t.Errorf("%d of %d providers are in memory with their keys, want at most 1", kept, len(all))
	}
	if n := c.Len(); n != 1 {
		t.Errorf("the cache has %d entries, want only the entry of the provider in use", n)
	}
}

// TestKnownCredentialsFollowTheCache follows the key of an object through a rotation, the creation of another
// object with the same name, and its deletion.
func TestKnownCredentialsFollowTheCache(t *testing.T) {
	const before, after, replaced = "key-of-yesterday-0123", "key-of-today-4567", "key-of-another-89ab"
	w, c := newFakeCluster(t, before)
	known := redact.NewSet()
	c.SetCredentialSet(known)
	p := object("http://one.example/v1")
	text := before + " " + after + " " + replaced
	expect := func(when, want string) {
		t.Helper()
		if got := known.Redact("demo", text); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		if got := known.Redact("other", text); got != text {
			t.Errorf("%s: the text of another namespace is %q, want it unchanged", when, got)
		}
	}
	expect("before the first use", text)
	mustGet(t, c, p)
	expect("after the first use", "[redacted] "+after+" "+replaced)
	w.set(func(w *fakeCluster) { w.data["apiKey"], w.now = []byte(after), w.now.Add(time.Minute) })
	mustGet(t, c, p)
	expect("after a rotation", "[redacted] [redacted] "+replaced)
	w.set(func(w *fakeCluster) { w.data["apiKey"], w.now = []byte(replaced), w.now.Add(time.Minute) })
	p.UID = "2"
	mustGet(t, c, p)
	expect("with another object of the same name", before+" "+after+" [redacted]")
	c.Forget(types.NamespacedName{Namespace: "demo", Name: "main"})
	expect("after the deletion", text)
}
