package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

const (
	// judgedName is the name of the Agent whose answers are evaluated, of its profile, and of the ModelProvider of its
	// judges.
	judgedName = "bench-judged"

	// evaluationBurst is the number of Turns of each burst, with or without evaluations.
	evaluationBurst = 200
	// evaluationRounds is the number of rounds: see compareEvaluations.
	evaluationRounds = 5
	// maxSlowdown is the maximum factor by which evaluations may increase the time until an answer.
	maxSlowdown = 1.3
	// evaluateTimeout is the maximum time until all answers of a round are evaluated.
	evaluateTimeout = 5 * time.Minute
)

// EvaluationsReport compares the times until answers while other answers are evaluated with the times without any
// evaluations. The times are the medians of several rounds.
type EvaluationsReport struct {
	// TurnsPerBurst is the number of Turns that run at the same time. With evaluations, the answers of the same
	// number of other Turns are evaluated while they run.
	TurnsPerBurst int `json:"turnsPerBurst"`
	Rounds        int `json:"rounds"`
	// WithoutEvaluations and WithEvaluations are the times from the creation of a Turn to its completion.
	WithoutEvaluations Percentiles `json:"withoutEvaluationsMilliseconds"`
	WithEvaluations    Percentiles `json:"withEvaluationsMilliseconds"`
	// SecondsUntilEvaluated is the time from the end of the last Turn of a round until all answers of the round are
	// evaluated.
	SecondsUntilEvaluated float64 `json:"secondsUntilEvaluated"`
	// EvaluatedTurns is the number of Turns of all rounds whose answers were evaluated. FailedEvaluations is the number
	// of these Turns that a judge did not let pass, or whose judge failed.
	EvaluatedTurns    int `json:"evaluatedTurns"`
	FailedEvaluations int `json:"failedEvaluations,omitempty"`
	// FailedTurns are the numbers of Turns that did not succeed, by reason.
	FailedTurns map[string]int `json:"failedTurns,omitempty"`
}

// compareEvaluations measures the time until an answer while other answers are evaluated. A round consists of two
// pairs of bursts: a pair without evaluations, and a pair whose answers are evaluated. The second burst of a pair
// starts when the Turns of the first burst have ended, and only the second burst is measured. So the answers of the
// first burst are evaluated while the Turns of the second burst run.
func (b *bench) compareEvaluations(ctx context.Context) (*EvaluationsReport, error) {
	_, judgeURL, err := b.harness.ServeModel(ctx, server.Config{Rules: []server.Rule{{
		Reply: server.Reply{Text: new(`{"score": 90, "reason": "The answer keeps to it."}`), IgnoreMaxTokens: true},
	}}}, server.WithKeptRequests(0))
	if err != nil {
		return nil, err
	}
	judged := judgedObjects(judgeURL)
	if err := b.createAll(ctx, judged); err != nil {
		return nil, err
	}
	t, err := b.start(ctx, contender{name: phaseEvaluations, members: []member{managerMember(b.manager, "manager", "bench")}})
	if err != nil {
		return nil, err
	}
	if err := b.warmUp(ctx, t, phaseEvaluations); err != nil {
		return nil, err
	}
	r := &EvaluationsReport{TurnsPerBurst: evaluationBurst, Rounds: evaluationRounds, FailedTurns: map[string]int{}}
	var without, with []Percentiles
	var evaluated []float64
	for round := range evaluationRounds {
		b.logf("%s: round %d of %d", phaseEvaluations, round+1, evaluationRounds)
		baseline, err := b.twoBursts(ctx, fmt.Sprintf("without-%d", round), objectName, r)
		if err != nil {
			return nil, err
		}
		evaluating, err := b.twoBursts(ctx, fmt.Sprintf("with-%d", round), judgedName, r)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		if err := b.awaitEvaluations(ctx, r); err != nil {
			return nil, err
		}
		without, with = append(without, baseline), append(with, evaluating)
		evaluated = append(evaluated, time.Since(start).Seconds())
		if err := b.deleteTurns(ctx); err != nil {
			return nil, err
		}
	}
	r.WithoutEvaluations, r.WithEvaluations = medianPercentiles(without), medianPercentiles(with)
	r.SecondsUntilEvaluated = median(evaluated)
	errs := []error{t.stop()}
	for _, object := range judged {
		errs = append(errs, b.api.Delete(ctx, object))
	}
	return r, errors.Join(errs...)
}

// twoBursts runs two bursts of Turns of an Agent, one right after the other, and returns the times of the second burst.
// It adds the failed Turns of both bursts to r.
func (b *bench) twoBursts(ctx context.Context, name, agent string, r *EvaluationsReport) (Percentiles, error) {
	var second *burstResult
	for i := range 2 {
		result, err := b.burstOf(ctx, evaluationBurst, func(n int) *v1alpha1.Turn {
			turn := newTurn(fmt.Sprintf("%s-%d-%d", name, i, n), b.payload)
			turn.Spec.AgentRef.Name = agent
			return turn
		})
		if err != nil {
			return Percentiles{}, err
		}
		for reason, n := range result.failed {
			r.FailedTurns[reason] += n
		}
		second = result
	}
	return percentiles(second.latencies, 0), nil
}

