package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

const (
	objectName = "chaos" // the name of the objects that a Turn needs, except for the Agents and the narrow ModelProvider
	modelName  = "chaos"

	// slowestCall is the maximum time of a tool call, and maxRequestDelay the maximum delay of a request on its way to
	// the model server.
	slowestCall = 150 * time.Millisecond
	// slowestSlowCall replaces slowestCall in phases with slow Turns.
	slowestSlowCall = 1200 * time.Millisecond
	maxRequestDelay = 30 * time.Millisecond
	// retryInterval is the time between two attempts to reach the API server, which may be down.
	retryInterval = 300 * time.Millisecond
)

var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(authenticationv1.AddToScheme(scheme))
	utilruntime.Must(coordinationv1.AddToScheme(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
}

// currency is the currency of all prices, and pricing contains the prices of all models.
const currency = "USD"

var pricing = &v1alpha1.Pricing{Currency: currency, InputPerMillion: "1", OutputPerMillion: "7"}

// prepare creates the namespace of a phase and all objects that its Turns need.
func (r *rig) prepare(ctx context.Context, phase string) error {
	meta := metav1.ObjectMeta{Name: objectName, Namespace: phase}
	provider := v1alpha1.ModelProviderSpec{
		Type: v1alpha1.ProviderTypeOpenAI, BaseURL: r.modelURL,
		CredentialsRef: &v1alpha1.SecretKeyReference{Name: objectName, Key: "apiKey"},
	}
	narrow := provider
	provider.Models = []v1alpha1.Model{{Name: modelName, Pricing: pricing}}
	narrow.Models = []v1alpha1.Model{{Name: modelName, Pricing: pricing, ContextWindow: new(int64(narrowWindowTokens))}}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: phase}},
		&corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"apiKey": "chaos-key"}},
		&v1alpha1.ModelProvider{ObjectMeta: meta, Spec: provider},
		&v1alpha1.ModelProvider{ObjectMeta: metav1.ObjectMeta{Name: agentNarrow, Namespace: phase}, Spec: narrow},
		&v1alpha1.ToolServer{ObjectMeta: meta, Spec: v1alpha1.ToolServerSpec{
			Type: v1alpha1.ToolServerTypeMCP, MCP: &v1alpha1.MCPEndpoint{URL: r.toolsURL}, ConnectTimeoutSeconds: 30, Tools: declarations(),
		}},
		&v1alpha1.PromptProfile{ObjectMeta: meta, Spec: v1alpha1.PromptProfileSpec{
			ID: objectName, Version: "1.0.0", Instructions: "Do as you are told.",
		}},
		&v1alpha1.Session{ObjectMeta: meta},
		// No Turn reaches the limits, because the test only needs the Budget's counts.
		&v1alpha1.Budget{ObjectMeta: meta, Spec: v1alpha1.BudgetSpec{
			Period: v1alpha1.BudgetPeriodMonth, Currency: currency,
			Limits: v1alpha1.BudgetLimits{Tokens: new(int64(1_000_000_000_000)), Cost: new("1000000000")},
		}},
		agent(phase, agentHelper, objectName),
		agent(phase, agentMain, objectName, v1alpha1.AgentTool{AgentRef: &v1alpha1.SharedReference{Name: agentHelper}, Name: toolHelper}),
		agent(phase, agentNarrow, agentNarrow),
	}
	for _, object := range objects {
		if r.followUps && phase == phaseExecutors {
			enableFollowUps(object)
		}
		if err := r.api.Create(ctx, object); err != nil {
			return fmt.Errorf("failed to create %T %q: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// agent returns an Agent that uses a ModelProvider, the test's tool server and other tools.
func agent(phase, name, provider string, tools ...v1alpha1.AgentTool) *v1alpha1.Agent {
	reference := v1alpha1.SharedReference{Name: objectName}
	return &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: phase}, Spec: v1alpha1.AgentSpec{
		PromptProfileRef: reference,
		Models:           []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: provider}, Model: modelName}},
		Tools:            append([]v1alpha1.AgentTool{{ServerRef: &reference, RequireApproval: []string{toolWipe}}}, tools...),
		// A Turn must end with its answer, even after long outages.
		Limits: &v1alpha1.Limits{
			TimeoutSeconds: new(int32(3600)), StartingDeadlineSeconds: new(int32(3600)), MaxSteps: new(int32(10)),
		},
	}}
}

// createTurn creates a Turn of a plan. While the API server is down, it retries until ctx ends.
func (r *rig) createTurn(ctx context.Context, phase, name string, p plan, number int) error {
	for {
		t := &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: phase},
			Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: p.agent}, Message: p.message(number)},
		}
		t.Spec.RequestedBy = &v1alpha1.Requester{Username: r.user}
		if p.inSession {
			t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: objectName}
		}
		err := r.api.Create(ctx, t)
		// An existing Turn comes from an earlier attempt whose answer was lost.
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		if apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || !pause(ctx, retryInterval) {
			return fmt.Errorf("failed to create Turn %q: %w", name, err)
		}
	}
}

