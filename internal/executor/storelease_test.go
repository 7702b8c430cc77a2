package executor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TestStoreLeaseName checks that each ID has a name of its own that the API server accepts.
func TestStoreLeaseName(t *testing.T) {
	const hashed = "capstan-store-sha256."
	seen := map[string]string{}
	for name, tc := range map[string]struct{ id, want string }{
		"SQLite":              {"0123456789abcdef0123456789abcdef", "capstan-store-0123456789abcdef0123456789abcdef"},
		"PostgreSQL":          {"5b2f0a3e-0d4c-4c57-9b0a-1f6f7a4c2d11", "capstan-store-5b2f0a3e-0d4c-4c57-9b0a-1f6f7a4c2d11"},
		"one character":       {"a", "capstan-store-a"},
		"the longest":         {strings.Repeat("a", 64), "capstan-store-" + strings.Repeat("a", 64)},
		"capital letter":      {"A", hashed},
		"hyphen at the end":   {"a-", hashed},
		"hyphen at the start": {"-a", hashed},
		"slash":               {"a/b", hashed},
		"period":              {"sha256.a", hashed},
		"too long":            {strings.Repeat("a", 65), hashed},
	} {
		t.Run(name, func(t *testing.T) {
			got := StoreLeaseName(tc.id)
			if got != tc.want && (tc.want != hashed || !strings.HasPrefix(got, hashed)) {
				t.Errorf("the name is %q, want %q", got, tc.want)
			}
			if problems := validation.IsDNS1123Subdomain(got); len(problems) > 0 || !IsStoreLease(got) {
				t.Errorf("the name %q is invalid: %v; it is the Lease of a store: %t", got, problems, IsStoreLease(got))
			}
			if other, used := seen[got]; used {
				t.Errorf("the IDs %q and %q have the same name %q", tc.id, other, got)
			}
			seen[got] = tc.id
		})
	}
}

func TestLeasesOfExecutors(t *testing.T) {
	var all []coordinationv1.Lease
	for _, name := range []string{LeasePrefix + "one", StoreLeaseName("a"), "capstan-manager", LeasePrefix + "capstan-store-a"} {
		all = append(all, coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	var got []string
	for _, l := range LeasesOfExecutors(all) {
		got = append(got, l.Name)
	}
	if diff := cmp.Diff([]string{LeasePrefix + "one", LeasePrefix + "capstan-store-a"}, got); diff != "" {
		t.Errorf("Leases of executors (-want +got):\n%s", diff)
	}
}

// TestPublishedBy checks which Leases prove that a store has reached a position.
func TestPublishedBy(t *testing.T) {
	for name, tc := range map[string]struct {
		id, position string
		want         StorePosition
	}{
		"valid":                 {"a", "10", StorePosition{"a", 10}},
		"no ID":                 {"", "10", StorePosition{}},
		"no position":           {"a", "", StorePosition{}},
		"not a number":          {"a", "many", StorePosition{}},
		"negative":              {"a", "-1", StorePosition{}},
		"the store is unmarked": {"a", "0", StorePosition{}},
		"too large":             {"a", "9223372036854775808", StorePosition{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := PublishedBy(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{StoreAnnotation: tc.id, PositionAnnotation: tc.position},
			}})
			if got != tc.want || ok != (tc.want != StorePosition{}) {
				t.Errorf("the Lease publishes %+v, %t; want %+v", got, ok, tc.want)
			}
		})
	}
	if got, ok := PublishedBy(&coordinationv1.Lease{}); ok {
		t.Errorf("a Lease without annotations publishes %+v, want nothing", got)
	}
}
