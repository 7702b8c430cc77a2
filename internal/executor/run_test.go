package executor

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestFewFramesWhileTheModelWorks bounds the number of function calls between a run and its provider, because each call
// adds a frame to the stack of each of thousands of waiting Turns. A real provider adds one more frame.
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
	runTurn(t, e)
	if len(between) > 8 || !strings.HasSuffix(between[len(between)-1], "executor.(*run).run") {
		t.Errorf("%d calls are between a run and its provider, want at most 8:\n%s", len(between), strings.Join(between, "\n"))
	}
}

// TestLogLinesAboutATurnNameItsRequester runs a Turn whose model panics and whose status cannot be written, and checks
// that each line about the Turn names its requester.
func TestLogLinesAboutATurnNameItsRequester(t *testing.T) {
	e, _ := newExecutor(t, failing(broken), append(surroundings(), turnWith(func(t *v1alpha1.Turn) {
		t.Spec.Execution = v1alpha1.ExecutionRun
		t.Spec.RequestedBy = &v1alpha1.Requester{Username: "ada"}
	}))...)
	var lines []string
	e.Log = funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{Verbosity: 1})
	e.Provider = func(*v1alpha1.ModelProvider) model.Provider {
		return modelFunc(func(context.Context, *model.Request) (*model.Reply, error) { panic("a bug") })
	}
	runTurn(t, e)
	about := 0
	for _, line := range lines {
		if !strings.Contains(line, `"turn"=`) {
			continue
		}
		about++
		if strings.Count(line, `"requester"="ada"`) != 1 {
			t.Errorf("want the requester once in the line: %s", line)
		}
	}
	if about < 2 {
		t.Errorf("%d lines are about the Turn, want those about the failed write and the end:\n%s", about, strings.Join(lines, "\n"))
	}
}
