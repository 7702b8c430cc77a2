package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// floor is the program that the manager is compared with. It does the minimum for a Turn, so no operator could cost
// less: it watches Turns, claims a Turn with a status write, asks the model, and writes the answer. It has no prompt,
// no journal, no retries and no limits, and cannot continue after a restart.
type floor struct {
	turns    rest.Interface
	modelURL string
	running  sync.WaitGroup
	fail     context.CancelCauseFunc
}

func runFloor(signals context.Context, args []string) error {
	var kubeconfig, listen, group string
	ctx, cancel := context.WithCancelCause(signals)
	defer cancel(nil)
	f := &floor{fail: cancel}
	flags := flag.NewFlagSet(floorCommand, flag.ContinueOnError)
	flags.StringVar(&kubeconfig, "kubeconfig", "", "path of the kubeconfig file")
	flags.StringVar(&f.modelURL, "model-url", "", "base URL of the model")
	flags.StringVar(&group, "group", v1alpha1.GroupVersion.Group, "API group of the Turns")
	flags.StringVar(&listen, "listen", "", "address of the readiness probe")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("failed to read --kubeconfig: %w", err)
	}
	if f.turns, err = turnClient(config, schema.GroupVersion{Group: group, Version: v1alpha1.GroupVersion.Version}); err != nil {
		return err
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(f.turns, "turns", namespace, fields.Everything()),
		ObjectType:    &v1alpha1.Turn{},
		Handler:       cache.ResourceEventHandlerFuncs{AddFunc: func(object any) { f.start(ctx, object) }},
	})
	f.running.Go(func() { informer.RunWithContext(ctx) })
	f.running.Go(func() { f.serveProbe(ctx, listen, informer.HasSynced) })
	<-ctx.Done()
	f.running.Wait()
	if signals.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

func (f *floor) start(ctx context.Context, object any) {
	turn, ok := object.(*v1alpha1.Turn)
	if !ok || turn.IsFinished() {
		return
	}
	f.running.Go(func() {
		if err := f.run(ctx, turn.DeepCopy()); err != nil {
			f.fail(fmt.Errorf("failed to run Turn %q: %w", turn.Name, err))
		}
	})
}

func (f *floor) run(ctx context.Context, turn *v1alpha1.Turn) error {
	start := metav1.NowMicro()
	turn.Status.StartTime = &start
	turn.Status.Executor = &v1alpha1.ExecutorBinding{Name: floorCommand, Epoch: 1}
	turn, err := f.write(ctx, turn, metav1.ConditionUnknown, v1alpha1.TurnReasonRunning)
	if err != nil {
		return err
	}
	answer, err := f.ask(ctx, turn.Spec.Message)
	if err != nil {
		return err
	}
	end := metav1.NowMicro()
	duration := end.Sub(start.Time).Milliseconds()
	turn.Status.CompletionTime, turn.Status.DurationMilliseconds = &end, &duration
	turn.Status.Result = &v1alpha1.TurnResult{Text: answer, Bytes: int64(len(answer))}
	_, err = f.write(ctx, turn, metav1.ConditionTrue, v1alpha1.TurnReasonCompleted)
	return err
}

func (f *floor) write(ctx context.Context, turn *v1alpha1.Turn, status metav1.ConditionStatus, reason string) (*v1alpha1.Turn, error) {
	meta.SetStatusCondition(&turn.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionSucceeded, Status: status, Reason: reason, ObservedGeneration: turn.Generation,
	})
	written := &v1alpha1.Turn{}
	err := f.turns.Put().Namespace(turn.Namespace).Resource("turns").Name(turn.Name).SubResource("status").
		Body(turn).Do(ctx).Into(written)
	return written, err
}

// ask sends one streamed chat completion and returns the answer.
func (f *floor) ask(ctx context.Context, message string) (string, error) {
	body, err := json.Marshal(map[string]any{
		"model": modelName, "stream": true, "messages": []map[string]string{{"role": "user", "content": message}},
	})
	if err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.modelURL+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }() // the body was read to its end, or ask returns a more useful error
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the model answered %s", response.Status)
	}
	var answer strings.Builder
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return answer.String(), nil
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return "", fmt.Errorf("failed to read the model's answer: %w", err)
		}
		for _, choice := range chunk.Choices {
			answer.WriteString(choice.Delta.Content)
		}
	}
	return "", fmt.Errorf("the model's answer ended without [DONE]")
}

// serveProbe answers 200 as soon as the Turns are being watched.
func (f *floor) serveProbe(ctx context.Context, address string, ready func() bool) {
	server := &http.Server{Addr: address, ReadHeaderTimeout: time.Second}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // an error does not matter: the program is ending
	defer stop()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		f.fail(fmt.Errorf("failed to serve the readiness probe: %w", err))
	}
}
