package harnesstest

import (
	"github.com/onsi/gomega/gleak"
	"github.com/onsi/gomega/gleak/goroutine"
	"github.com/onsi/gomega/types"
)

// libraryLeaks are the functions of Kubernetes libraries whose goroutines can outlive what started them.
var libraryLeaks = []any{
	// A stopped watch of metadata: kubernetes issue 113254.
	"k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop",
	// A cache of chosen namespaces waits for its first lists without a context. It waits forever if it is stopped
	// before they have come, as when a manager ends while it starts. Seen in controller-runtime v0.25.2.
	"sigs.k8s.io/controller-runtime/pkg/cache.newMultiNamespaceInformer.func1",
	"sigs.k8s.io/controller-runtime/pkg/cache.newMultiNamespaceInformerHandlerRegistration.func1",
}

// HaveLeaked matches goroutines that did not run before, except for known leaks of Kubernetes libraries. Use it with
// Eventually(gleak.Goroutines).ShouldNot, after managers or API clients have stopped.
func HaveLeaked(before []goroutine.Goroutine) types.GomegaMatcher {
	return gleak.HaveLeaked(append([]any{before}, libraryLeaks...)...)
}
