package harnesstest

import (
	"github.com/onsi/gomega/gleak"
	"github.com/onsi/gomega/gleak/goroutine"
	"github.com/onsi/gomega/types"
)

// libraryLeaks are functions of Kubernetes libraries whose goroutines can continue after their watch or cache has
// stopped.
var libraryLeaks = []any{
	// A stopped watch of metadata: kubernetes issue 113254.
	"k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop",
	// A cache of selected namespaces waits for its first lists without a context. If it is stopped before the lists
	// arrive, for example because a manager stops while it starts, it waits forever. Seen in
	// controller-runtime v0.25.2.
	"sigs.k8s.io/controller-runtime/pkg/cache.newMultiNamespaceInformer.func1",
	"sigs.k8s.io/controller-runtime/pkg/cache.newMultiNamespaceInformerHandlerRegistration.func1",
}

// HaveLeaked matches goroutines that did not run before, except for known leaks of Kubernetes libraries. Use it with
// Eventually(gleak.Goroutines).ShouldNot, after managers or API clients have stopped.
func HaveLeaked(before []goroutine.Goroutine) types.GomegaMatcher {
	return gleak.HaveLeaked(append([]any{before}, libraryLeaks...)...)
}
