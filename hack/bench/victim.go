package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const (
	victimNamespace = "victim"
	// victimName is the name of the Agent, the PromptProfile, the ModelProvider and the ToolServer of the steady Turns.
	victimName = "victim"
	// newcomerInterval is the time between two Turns of the victim whose Agent, ModelProvider and ToolServer are new.
	newcomerInterval = time.Second

	reasonUnfinished = "Unfinished"
	reasonNotCreated = "NotCreated"
)

// victim creates Turns at a steady rate without waiting for earlier ones (an open loop), and watches them end.
type victim struct {
	api      client.Client
	turns    rest.Interface
	modelURL string
	toolsURL string
	interval time.Duration
	// wait is the maximum time to wait for Turns after the last creation. Turns that have not ended by then have
	// failed.
	wait time.Duration

	mu      sync.Mutex
	waiting map[string]*awaited
}

// awaited is a Turn that has not ended.
type awaited struct {
	ended chan *v1alpha1.Turn // has a buffer of one
	bound time.Time           // when the Turn was first seen with an executor; zero before
	state string              // the last seen state
}

// VictimLoad is the result of the victim's Turns.
type VictimLoad struct {
	Turns int `json:"turns"`
	// Seconds is the time from the first creation to the last end.
	Seconds float64 `json:"seconds"`
	// Latency is the time from the creation of a steady Turn to its end, as a client sees it; for an unfinished Turn,
	// the time so far.
	Latency Percentiles `json:"latencyMilliseconds"`
	// Newcomer is the latency of Turns whose Agent, ModelProvider and ToolServer were created together with them.
	Newcomer Percentiles `json:"newcomerLatencyMilliseconds"`
	// Bound is the time from a Turn's creation until it was bound, for all Turns; for a Turn that was never bound, the
	// time so far. It shows where time is lost.
	Bound Percentiles `json:"boundMilliseconds"`
	// TurnsPerSecond is the rate of Turns that succeeded.
	TurnsPerSecond float64 `json:"turnsPerSecond"`
	// StolenPercent is the steal time during these Turns, in percent of the CPU time.
	StolenPercent float64 `json:"stolenPercent"`
	// CPUPercent is the CPU time of each program during these Turns, in percent of one CPU.
	CPUPercent map[string]float64 `json:"cpuPercent,omitempty"`
	Failed     map[string]int     `json:"failed,omitempty"`
}

// victimOutcome is the result of one Turn of the victim.
type victimOutcome struct {
	newcomer bool
	latency  time.Duration // for a Turn that has not ended, the time so far
	bound    time.Duration // until the Turn was bound; for a Turn that was never bound, the time so far
	failed   string        // the reason; empty for a Turn that succeeded
}

