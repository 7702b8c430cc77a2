package translate

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/shopspring/decimal"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// JudgeModels returns the models that the judges of an Agent ask, and the thinking level of the requests to them: the
// Agent's level if they are the Agent's own models, and otherwise none.
func JudgeModels(a *v1alpha1.Agent) ([]v1alpha1.ModelReference, v1alpha1.ThinkingLevel) {
	if e := a.Spec.Evaluation; e != nil && len(e.Models) > 0 {
		return e.Models, ""
	}
	return a.Spec.Models, a.Spec.Thinking
}

// JudgeModel returns the index of a model in JudgeModels, or -1 if the judges must not ask it. provider is the name of
// a ModelProvider in the Agent's namespace.
func JudgeModel(a *v1alpha1.Agent, provider, name string) int {
	models, _ := JudgeModels(a)
	return slices.IndexFunc(models, func(m v1alpha1.ModelReference) bool {
		key := m.ProviderRef.Key(a.Namespace)
		return key.Namespace == a.Namespace && key.Name == provider && m.Model == name
	})
}

// IsSampled reports whether a Turn belongs to the sample of its Agent's Turns that is evaluated. The result depends on
// the UID of the Turn, so it is always the same.
func IsSampled(a *v1alpha1.Agent, t *v1alpha1.Turn) bool {
	e := a.Spec.Evaluation
	if e == nil {
		return false
	}
	if e.SamplePercent == nil {
		return true
	}
	sum := sha256.Sum256([]byte("evaluation/" + t.UID))
	return binary.BigEndian.Uint64(sum[:])%100 < uint64(max(0, *e.SamplePercent))
}

// maxEvaluationBytes is the maximum size of each text of an evaluation in a status, which are the reason and the model,
// in bytes of JSON.
const maxEvaluationBytes = 600

// Evaluations returns evaluations for the status of a Turn, at most judge.MaxPerProfile.
func Evaluations(all []task.Evaluation) []v1alpha1.Evaluation {
	var out []v1alpha1.Evaluation
	for i := range all[:min(len(all), judge.MaxPerProfile)] {
		e := &all[i]
		one := v1alpha1.Evaluation{
			Name: e.Judge, Type: v1alpha1.JudgeType(e.Kind), Result: v1alpha1.EvaluationError, Threshold: e.Threshold,
			Reason: TruncateJSON(e.Reason, maxEvaluationBytes), Time: metav1.NewTime(e.Time.Truncate(time.Second)),
		}
		if e.Score != "" {
			one.Score, one.Result = &e.Score, v1alpha1.EvaluationPassed
			if e.Verdict != string(judge.Passed) {
				one.Result = v1alpha1.EvaluationFailed
			}
		}
		if e.Model != "" {
			one.Model = TruncateJSON(e.Provider+"/"+e.Model, maxEvaluationBytes)
		}
		if e.Usage != (model.Usage{}) {
			one.Usage = Usage(e.Usage, evaluationCost(e.Cost), decimal.Zero)
		}
		out = append(out, one)
	}
	return out
}

func evaluationCost(c *turnrecord.Cost) *finalize.Cost {
	if c == nil {
		return nil
	}
	return &finalize.Cost{Amount: c.Amount, Currency: c.Currency}
}

// Evaluation returns the evaluation of a judge in the form that a task keeps.
func Evaluation(e *judge.Evaluation, now time.Time) task.Evaluation {
	out := task.Evaluation{
		Evaluation: turnrecord.Evaluation{
			Judge: e.Judge, Kind: string(e.Kind), Verdict: string(e.Verdict), Threshold: e.Threshold.String(), Provider: e.Provider,
			Model: e.Model, Usage: e.Usage, Time: now.UTC(),
		},
		Reason: e.Reason,
	}
	if e.Score != nil {
		out.Score = e.Score.String()
	}
	if e.Cost != nil {
		out.Cost = &turnrecord.Cost{Amount: e.Cost.Amount.Round(12).String(), Currency: e.Cost.Currency}
	}
	return out
}
