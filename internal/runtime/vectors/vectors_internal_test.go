package vectors

import (
	"fmt"
	"slices"
	"testing"
)

// TestNamespacesShareTheCacheFairly checks that namespaces see only their own vectors, and that a namespace with many
// vectors does not push out those of another.
func TestNamespacesShareTheCacheFairly(t *testing.T) {
	var v Cache
	small, large := v.Of("small"), v.Of("large")
	values := make([]float32, 4096)
	small.Put("m", "text", []float32{1})
	if _, ok := large.Get("m", "text"); ok {
		t.Error("a namespace has a vector of another one")
	}
	if _, ok := small.Get("n", "text"); ok {
		t.Error("embedding space n has a vector of space m")
	}
	const many = 3 * maxBytes / (4 * 4096)
	for i := range many {
		large.Put("m", fmt.Sprint(i), values)
		if _, ok := large.Get("m", "0"); i < 100 && !ok {
			t.Fatalf("the first vector is gone after %d", i)
		}
	}
	if got, ok := small.Get("m", "text"); !ok || len(got) != 1 {
		t.Error("a namespace with many vectors pushed out that of another one")
	}
	if _, ok := large.Get("m", fmt.Sprint(many-1)); !ok {
		t.Error("the newest vector is gone")
	}
	if _, ok := large.Get("m", "1"); ok {
		t.Error("an old vector that was not used is still there")
	}
	if v.bytes > maxBytes || v.bytes < maxBytes/2 {
		t.Errorf("the cache has %d bytes, want %d to %d", v.bytes, maxBytes/2, maxBytes)
	}
	large.Put("m", fmt.Sprint(many-1), values) // twice
	sum := 0
	for _, own := range v.own {
		sum += own.bytes
	}
	if sum != v.bytes {
		t.Errorf("the namespaces have %d bytes in total, but the cache counts %d", sum, v.bytes)
	}
}

// TestVectorsOfAnotherLengthAreReplaced checks that the cache keeps the newest vector of a text if its length has
// changed, and counts only this vector.
func TestVectorsOfAnotherLengthAreReplaced(t *testing.T) {
	var c Cache
	n := c.Of("a")
	for _, tc := range []struct {
		reason    string
		put, want []float32
	}{
		{"the first vector is kept", []float32{1, 0}, []float32{1, 0}},
		{"another Turn may have requested the vector at the same time", []float32{0, 1}, []float32{1, 0}},
		{"a longer vector is from another model", []float32{0, 0, 1}, []float32{0, 0, 1}},
		{"a text can lose its vector", nil, nil},
		{"a text can get a vector", []float32{1}, []float32{1}},
	} {
		n.Put("m", "text", tc.put)
		if got, ok := n.Get("m", "text"); !ok || !slices.Equal(got, tc.want) {
			t.Errorf("after Put of %v, the vector is %v, %t, want %v: %s", tc.put, got, ok, tc.want, tc.reason)
		}
		own := c.own["a"]
		if want := 4*len(tc.want) + overhead; c.bytes != want || own.bytes != want || own.used.Len() != 1 {
			t.Errorf("the cache counts %d and %d bytes for %d vectors, want %d for one", c.bytes, own.bytes, own.used.Len(), want)
		}
	}
}
