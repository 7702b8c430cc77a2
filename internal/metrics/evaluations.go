package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

const (
	// mostJudges is the number of pairs of an Agent and a judge that have their own series in one namespace. A
	// namespace always has room for ownJudges pairs. The pairs beyond that, of all namespaces together, are at most
	// sharedJudges.
	mostJudges   = 16
	ownJudges    = 2
	sharedJudges = 256
)

// judgeKey is a judge of an Agent. Its value in the map judges is the number of sweeps since its metrics last changed.
type judgeKey struct{ agent, judge string }

var (
	evaluations = counter("capstan_evaluations_total",
		"Evaluations of answers by judges, by agent, judge and result (Passed, Failed, Error).", "agent", "judge", "result")
	evaluationScore = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "capstan_evaluation_score", Help: "Scores that judges gave to answers, from 0 to 1.",
		Buckets: []float64{.25, .5, .6, .7, .8, .9, .95},
	}, []string{"namespace", "agent", "judge"})
	evaluationTokens = counter("capstan_evaluation_tokens_total",
		"Tokens used by evaluations of answers, by type (input, output). They are not in capstan_tokens_total.", "type")
	evaluationsSkipped = counter("capstan_evaluations_skipped_total",
		"Turns that were not evaluated although they should have been, by reason.", "reason")
	evaluationsWaiting = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capstan_evaluations_waiting",
		Help: "Tasks of all executors, evaluations of answers and learning of memories together, that have not ended.",
	})
	evaluationsOldest = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capstan_evaluations_oldest_seconds",
		Help: "Age of the oldest task (evaluation or learning) that has not ended, in seconds since the end of its turn; " +
			"0 if there is none.",
	})
	// judgeVectors are the metrics with the labels agent and judge.
	judgeVectors = []vector{evaluations.MetricVec, evaluationScore.MetricVec}
)

// SetEvaluationQueue sets the number of tasks that have not ended, of all kinds, and how long the oldest of them has
// waited.
func SetEvaluationQueue(waiting int64, oldest time.Duration) {
	evaluationsWaiting.Set(float64(waiting))
	evaluationsOldest.Set(max(0, oldest.Seconds()))
}

// EvaluationSkipped counts a Turn that was not evaluated although it should have been.
func EvaluationSkipped(namespace, reason string) {
	known.withNamespace(namespace, func(label string, _ *namespaceSeries) { evaluationsSkipped.WithLabelValues(label, reason).Inc() })
}

// Evaluated counts an evaluation of an answer of an Agent.
func Evaluated(namespace, agent string, e *turnrecord.Evaluation) {
	known.withNamespace(namespace, func(label string, n *namespaceSeries) {
		key := known.admitJudge(label, n, judgeKey{agent, e.Judge})
		result := "Error"
		if score, err := strconv.ParseFloat(e.Score, 64); err == nil {
			evaluationScore.WithLabelValues(label, key.agent, key.judge).Observe(score)
			if result = "Failed"; e.Verdict == "Passed" {
				result = "Passed"
			}
		}
		evaluations.WithLabelValues(label, key.agent, key.judge, result).Inc()
		evaluationTokens.WithLabelValues(label, "input").Add(float64(max(0, e.Usage.InputTokens)))
		evaluationTokens.WithLabelValues(label, "output").Add(float64(max(0, e.Usage.OutputTokens)))
	})
}

// admitJudge returns the labels agent and judge of a key. name is the name of the namespace; n is nil for Other. The
// caller must hold the lock.
func (b *bounds) admitJudge(name string, n *namespaceSeries, key judgeKey) judgeKey {
	if n == nil {
		return judgeKey{Other, Other}
	}
	shared := func() (sum int) {
		for _, n := range b.namespaces {
			sum += max(0, len(n.judges)-ownJudges)
		}
		return sum
	}
	room := func() bool { return len(n.judges) < ownJudges || len(n.judges) < mostJudges && shared() < sharedJudges }
	if !admit(n.judges, key, room, func(k judgeKey) { n.dropJudge(name, k) }) {
		return judgeKey{Other, Other}
	}
	return key
}

// dropJudge deletes all series of a judge.
func (n *namespaceSeries) dropJudge(name string, k judgeKey) {
	delete(n.judges, k)
	for _, v := range judgeVectors {
		v.DeletePartialMatch(prometheus.Labels{"namespace": name, "agent": k.agent, "judge": k.judge})
	}
}
