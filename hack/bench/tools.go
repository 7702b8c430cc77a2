package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

const (
	toolsName = "bench-tools" // the name of the Agent with tools, its model and its tool server

	// holdTimeout is the maximum time until all Turns are in flight, for each 1,000 Turns. readyTimeout is the maximum
	// time until the tools of an Agent are known.
	holdTimeout  = 2 * time.Minute
	readyTimeout = time.Minute

	// manySteps is the number of steps of a long Turn. Each step except the last one calls a tool.
	manySteps = 20
	// stepTurns is the number of Turns that run at the same time when their API writes are counted. It is small, so
	// that each Turn is quick.
	stepTurns = 10
	// stepTries is the maximum number of attempts to run these Turns so that each of them takes less than
	// progressAfter. After that time, the manager writes the progress of a Turn to its status, and this write would
	// distort the count.
	stepTries     = 5
	progressAfter = 5 * time.Second
)

// The messages of the Turns, by which the fake model distinguishes them.
const (
	messageHold      = "hold: search, then wait"
	messageOneStep   = "one step: answer"
	messageManySteps = "many steps: search again and again"
)

// compareTools measures a manager with many Turns in flight, each of which has called a tool. It also counts the API
// writes for Turns of one step and for Turns of many steps.
func (b *bench) compareTools(ctx context.Context) (*ToolsReport, error) {
	r := &ToolsReport{HeldReport: HeldReport{InFlight: b.inFlight, BoundMiB: peakBoundMiB(b.inFlight)}}
	t, err := b.holdTurns(ctx, phaseTools, nil, &r.HeldReport)
	if err != nil {
		return nil, err
	}
	for _, s := range []struct {
		steps   int
		message string
		to      *StepsCost
	}{{1, messageOneStep, &r.One}, {manySteps, messageManySteps, &r.Many}} {
		if *s.to, err = b.measureSteps(ctx, t, s.steps, s.message); err != nil {
			return nil, fmt.Errorf("failed to measure Turns of %d steps: %w", s.steps, err)
		}
	}
	return r, errors.Join(t.stop(), b.removeTools(ctx))
}

// holdTurns starts a manager and measures it with r.InFlight Turns in flight. If group is not nil, the manager runs in
// that cgroup. The caller must stop the manager and call removeTools.
func (b *bench) holdTurns(ctx context.Context, name string, group *controlGroup, r *HeldReport) (team, error) {
	g := newGate(r.InFlight)
	modelURL, toolsURL, err := b.startToolSite(ctx, g)
	if err != nil {
		return nil, err
	}
	if err := b.createAll(ctx, toolObjects(modelURL, toolsURL)); err != nil {
		return nil, err
	}
	t, err := b.start(ctx, contender{name: name, members: []member{
		managerMember(b.manager, "manager", "bench", "--max-concurrent-turns", strconv.Itoa(r.InFlight)).withLimits(group),
	}})
	if err != nil {
		return nil, err
	}
	if err := b.waitForTools(ctx); err != nil {
		return nil, err
	}
	if err := b.warmUp(ctx, t, name); err != nil {
		return nil, err
	}
	if err := b.measureHeld(ctx, name, t[0], g, r); err != nil {
		return nil, fmt.Errorf("failed to measure Turns in flight: %w", err)
	}
	return t, nil
}

// removeTools deletes the Turns, and the objects that only Turns with tools need.
func (b *bench) removeTools(ctx context.Context) error {
	errs := []error{b.deleteTurns(ctx)}
	for _, object := range toolObjects("", "") {
		errs = append(errs, b.api.Delete(ctx, object))
	}
	return errors.Join(errs...)
}

// startToolSite serves a model and a tool server from this process until the harness stops. The gate decides when the
// model replies.
func (b *bench) startToolSite(ctx context.Context, g *gate) (modelURL, toolsURL string, err error) {
	model, err := server.New(toolModel(b.replyChars), server.WithKeptRequests(0))
	if err != nil {
		return "", "", fmt.Errorf("failed to set up the fake model: %w", err)
	}
	if modelURL, err = b.harness.Serve(ctx, g.inFrontOf(model)); err != nil {
		return "", "", err
	}
	_, toolsURL, err = b.harness.ServeTickets(ctx)
	return modelURL + "/v1", toolsURL, err
}

// toolModel returns a model that calls a tool as often as the message of the Turn requires, and then answers. Each call
// has different arguments, because the manager would answer an identical call without the server.
func toolModel(replyChars int) server.Config {
	text := "x"
	answer := server.Reply{Text: &text, Repeat: replyChars, IgnoreMaxTokens: true}
	search := server.Reply{ToolCalls: []server.ToolCall{{
		Name: tickets.ToolSearch, Arguments: new(`{"query": "printer {{ .ToolMessages }}", "limit": 5}`),
	}}}
	return server.Config{Rules: []server.Rule{
		{When: server.When{Contains: messageHold, ToolMessages: new(0)}, Reply: search},
		{When: server.When{Contains: messageManySteps, ToolMessages: new(manySteps - 1)}, Reply: answer},
		{When: server.When{Contains: messageManySteps}, Reply: search},
		{Reply: answer},
	}}
}

