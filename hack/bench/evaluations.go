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
	judgedName = "bench-judged" // the name of the Agent whose answers are evaluated, of its profile and of the judges' model

	// evaluatedTurns is the number of Turns of a burst, and evaluationRounds the number of pairs of bursts with and
	// without evaluations.
	evaluatedTurns, evaluationRounds = 200, 5
	// maxDelay is the bound of the ratio of the times until an answer.
	maxDelay = 1.3
	// evaluateTimeout bounds the time until the answers of a round are evaluated.
	evaluateTimeout = 5 * time.Minute
)

// EvaluationsReport compares answers beside the evaluation of other answers with answers without evaluations. The
// values are the medians of several rounds.
type EvaluationsReport struct {
	// Turns is the number of Turns at once, beside the evaluations of as many others.
	Turns  int `json:"turns"`
	Rounds int `json:"rounds"`
	// Without and With are the times from the creation of a Turn to its completion.
	Without Percentiles `json:"withoutMilliseconds"`
	With    Percentiles `json:"withMilliseconds"`
	// EvaluatedSeconds is the time from the end of the last Turn of a round until all Turns of the round were
	// evaluated.
	EvaluatedSeconds float64 `json:"evaluatedSeconds"`
	// Evaluated is the number of evaluated Turns of all rounds, and Failed that of Turns with an evaluation that
	// failed.
	Evaluated int `json:"evaluated"`
	Failed    int `json:"failed,omitempty"`
	// FailedTurns are Turns that did not succeed, by reason.
	FailedTurns map[string]int `json:"failedTurns,omitempty"`
}

// compareEvaluations measures the time until an answer beside the evaluations of other answers. In each round, a burst
// of Turns follows another burst at once. With evaluations, those of the first burst run beside the second one, which
// is measured.
func (b *bench) compareEvaluations(ctx context.Context) (*EvaluationsReport, error) {
	_, judgeURL, err := b.harness.ServeModel(ctx, server.Config{Rules: []server.Rule{{
		Reply: server.Reply{Text: new(`{"score": 90, "reason": "The answer keeps to it."}`), IgnoreMaxTokens: true},
	}}}, server.WithKeptRequests(0))
	if err != nil {
		return nil, err
	}
	own := judgedObjects(judgeURL)
	if err := b.createAll(ctx, own); err != nil {
		return nil, err
	}
	t, err := b.start(ctx, contender{name: phaseEvaluations, members: []member{managerMember(b.manager, "manager", "bench")}})
	if err != nil {
		return nil, err
	}
	if err := b.warmUp(ctx, t, phaseEvaluations); err != nil {
		return nil, err
	}
	r := &EvaluationsReport{Turns: evaluatedTurns, Rounds: evaluationRounds, FailedTurns: map[string]int{}}
	var without, with []Percentiles
	var evaluated []float64
	for round := range evaluationRounds {
		b.say("%s: round %d of %d", phaseEvaluations, round+1, evaluationRounds)
		one, err := b.twoBursts(ctx, fmt.Sprintf("without-%d", round), objectName, r)
		if err != nil {
			return nil, err
		}
		other, err := b.twoBursts(ctx, fmt.Sprintf("with-%d", round), judgedName, r)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		if err := b.awaitEvaluations(ctx, r); err != nil {
			return nil, err
		}
		without, with = append(without, one), append(with, other)
		evaluated = append(evaluated, time.Since(start).Seconds())
		if err := b.deleteTurns(ctx); err != nil {
			return nil, err
		}
	}
	r.Without, r.With, r.EvaluatedSeconds = medianPercentiles(without), medianPercentiles(with), median(evaluated)
	errs := []error{t.stop()}
	for _, object := range own {
		errs = append(errs, b.api.Delete(ctx, object))
	}
	return r, errors.Join(errs...)
}

// twoBursts runs two bursts of an Agent, one right after the other, and returns the times of the second one.
func (b *bench) twoBursts(ctx context.Context, name, agent string, r *EvaluationsReport) (Percentiles, error) {
	var last *burstResult
	for i := range 2 {
		result, err := b.burstOf(ctx, evaluatedTurns, func(n int) *v1alpha1.Turn {
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
		last = result
	}
	return percentiles(last.latencies, 0), nil
}

// awaitEvaluations waits until all Turns of the Agent with judges are evaluated, and counts them.
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
		return done == 2*evaluatedTurns, nil
	})
	r.Evaluated, r.Failed = r.Evaluated+done, r.Failed+failed
	if err != nil {
		return fmt.Errorf("failed to wait for the evaluations of %d Turns, %d are done: %w", 2*evaluatedTurns, done, err)
	}
	return nil
}

// judgedObjects returns the objects of the Agent whose answers are evaluated, in addition to those of objects.
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

// failure returns an error if a Turn or an evaluation has failed, or if evaluations delayed the answers.
func (r *EvaluationsReport) failure() error {
	var errs []error
	if len(r.FailedTurns) > 0 {
		errs = append(errs, fmt.Errorf("not all Turns succeeded beside evaluations: %v", r.FailedTurns))
	}
	if want := 2 * r.Turns * r.Rounds; r.Evaluated != want || r.Failed > 0 {
		errs = append(errs, fmt.Errorf("%d Turns were evaluated, %d with a failed evaluation, want %d and none",
			r.Evaluated, r.Failed, want))
	}
	for _, p := range r.rows() {
		if p.with > p.without*maxDelay {
			errs = append(errs, fmt.Errorf("answers beside evaluations took %s of the time of other answers, %s, more than %.2f",
				ratio(p.with, p.without), p.name, maxDelay))
		}
	}
	return errors.Join(errs...)
}

type delayRow struct {
	name          string
	without, with float64
}

func (r *EvaluationsReport) rows() []delayRow {
	return []delayRow{{"p50", r.Without.P50, r.With.P50}, {"p95", r.Without.P95, r.With.P95}}
}

func (r *EvaluationsReport) table(s Setup) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d Turns at once beside the evaluations of %d others, model latency %s, %d CPUs, medians of %d rounds\n\n",
		r.Turns, r.Turns, time.Duration(s.LatencyMilliseconds)*time.Millisecond, s.CPUs, r.Rounds)
	const line = "%-34s%10s%10s%8s%10s%s\n"
	fmt.Fprintf(&text, line, "evaluations", "none", "all", "ratio", "at most", "")
	for _, p := range r.rows() {
		mark := ""
		if p.with > p.without*maxDelay {
			mark = "  EXCEEDED"
		}
		fmt.Fprintf(&text, line, "creation to completion, "+p.name+", ms", number(p.without), number(p.with), ratio(p.with, p.without),
			number(maxDelay), mark)
	}
	fmt.Fprintf(&text, "\nAll %d Turns with judges were evaluated, the %d of a round %.1f s after its last answer.\n",
		r.Evaluated, 2*r.Turns, r.EvaluatedSeconds)
	return text.String()
}