// awaitEvaluations waits until the answers of all Turns of the Agent with judges are evaluated. It adds the number
// of evaluated Turns and the number of failed evaluations to r.
func (b *bench) awaitEvaluations(ctx context.Context, r *EvaluationsReport) error {
	var done, failed int
	err := wait.PollUntilContextTimeout(ctx, b.settle, evaluateTimeout, true, func(ctx context.Context) (bool, error) {
		var turns v1alpha1.TurnList
		if err := b.api.List(ctx, &turns, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		done, failed = 0, 0
		for i := range turns.Items {
			if all := turns.Items[i].Status.Evaluations; len(all) > 0 {
				done++
				for _, e := range all {
					if e.Result != v1alpha1.EvaluationPassed {
						failed++
						break
					}
				}
			}
		}
		return done == 2*evaluationBurst, nil
	})
	r.EvaluatedTurns, r.FailedEvaluations = r.EvaluatedTurns+done, r.FailedEvaluations+failed
	if err != nil {
		return fmt.Errorf("gave up waiting for the evaluations of %d Turns, %d are done: %w", 2*evaluationBurst, done, err)
	}
	return nil
}

// judgedObjects returns the objects that Turns with evaluated answers need, in addition to the objects that the
// function objects returns.
func judgedObjects(judgeURL string) []client.Object {
	own := metav1.ObjectMeta{Name: judgedName, Namespace: namespace}
	return []client.Object{
		&v1alpha1.ModelProvider{ObjectMeta: own, Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, BaseURL: judgeURL,
			CredentialsRef: &v1alpha1.SecretKeyReference{Name: objectName, Key: "apiKey"},
		}},
		&v1alpha1.PromptProfile{ObjectMeta: own, Spec: v1alpha1.PromptProfileSpec{
			ID: judgedName, Version: "1.0.0", Instructions: "Answer in one sentence.",
			Judges: []v1alpha1.Judge{
				{Name: "relevance", Type: v1alpha1.JudgeRelevance},
				{Name: "polite", Type: v1alpha1.JudgeCustom, Prompt: "The answer is polite."},
			},
		}},
		&v1alpha1.Agent{ObjectMeta: own, Spec: v1alpha1.AgentSpec{
			PromptProfileRef: v1alpha1.SharedReference{Name: judgedName},
			Models:           []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: objectName}, Model: modelName}},
			Evaluation: &v1alpha1.AgentEvaluation{
				Models:     []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: judgedName}, Model: modelName}},
				MaxPerHour: new(int32(100_000)),
			},
		}},
	}
}

// medianPercentiles returns the median of each percentile.
func medianPercentiles(all []Percentiles) Percentiles {
	var p50, p95 []float64
	for _, p := range all {
		p50, p95 = append(p50, p.P50), append(p95, p.P95)
	}
	return Percentiles{P50: median(p50), P95: median(p95)}
}

// failure returns an error if a Turn or an evaluation failed, or if evaluations delayed the answers by more than
// maxSlowdown.
func (r *EvaluationsReport) failure() error {
	var errs []error
	if len(r.FailedTurns) > 0 {
		errs = append(errs, fmt.Errorf("not all Turns succeeded: %v", r.FailedTurns))
	}
	if want := 2 * r.TurnsPerBurst * r.Rounds; r.EvaluatedTurns != want || r.FailedEvaluations > 0 {
		errs = append(errs, fmt.Errorf("%d Turns were evaluated, want %d; the evaluation of %d Turns failed, want 0",
			r.EvaluatedTurns, want, r.FailedEvaluations))
	}
	for _, p := range r.rows() {
		if p.with > p.without*maxSlowdown {
			errs = append(errs, fmt.Errorf("creation to completion, %s: %s ms with evaluations, %s ms without, %s times as long, "+
				"more than %.2f", p.name, number(p.with), number(p.without), ratio(p.with, p.without), maxSlowdown))
		}
	}
	return errors.Join(errs...)
}

// slowdownRow is a percentile of the times until an answer, in milliseconds, without and with evaluations.
type slowdownRow struct {
	name          string
	without, with float64
}

func (r *EvaluationsReport) rows() []slowdownRow {
	return []slowdownRow{
		{"p50", r.WithoutEvaluations.P50, r.WithEvaluations.P50}, {"p95", r.WithoutEvaluations.P95, r.WithEvaluations.P95},
	}
}

func (r *EvaluationsReport) table(s Setup) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d Turns at the same time, during the evaluations of %d others, model latency %s, %d CPUs, "+
		"medians of %d rounds\n\n",
		r.TurnsPerBurst, r.TurnsPerBurst, time.Duration(s.LatencyMilliseconds)*time.Millisecond, s.CPUs, r.Rounds)
	const line = "%-34s%10s%10s%8s%10s%s\n"
	fmt.Fprintf(&text, line, "evaluations", "none", "all", "ratio", "limit", "")
	for _, p := range r.rows() {
		mark := ""
		if p.with > p.without*maxSlowdown {
			mark = "  EXCEEDED"
		}
		fmt.Fprintf(&text, line, "creation to completion, "+p.name+", ms", number(p.without), number(p.with), ratio(p.with, p.without),
			number(maxSlowdown), mark)
	}
	fmt.Fprintf(&text, "\nAll %d Turns with judges were evaluated. The %d Turns of a round were evaluated %.1f s after its last answer.\n",
		r.EvaluatedTurns, 2*r.TurnsPerBurst, r.SecondsUntilEvaluated)
	return text.String()
}