// toolObjects returns the objects that Turns with tools need, in addition to the objects that the function objects
// returns.
func toolObjects(modelURL, toolsURL string) []client.Object {
	own := metav1.ObjectMeta{Name: toolsName, Namespace: namespace}
	const seconds = 600 // a slow Turn should count as slow instead of ending at its deadline
	return []client.Object{
		&v1alpha1.ModelProvider{ObjectMeta: own, Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, BaseURL: modelURL,
			CredentialsRef: &v1alpha1.SecretKeyReference{Name: objectName, Key: "apiKey"},
			Timeouts:       v1alpha1.ProviderTimeouts{IdleSeconds: seconds},
		}},
		&v1alpha1.ToolServer{ObjectMeta: own, Spec: v1alpha1.ToolServerSpec{
			Type: v1alpha1.ToolServerTypeMCP, MCP: &v1alpha1.MCPEndpoint{URL: toolsURL},
		}},
		&v1alpha1.Agent{ObjectMeta: own, Spec: v1alpha1.AgentSpec{
			PromptProfileRef: v1alpha1.SharedReference{Name: objectName},
			Models:           []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: toolsName}, Model: modelName}},
			Tools:            []v1alpha1.AgentTool{{ServerRef: &v1alpha1.SharedReference{Name: toolsName}}},
			Limits: &v1alpha1.Limits{
				TimeoutSeconds: new(int32(seconds)), MaxSteps: new(int32(30)),
				MaxToolCalls: new(int32(100)),
			},
		}},
	}
}

// toolTurns returns a function that makes the Turn with the given number. All Turns have the same message.
func toolTurns(prefix, message string, payload int) func(int) *v1alpha1.Turn {
	return func(i int) *v1alpha1.Turn {
		turn := newTurn(fmt.Sprintf("%s-%d", prefix, i), payload)
		turn.Spec.AgentRef.Name, turn.Spec.Message = toolsName, message
		return turn
	}
}

// waitForTools waits until the ToolServer and the Agent are ready.
func (b *bench) waitForTools(ctx context.Context) error {
	var tools v1alpha1.ToolServer
	var agent v1alpha1.Agent
	key := client.ObjectKey{Namespace: namespace, Name: toolsName}
	err := wait.PollUntilContextTimeout(ctx, b.settle, readyTimeout, true, func(ctx context.Context) (bool, error) {
		err := errors.Join(b.api.Get(ctx, key, &tools), b.api.Get(ctx, key, &agent))
		return err == nil && meta.IsStatusConditionTrue(tools.Status.Conditions, v1alpha1.ConditionReady) &&
			meta.IsStatusConditionTrue(agent.Status.Conditions, v1alpha1.ConditionReady), err
	})
	if err != nil {
		return fmt.Errorf("gave up waiting for the tools (conditions of their server %+v, of the Agent %+v): %w",
			tools.Status.Conditions, agent.Status.Conditions, err)
	}
	return nil
}

// measureHeld makes all Turns wait for the model at the same time, measures the manager, and lets the Turns end.
func (b *bench) measureHeld(ctx context.Context, name string, p *running, g *gate, r *HeldReport) error {
	before, err := useOf(p.PID())
	if err != nil {
		return err
	}
	r.IdleMiB = mebibytes(before.memory)
	b.logf("%s: %d Turns at the same time", name, r.InFlight)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		result, err := b.burstOf(ctx, r.InFlight, toolTurns(name+"-held", messageHold, b.payload))
		if err == nil {
			r.FailedTurns = result.failed
		}
		return err
	})
	group.Go(func() error {
		start := time.Now()
		if err := g.awaitFull(ctx, time.Duration(max(1, r.InFlight/1000))*holdTimeout); err != nil {
			return err
		}
		r.UntilInFlightSeconds = time.Since(start).Seconds()
		if r.Held, err = memoryAfterCollection(ctx, p); err != nil {
			return err
		}
		b.logf("%s: %d Turns in flight: %s MiB resident, live heap of %s MiB", name, r.InFlight, number(r.Held.ResidentMiB),
			number(r.Held.HeapMiB))
		g.open()
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	after, err := useOf(p.PID())
	r.PeakMiB = mebibytes(after.peakMemory)
	r.CPU = float64((after.cpu - before.cpu).Microseconds()) / 1000 / float64(r.InFlight)
	return err
}

// measureSteps counts the API writes for Turns with this number of steps. It repeats the Turns if one of them was so
// slow that the manager wrote its progress.
func (b *bench) measureSteps(ctx context.Context, t team, steps int, message string) (StepsCost, error) {
	for try := range stepTries {
		c, err := b.stepsCost(ctx, t, fmt.Sprintf("steps-%d-%d", steps, try), message)
		if err != nil || c.LongestSeconds < progressAfter.Seconds() {
			c.Steps = steps
			return c, err
		}
		b.logf("tools: a Turn of %d steps took %.1f s, so its progress was written: repeating", steps, c.LongestSeconds)
	}
	return StepsCost{}, fmt.Errorf("in each of %d attempts a Turn took %s or longer, so its progress was written: the machine is too busy",
		stepTries, progressAfter)
}

// stepsCost runs stepTurns Turns and returns their cost.
func (b *bench) stepsCost(ctx context.Context, t team, prefix, message string) (StepsCost, error) {
	if err := b.deleteTurns(ctx); err != nil {
		return StepsCost{}, err
	}
	before, err := b.sampleAfterWrites(ctx, t)
	if err != nil {
		return StepsCost{}, err
	}
	result, err := b.burstOf(ctx, stepTurns, toolTurns(prefix, message, 0))
	if err != nil {
		return StepsCost{}, err
	}
	after, err := b.sampleAfterWrites(ctx, t)
	if err != nil {
		return StepsCost{}, err
	}
	return newStepsCost(result, before, after), nil
}
