package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/fakemodel/server"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

const (
	objectName = "chaos" // of all that a Turn needs
	modelName  = "chaos"

	// slowestCall is the longest a tool takes, and slowestWay the longest a request to the model is on the way.
	slowestCall = 150 * time.Millisecond
	// slowestSlowCall is that where Turns are to last.
	slowestSlowCall = 1200 * time.Millisecond
	slowestWay      = 30 * time.Millisecond
	// retryInterval is the time between two attempts at the API server, which may be away.
	retryInterval = 300 * time.Millisecond
)

var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(coordinationv1.AddToScheme(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
}

// plan is a course of a Turn: the tools that each reply asks for, until the last reply answers.
type plan struct {
	name  string
	steps [][]string
	// fastest and slowest that a reply takes, in milliseconds.
	fastest, slowest int
}

// The tools: toolCount must not be called twice, toolLook may be.
const (
	toolCount = "count"
	toolLook  = "look"
)

// The plans of Turns.
var (
	long  = plan{"plan-long", [][]string{{toolCount}, {toolLook, toolCount}, {toolCount}, {toolCount}}, 10, 400}
	short = plan{"plan-short", [][]string{{toolCount, toolLook}, {toolCount}}, 1, 5}
	slow  = plan{"plan-slow", [][]string{{toolCount}, {toolLook, toolCount}, {toolCount}, {toolCount}}, 200, 1000}
)

// paces is how many Turns of a plan differ in how long their replies take.
const paces = 8

// message is what a Turn of the plan says.
func (p plan) message(number int) string {
	return fmt.Sprintf("Follow %s at pace-%d.", p.name, number%paces)
}

// rules are those of the fake model: for each plan, pace and step a reply, which takes a while.
func rules(r *rand.Rand) []server.Rule {
	var all []server.Rule
	for _, p := range []plan{long, short, slow} {
		for pace := range paces {
			matches := fmt.Sprintf(`%s at pace-%d\.`, p.name, pace)
			done := 0 // calls by then
			for i := range len(p.steps) + 1 {
				rule := server.Rule{
					When:  server.When{Matches: matches, ToolMessages: new(done)},
					Fault: server.Fault{LatencyMilliseconds: p.fastest + r.IntN(p.slowest-p.fastest+1)},
				}
				if i == len(p.steps) {
					rule.Reply.Text = new("Done, after {{ .ToolMessages }} calls.")
				} else {
					for _, tool := range p.steps[i] {
						rule.Reply.ToolCalls = append(rule.Reply.ToolCalls, server.ToolCall{Name: tool, Arguments: new(fmt.Sprintf(`{"step": %d}`, i+1))})
					}
					done += len(p.steps[i])
				}
				all = append(all, rule)
			}
		}
	}
	return all
}

// prepare makes the namespace of a phase and all that its Turns need.
func (r *rig) prepare(ctx context.Context, phase string) error {
	meta := metav1.ObjectMeta{Name: objectName, Namespace: phase}
	reference := v1alpha1.ObjectReference{Name: objectName}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: phase}},
		&corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"apiKey": "chaos-key"}},
		&v1alpha1.ModelProvider{ObjectMeta: meta, Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, BaseURL: r.modelURL,
			CredentialsRef: &v1alpha1.SecretKeyReference{Name: objectName, Key: "apiKey"},
		}},
		&v1alpha1.PromptProfile{ObjectMeta: meta, Spec: v1alpha1.PromptProfileSpec{
			ID: objectName, Version: "1.0.0", Instructions: "Do as you are told.",
		}},
		&v1alpha1.Agent{ObjectMeta: meta, Spec: v1alpha1.AgentSpec{
			PromptProfileRef: reference,
			Models:           []v1alpha1.ModelReference{{ProviderRef: reference, Model: modelName}},
			// A Turn is to end by its answer, however long the outages take.
			Limits: &v1alpha1.Limits{
				TimeoutSeconds: new(int32(3600)), StartingDeadlineSeconds: new(int32(3600)), MaxSteps: new(int32(10)),
			},
		}},
	} {
		if err := r.api.Create(ctx, object); err != nil {
			return fmt.Errorf("failed to create %T %q: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// createTurn creates a Turn, for as long as ctx lives and the API server is away.
func (r *rig) createTurn(ctx context.Context, phase, name, message string) error {
	for {
		err := r.api.Create(ctx, &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: phase},
			Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.ObjectReference{Name: objectName}, Message: message},
		})
		// One that was there already is of an attempt of which no answer came back.
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || !pause(ctx, retryInterval) {
			return fmt.Errorf("failed to create Turn %q: %w", name, err)
		}
	}
}

// turns returns the Turns of a phase, however long the API server is away.
func (r *rig) turns(ctx context.Context, phase string) ([]v1alpha1.Turn, error) {
	for {
		var list v1alpha1.TurnList
		err := r.api.List(ctx, &list, client.InNamespace(phase))
		if err == nil {
			return list.Items, nil
		}
		if !pause(ctx, retryInterval) {
			return nil, fmt.Errorf("failed to list the Turns: %w", err)
		}
	}
}

// turn returns one Turn.
func (r *rig) turn(ctx context.Context, phase, name string) (*v1alpha1.Turn, error) {
	t := &v1alpha1.Turn{}
	if err := r.api.Get(ctx, client.ObjectKey{Namespace: phase, Name: name}, t); err != nil {
		return nil, fmt.Errorf("failed to get Turn %q: %w", name, err)
	}
	return t, nil
}

// collect gathers the evidence of a phase, when all is quiet.
func (r *rig) collect(ctx context.Context, phase string, store journalStore, kills []kill) (_ evidence, err error) {
	e := evidence{Called: r.tools.calls(), Kills: kills}
	if e.Asked, err = r.asked(); err != nil {
		return e, err
	}
	turns, err := r.turns(ctx, phase)
	if err != nil {
		return e, err
	}
	kept, err := store.open(ctx)
	if err != nil {
		return e, fmt.Errorf("failed to open the store: %w", err)
	}
	defer kept.Close() //nolint:errcheck // because it was only read
	for i := range turns {
		entries, err := journal.Collect(ctx, kept, string(turns[i].UID))
		if err != nil {
			return e, err
		}
		e.Turns = append(e.Turns, turnEvidence{Turn: &turns[i], Entries: entries})
	}
	return e, nil
}

// asked is what the model's server has got.
func (r *rig) asked() ([]asked, error) {
	requests := r.model.Requests()
	if n := r.model.Stats().Requests; n != int64(len(requests)) {
		return nil, fmt.Errorf("the fake model kept %d of %d requests: run fewer Turns", len(requests), n)
	}
	all := make([]asked, 0, len(requests))
	for i := range requests {
		q := &requests[i]
		var body struct {
			Messages []struct{ Role, Content string }
		}
		if err := json.Unmarshal(q.Body, &body); err != nil {
			return nil, fmt.Errorf("failed to read request %d of the fake model: %w", q.Number, err)
		}
		a := asked{ID: q.ClientRequestID, Billed: q.Billed, Input: q.InputTokens, Output: q.OutputTokens}
		for _, m := range body.Messages {
			if m.Role == "tool" && strings.Contains(m.Content, "outcome_unknown") {
				a.Unknown++
			}
		}
		all = append(all, a)
	}
	return all, nil
}