// turns returns the Turns of a phase. While the API server is down, it retries until ctx ends.
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

// awaitAllFinished waits until all Turns of a phase have finished.
func (r *rig) awaitAllFinished(ctx context.Context, phase string) error {
	for {
		turns, err := r.turns(ctx, phase)
		if err != nil {
			return err
		}
		left := 0
		for i := range turns {
			if !turns[i].IsFinished() {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		if !pause(ctx, pollInterval) {
			return fmt.Errorf("%d Turns have not finished: %w", left, context.Cause(ctx))
		}
	}
}

// collect gathers the evidence of a phase after all Turns have finished.
func (r *rig) collect(ctx context.Context, phase string, journals journalStore, kills []kill) (_ evidence, err error) {
	e := evidence{Called: r.tools.calls(), Kills: kills}
	if e.Asked, err = r.asked(); err != nil {
		return e, err
	}
	turns, err := r.turns(ctx, phase)
	if err != nil {
		return e, err
	}
	if e.Decided, err = r.decisions(ctx, phase); err != nil {
		return e, err
	}
	kept, err := journals.open(ctx)
	if err != nil {
		return e, fmt.Errorf("failed to open the store: %w", err)
	}
	defer kept.Close() //nolint:errcheck // because it was only read
	if e.Budget, err = r.budget(ctx, phase, kept); err != nil {
		return e, err
	}
	e.Records = []turnrecord.Record{}
	for record, err := range store.AllRecords(ctx, kept, store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: phase}}) {
		if err != nil {
			return e, fmt.Errorf("failed to read the records: %w", err)
		}
		e.Records = append(e.Records, *record)
	}
	for i := range turns {
		entries, err := journal.Collect(ctx, kept, string(turns[i].UID))
		if err != nil {
			return e, err
		}
		e.Turns = append(e.Turns, turnEvidence{Turn: &turns[i], Entries: entries})
	}
	var sessions v1alpha1.SessionList
	if err := r.api.List(ctx, &sessions, client.InNamespace(phase)); err != nil {
		return e, fmt.Errorf("failed to list the Sessions: %w", err)
	}
	for i := range sessions.Items {
		entries, err := journal.Collect(ctx, kept, string(sessions.Items[i].UID))
		if err != nil {
			return e, err
		}
		e.Sessions = append(e.Sessions, sessionEvidence{Session: &sessions.Items[i], Entries: entries})
	}
	return e, nil
}

// budget returns what the ledger has counted for the Budget of a phase.
func (r *rig) budget(ctx context.Context, phase string, kept keptJournal) (*budget.Account, error) {
	var b v1alpha1.Budget
	if err := r.api.Get(ctx, client.ObjectKey{Namespace: phase, Name: objectName}, &b); err != nil {
		return nil, fmt.Errorf("failed to get the Budget: %w", err)
	}
	accounts, err := kept.Accounts(ctx, time.Now())
	if err != nil {
		return nil, fmt.Errorf("failed to read the ledger of Budgets: %w", err)
	}
	for i := range accounts {
		if accounts[i].Budget == string(b.UID) {
			return &accounts[i], nil
		}
	}
	return &budget.Account{}, nil
}

// asked returns the requests that the model server has received.
func (r *rig) asked() ([]asked, error) {
	requests := r.model.Requests()
	if n := r.model.Stats().Requests; n != int64(len(requests)) {
		return nil, fmt.Errorf("the fake model kept %d of %d requests: run fewer Turns", len(requests), n)
	}
	all := make([]asked, 0, len(requests))
	for i := range requests {
		q := &requests[i]
		if !q.Billed && len(q.Body) > 0 && q.Body[0] == '"' {
			continue // a kill interrupted the request: the server received only a part and ignored it
		}
		var body struct {
			Messages []struct {
				Role, Content string
				ToolCallID    string `json:"tool_call_id"`
			}
		}
		if err := json.Unmarshal(q.Body, &body); err != nil {
			return nil, fmt.Errorf("failed to read request %d of the fake model: %w", q.Number, err)
		}
		a := asked{ID: q.ClientRequestID, Billed: q.Billed, Input: q.InputTokens, Output: q.OutputTokens}
		for _, m := range body.Messages {
			if m.Role == "system" && isFollowUp(m.Content) {
				a.FollowUp = true
			}
			if found := turnMessage.FindAllString(m.Content, -1); m.Role == "user" && len(found) > 0 {
				a.About = found[len(found)-1] // older messages of the Session come first
			}
			if m.Role == "tool" && strings.Contains(m.Content, "outcome_unknown") {
				a.Unknown = append(a.Unknown, m.ToolCallID)
			}
		}
		all = append(all, a)
	}
	return all, nil
}