// watch records the bindings, states and ends of Turns until the context ends.
func (v *victim) watch(ctx context.Context) error {
	list := cache.NewListWatchFromClient(v.turns, "turns", victimNamespace, fields.Everything())
	_, err := watchtools.UntilWithSync(ctx, list, &v1alpha1.Turn{}, nil, func(event watch.Event) (bool, error) {
		if turn, ok := event.Object.(*v1alpha1.Turn); ok {
			v.update(turn)
		}
		return false, nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // because the watch ends with the context
	}
	return fmt.Errorf("failed to watch the victim's Turns: %w", err)
}

// update records what a Turn's status shows.
func (v *victim) update(turn *v1alpha1.Turn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	a := v.waiting[turn.Name]
	if a == nil {
		return
	}
	if a.bound.IsZero() && turn.Epoch() > 0 {
		a.bound = time.Now()
	}
	a.state = turn.StateReason()
	if turn.IsFinished() {
		delete(v.waiting, turn.Name)
		a.ended <- turn
	}
}

// load creates Turns until minimum has passed and attackLaunched is closed. If attackLaunched is nil, only minimum
// counts. Then load waits until the Turns have ended.
func (v *victim) load(ctx context.Context, prefix string, minimum time.Duration, attackLaunched <-chan struct{}) (*VictimLoad, error) {
	var group sync.WaitGroup
	var mu sync.Mutex
	var outcomes []victimOutcome
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := func(name string, newcomer bool) {
		group.Go(func() {
			o := v.runTurn(ctx, name, newcomer)
			mu.Lock()
			defer mu.Unlock()
			outcomes = append(outcomes, o)
		})
	}
	start, cpuBefore, programsBefore := time.Now(), readCPUTime(), readProgramTimes()
	steady, newcomers, enough := time.NewTicker(v.interval), time.NewTicker(newcomerInterval), time.NewTimer(minimum)
	defer steady.Stop()
	defer newcomers.Stop()
	defer enough.Stop()
	timeUp := enough.C
	for i := 0; timeUp != nil || attackLaunched != nil; i++ {
		select {
		case <-steady.C:
			begin(fmt.Sprintf("%s-%d", prefix, i), false)
		case <-newcomers.C:
			begin(fmt.Sprintf("%s-new-%d", prefix, i), true)
		case <-timeUp:
			timeUp = nil
		case <-attackLaunched:
			attackLaunched = nil
		case <-ctx.Done():
			cancel()
			group.Wait()
			return nil, context.Cause(ctx)
		}
	}
	drain := time.AfterFunc(v.wait, cancel)
	group.Wait()
	drain.Stop()
	l := newVictimLoad(outcomes, time.Since(start))
	l.CPUPercent = readProgramTimes().since(programsBefore, time.Since(start))
	l.StolenPercent = readCPUTime().stolenSince(cpuBefore)
	return l, nil
}

// runTurn creates a Turn, and waits for its end. For a newcomer, it first creates an Agent, a ModelProvider and a
// ToolServer of its own.
func (v *victim) runTurn(ctx context.Context, name string, newcomer bool) victimOutcome {
	a := &awaited{ended: make(chan *v1alpha1.Turn, 1)}
	v.mu.Lock()
	v.waiting[name] = a
	v.mu.Unlock()
	start := time.Now()
	outcome := func(failed string) victimOutcome {
		v.mu.Lock()
		defer v.mu.Unlock()
		o := victimOutcome{newcomer: newcomer, latency: time.Since(start), failed: failed}
		if o.bound = o.latency; !a.bound.IsZero() {
			o.bound = a.bound.Sub(start)
		}
		return o
	}
	agent := victimName
	var objects []client.Object
	if newcomer {
		agent = name
		objects = victimObjects(name, v.modelURL, v.toolsURL)
	}
	for _, object := range append(objects, newVictimTurn(name, agent)) {
		if err := v.api.Create(ctx, object); err != nil {
			return outcome(reasonNotCreated)
		}
	}
	select {
	case turn := <-a.ended:
		c := meta.FindStatusCondition(turn.Status.Conditions, v1alpha1.ConditionSucceeded)
		switch {
		case c == nil || c.Status != metav1.ConditionTrue:
			return outcome(turn.StateReason())
		case turn.Status.Steps == nil || turn.Status.Steps.ToolCalls != 1:
			return outcome("WithoutItsTool") // the Turn did not do the work that the benchmark measures
		}
		return outcome("")
	case <-ctx.Done():
		v.mu.Lock()
		state := a.state
		v.mu.Unlock()
		return outcome(strings.TrimSpace(reasonUnfinished + " " + state))
	}
}

func newVictimLoad(outcomes []victimOutcome, took time.Duration) *VictimLoad {
	l := &VictimLoad{Turns: len(outcomes), Seconds: took.Seconds(), Failed: map[string]int{}}
	var steady, newcomers, bound []time.Duration
	succeeded := 0
	for _, o := range outcomes {
		bound = append(bound, o.bound)
		if o.newcomer {
			newcomers = append(newcomers, o.latency)
		} else {
			steady = append(steady, o.latency)
		}
		if o.failed != "" {
			l.Failed[o.failed]++
			continue
		}
		succeeded++
	}
	l.Latency, l.Newcomer = percentiles(steady, 0), percentiles(newcomers, 0)
	l.Bound = percentiles(bound, 0)
	if took > 0 {
		l.TurnsPerSecond = float64(succeeded) / took.Seconds()
	}
	return l
}

// failures returns the number of Turns that failed.
func (l *VictimLoad) failures() int { return sumOf(l.Failed) }

// victimObjects returns a ModelProvider, a ToolServer and an Agent with this name.
func victimObjects(name, modelURL, toolsURL string) []client.Object {
	own := metav1.ObjectMeta{Name: name, Namespace: victimNamespace}
	reference := v1alpha1.SharedReference{Name: name}
	return []client.Object{
		&v1alpha1.ModelProvider{ObjectMeta: own, Spec: v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI, BaseURL: modelURL}},
		&v1alpha1.ToolServer{ObjectMeta: own, Spec: v1alpha1.ToolServerSpec{
			Type: v1alpha1.ToolServerTypeMCP, MCP: &v1alpha1.MCPEndpoint{URL: toolsURL},
		}},
		&v1alpha1.Agent{ObjectMeta: own, Spec: v1alpha1.AgentSpec{
			PromptProfileRef: v1alpha1.SharedReference{Name: victimName},
			Models:           []v1alpha1.ModelReference{{ProviderRef: reference, Model: modelName}},
			Tools:            []v1alpha1.AgentTool{{ServerRef: &reference}},
		}},
	}
}

func newVictimTurn(name, agent string) *v1alpha1.Turn {
	return &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: victimNamespace},
		Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: agent}, Message: "Is there a ticket about the printer?"},
	}
}

// createVictim creates the victim's namespace and the objects of its steady Turns.
func (v *victim) createVictim(ctx context.Context) error {
	all := slices.Concat([]client.Object{newNamespace(victimNamespace), newProfile(victimNamespace)},
		victimObjects(victimName, v.modelURL, v.toolsURL))
	for _, object := range all {
		if err := v.api.Create(ctx, object); err != nil {
			return fmt.Errorf("failed to create %T %q: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// clean deletes the Turns and the objects of the newcomers.
func (v *victim) clean(ctx context.Context) error {
	var errs []error
	all := client.InNamespace(victimNamespace)
	others := client.MatchingFieldsSelector{Selector: fields.OneTermNotEqualSelector("metadata.name", victimName)}
	errs = append(errs, deleteMany(ctx, func(ctx context.Context) error { return v.api.DeleteAllOf(ctx, &v1alpha1.Turn{}, all) }))
	for _, kind := range []client.Object{&v1alpha1.Agent{}, &v1alpha1.ToolServer{}, &v1alpha1.ModelProvider{}} {
		errs = append(errs, v.api.DeleteAllOf(ctx, kind, all, others))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("failed to delete the victim's objects: %w", err)
	}
	return nil
}
