package manager

import (
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// forgotten records the objects that must be forgotten.
type forgotten struct {
	mu   sync.Mutex
	keys []string
}

func (f *forgotten) Forget(key types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys = append(f.keys, key.String())
}

func (f *forgotten) Sweep() {}

func TestDeletedObjectsAreForgotten(t *testing.T) {
	f := &forgotten{}
	handler := forgetting(f)
	server := func(name string, uid types.UID) *v1alpha1.ToolServer {
		return &v1alpha1.ToolServer{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: name, UID: uid}}
	}
	handler.OnAdd(server("kept", "1"), false)
	handler.OnUpdate(server("kept", "1"), server("kept", "1"))
	handler.OnDelete(server("gone", "2"))
	handler.OnUpdate(server("replaced", "3"), server("replaced", "4"))
	handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "demo/missed", Obj: server("missed", "5")})
	if want := []string{"demo/gone", "demo/replaced", "demo/missed"}; !slices.Equal(f.keys, want) {
		t.Errorf("forgotten: %v, want %v", f.keys, want)
	}
}
