package executor

import (
	"context"
	"strings"
	"testing"
	"unsafe"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestSpecOfARunningTurnIsShared checks that the cache keeps no second copy of a spec that a run holds, and that the
// executor forgets the spec with the run.
func TestSpecOfARunningTurnIsShared(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(func(t *v1alpha1.Turn) {
		t.Spec.Execution = v1alpha1.ExecutionRun
	}))...)
	e.Specs = &Specs{}
	asked, answer := make(chan struct{}), make(chan struct{})
	e.Provider = func(*v1alpha1.ModelProvider) model.Provider {
		return modelFunc(func(context.Context, *model.Request) (*model.Reply, error) {
			close(asked)
			<-answer
			return &model.Reply{Text: "Done.", FinishReason: model.FinishStop}, nil
		})
	}
	running := stored(t, e)
	e.observe(t.Context(), running)
	<-asked
	isShared := func(change func(*v1alpha1.Turn)) bool {
		again := turnWith(change)
		again.Spec.Message = strings.Clone(running.Spec.Message)
		e.Specs.Share(again)
		return unsafe.StringData(again.Spec.Message) == unsafe.StringData(running.Spec.Message)
	}
	if !isShared(func(*v1alpha1.Turn) {}) {
		t.Error("a new copy of the Turn has its own spec, want the spec of the run")
	}
	if isShared(func(t *v1alpha1.Turn) { t.Generation++ }) || isShared(func(t *v1alpha1.Turn) { t.UID = "other" }) {
		t.Error("another spec was replaced by the spec of the run")
	}
	close(answer)
	e.all.Wait()
	if isShared(func(*v1alpha1.Turn) {}) || len(e.Specs.byUID) > 0 {
		t.Error("the spec is kept after the end of the run")
	}
}

// TestStatusWriteKeepsTheSpec checks that the Turn that a status write returns has the spec of the Turn that was
// written, even after a conflict.
func TestStatusWriteKeepsTheSpec(t *testing.T) {
	conflicts := 1
	e, _ := newExecutor(t, interceptor.Funcs{SubResourceUpdate: func(
		ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption,
	) error {
		if conflicts--; conflicts >= 0 {
			o.SetResourceVersion("1")
		}
		return c.SubResource(sub).Update(ctx, o, opts...)
	}}, turnWith())
	before := stored(t, e)
	written, err := e.update(t.Context(), before, 1, func(t *v1alpha1.Turn) { t.Status.ObservedGeneration = 1 })
	if err != nil || written == nil || conflicts >= 0 {
		t.Fatalf("update = %v, %v, want a written Turn after one conflict", written, err)
	}
	if unsafe.StringData(written.Spec.Message) != unsafe.StringData(before.Spec.Message) {
		t.Error("after a conflict, the Turn has a second copy of its spec")
	}
}
