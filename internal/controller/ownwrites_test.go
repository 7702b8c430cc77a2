package controller

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

func TestOwnWrites(t *testing.T) {
	version := func(uid, version string) *v1alpha1.Turn {
		return turnWith(func(t *v1alpha1.Turn) { t.UID, t.ResourceVersion = types.UID(uid), version })
	}
	for name, tc := range map[string]struct {
		read *v1alpha1.Turn
		want bool
	}{
		"an older version":               {version("a", "9"), true},
		"the one that was written":       {version("a", "10"), false},
		"a newer one":                    {version("a", "11"), false},
		"another object of the name":     {version("b", "9"), false},
		"a version that cannot be known": {version("a", "x"), false},
	} {
		t.Run(name, func(t *testing.T) {
			var w ownWrites
			if w.missing(tc.read) {
				t.Error("nothing was written")
			}
			w.note(version("a", "10"))
			if got := w.missing(tc.read); got != tc.want {
				t.Errorf("missing: %t, want %t", got, tc.want)
			}
			w.forget(client.ObjectKeyFromObject(tc.read))
			if w.missing(tc.read) {
				t.Error("what is forgotten is not missing")
			}
		})
	}
}
