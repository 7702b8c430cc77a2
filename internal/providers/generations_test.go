package providers_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/redact"
)

// TestGenerationsInUseKeepTheirProviders uses two generations of an object by turns: the older generation for a Turn
// that began with it, and the newer generation for new Turns. Each generation must keep its connections, and must read
// its Secret only once until the credentials are 10 s old.
func TestGenerationsInUseKeepTheirProviders(t *testing.T) {
	w, c := newFakeCluster(t, secretValue)
	older, newer := object("http://one.example/v1"), object("http://two.example/v1")
	newer.Generation = 2
	first, second := mustGet(t, c, older), mustGet(t, c, newer)
	for range 3 * providers.MaxIdleSweeps {
		if mustGet(t, c, older) != first || mustGet(t, c, newer) != second || first == second {
			t.Fatal("a generation in use has lost its provider")
		}
		c.Sweep()
	}
	if w.reads != 2 {
		t.Errorf("the Secret was read %d times, want once for each generation", w.reads)
	}
	w.set(func(w *fakeCluster) { w.now = w.now.Add(time.Minute) })
	if mustGet(t, c, older) != first || mustGet(t, c, newer) != second || w.reads != 4 {
		t.Errorf("after a minute a generation has another provider, or the Secret was read %d times; want 4", w.reads)
	}
}

// TestGenerationsShareAProvider checks that a change of the spec keeps the connections if it does not affect requests,
// such as a change of a price.
func TestGenerationsShareAProvider(t *testing.T) {
	_, c := newFakeCluster(t, secretValue)
	older, newer := object("http://one.example/v1"), object("http://one.example/v1")
	newer.Generation = 2
	if first := mustGet(t, c, older); mustGet(t, c, newer) != first || mustGet(t, c, older) != first {
		t.Error("a generation with the same configuration has another provider")
	}
}

// TestUnusedGenerationsAreDropped checks that a generation that no Turn uses anymore loses its provider, and that the
// number of generations is bounded.
func TestUnusedGenerationsAreDropped(t *testing.T) {
	_, c := newFakeCluster(t, secretValue)
	of := func(generation int64) *endpoint.Provider {
		p := object(fmt.Sprintf("http://g%d.example/v1", generation))
		p.Generation = generation
		return mustGet(t, c, p)
	}
	older, newer := of(1), of(2)
	for range providers.MaxIdleSweeps + 1 {
		c.Sweep()
		of(2)
	}
	if of(2) != newer || of(1) == older {
		t.Error("the unused generation still has its provider, or the generation in use has lost its provider")
	}
	older = of(1)
	for generation := range int64(providers.MaxGenerations) {
		of(10 + generation)
	}
	if of(1) == older {
		t.Errorf("there are more than %d generations", providers.MaxGenerations)
	}
}

// TestGenerationsRedactTheKeysOfEachOther checks that an endpoint cannot quote the key of another generation, whichever
// generation was used first, and that all keys stay in the set of known credentials.
func TestGenerationsRedactTheKeysOfEachOther(t *testing.T) {
	const one, two = "sk-the-first-key-0123456789", "sk-the-second-key-987654321"
	w, c := newFakeCluster(t, one)
	known := redact.NewSet()
	c.SetCredentialSet(known)
	w.data["other"] = []byte(two)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte("neither " + one + " nor " + two)) // if the client is gone, the test fails anyway
	}))
	t.Cleanup(web.Close)
	older, newer := object(web.URL), object(web.URL)
	newer.Generation, newer.Spec.CredentialsRef.Key = 2, "other"
	mustGet(t, c, older)
	mustGet(t, c, newer)
	for range 2 {
		for _, p := range []*endpoint.Provider{mustGet(t, c, older), mustGet(t, c, newer)} {
			if _, err := p.Probe(t.Context()); err == nil || strings.Contains(err.Error(), "sk-the") {
				t.Errorf("error %v, want one without keys", err)
			}
		}
	}
	if text := known.Redact("demo", one+" "+two); strings.Contains(text, "sk-the") {
		t.Errorf("the known credentials leave %q", text)
	}
	first, second := mustGet(t, c, older), mustGet(t, c, newer)
	if mustGet(t, c, older) != first || mustGet(t, c, newer) != second {
		t.Error("a generation has another provider each time")
	}
}
