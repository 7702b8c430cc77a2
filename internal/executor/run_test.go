package executor

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestFewFramesWhileTheModelWorks bounds the calls between a run and its provider: each of thousands of waiting Turns
// has their frames on its stack. A real provider adds one frame.
func TestFewFramesWhileTheModelWorks(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(func(t *v1alpha1.Turn) {
		t.Spec.Execution = v1alpha1.ExecutionRun
	}))...)
	var between []string
	e.Provider = func(*v1alpha1.ModelProvider) model.Provider {
		return modelFunc(func(context.Context, *model.Request) (*model.Reply, error) {
			callers := make([]uintptr, 64)
			frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
			for {
				f, more := frames.Next()
				between = append(between, f.Function)
				if !more || strings.HasSuffix(f.Function, "(*run).run") {
					break
				}
			}
			return &model.Reply{Text: "Done.", FinishReason: model.FinishStop}, nil
		})
	}
	runs(t, e)
	if len(between) > 8 || !strings.HasSuffix(between[len(between)-1], "executor.(*run).run") {
		t.Errorf("%d calls are between a run and its provider, want at most 8:\n%s", len(between), strings.Join(between, "\n"))
	}
}
