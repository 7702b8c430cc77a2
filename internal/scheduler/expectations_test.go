package scheduler

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

func TestExpectations(t *testing.T) {
	version := func(uid, version string) *v1alpha1.Turn {
		return &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{
			Namespace: "helpdesk", Name: "one", UID: types.UID(uid),
			ResourceVersion: version,
		}}
	}
	for name, tc := range map[string]struct {
		read *v1alpha1.Turn
		want bool
	}{
		"an older version":                  {version("a", "9"), true},
		"the written version":               {version("a", "10"), false},
		"a newer version":                   {version("a", "11"), false},
		"another object with this name":     {version("b", "9"), false},
		"a version that cannot be compared": {version("a", "x"), false},
	} {
		t.Run(name, func(t *testing.T) {
			var w Expectations
			if w.IsStale(tc.read) {
				t.Error("the object is stale, although nothing was written")
			}
			w.Expect(version("a", "10"))
			if got := w.IsStale(tc.read); got != tc.want {
				t.Errorf("stale: %t, want %t", got, tc.want)
			}
			w.Forget(client.ObjectKeyFromObject(tc.read))
			if w.IsStale(tc.read) {
				t.Error("a forgotten object must not be stale")
			}
		})
	}
}
