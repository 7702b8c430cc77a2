// Package metrics defines Capstan's own metrics on the registry that the manager serves: metrics of Turns, requests to
// models, evaluations, memories, Budgets, journals and reserved memory. It bounds the number of their series.
package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

var (
	running = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "capstan_turns_running", Help: "Turns that this executor is running.",
	}, []string{"namespace"})
	// Capacity is the number of Turns that this process can run at the same time.
	Capacity = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capstan_turns_capacity", Help: "Turns that this executor can run at the same time.",
	})
	controllers = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capstan_controller_active", Help: "Whether this process is the active controller: 1 if it is, 0 " +
			"in an executor and in a standby replica.",
	})
	ended    = counter("capstan_turns_total", "Turns that have ended, by the reason of their main condition.", "reason")
	duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "capstan_turn_duration_seconds", Help: "Time from the start of a turn to its end.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 900},
	}, []string{"namespace"})
	modelRequests = counter("capstan_model_requests_total", "Requests to models, including retries, of turns that have ended.")
	modelRetries  = counter("capstan_model_retries_total", "Requests to models that repeated a failed request, of turns that have ended.")
	tokens        = counter("capstan_tokens_total",
		"Tokens used by turns that have ended, by provider, model and type (input, output), and whether a part is estimated.",
		"provider", "model", "type", "estimated")
	toolCalls       = counter("capstan_tool_calls_total", "Calls of tools, of turns that have ended.")
	contextWarnings = counter("capstan_context_warnings_total",
		"Turns that have ended and whose conversation approached the size of the model's context window.")
	compactions = counter("capstan_compactions_total", "Summaries that replaced older messages, of turns that have ended.")
	parked      = counter("capstan_turns_parked_total",
		"Times that turns released their slot to wait, by the reason of their main condition.", "reason")
	journalsLost = counter("capstan_journals_lost_total",
		"Journals of turns that a later run found lost, by the outcome of the turn (interrupted, rerun).", "outcome")
	queueWait = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "capstan_turn_wait_seconds", Help: "Time from the creation of a turn, or the end of its " +
			"suspension, to its first binding to an executor.",
		Buckets: []float64{1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600},
	}, []string{"namespace"})
	waitByReason = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "capstan_turn_wait_by_reason_seconds", Help: "Time that a turn has waited to start or to continue, for one " +
			"reason of its main condition. Waits for approvals and sub-agents are not counted.",
		Buckets: []float64{1, 5, 15, 60, 300, 900, 3600, 14400},
	}, []string{"namespace", "reason"})
	eventsDropped = counter("capstan_events_dropped_total",
		"Events that were not written, because too many were waiting or the API server did not accept them.")
	cost = counter("capstan_cost_total", "Cost of turns that have ended, without the cost of their sub-agents, by currency.", "currency")
	// vectors are all metrics with the label namespace.
	vectors = append([]vector{
		running.MetricVec, ended.MetricVec, duration.MetricVec, modelRequests.MetricVec, modelRetries.MetricVec,
		tokens.MetricVec, toolCalls.MetricVec,
		contextWarnings.MetricVec, compactions.MetricVec, parked.MetricVec, journalsLost.MetricVec,
		queueWait.MetricVec, waitByReason.MetricVec, cost.MetricVec, eventsDropped.MetricVec,
		evaluations.MetricVec, evaluationScore.MetricVec, evaluationTokens.MetricVec, evaluationsSkipped.MetricVec,
		memoriesLearned.MetricVec, memoriesRefused.MetricVec, memoriesFailed.MetricVec, memoryTokens.MetricVec, learningSkipped.MetricVec,
		recallFailures.MetricVec, embeddingFailures.MetricVec, refusedRequests.MetricVec,
	}, requestVectors...)
	purged = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "capstan_journals_purged_total", Help: "Journals of deleted turns and sessions that were purged.",
	})
	clockOffset = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capstan_clock_offset_seconds", Help: "How far the clock of the API server is ahead of the clock of this machine.",
	})
	journals     = &journalSize{}
	journalUsage = &journalUsages{}
	waiting      = &waits{}
)

// vector is a metric with labels.
type vector interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// counter returns a counter with the label namespace before its other labels.
func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"namespace"}, labels...))
}

// Loss is the outcome of a Turn whose journal was lost.
type Loss string

const (
	// LossInterrupted means that the Turn ended.
	LossInterrupted Loss = "interrupted"
	// LossRerun means that the Turn started over.
	LossRerun Loss = "rerun"
)

func init() {
	metrics.Registry.MustRegister(running, Capacity, controllers, ended, duration, modelRequests, modelRetries, tokens,
		toolCalls, contextWarnings, compactions, parked, journalsLost,
		tokenUsage, requestDuration, firstChunk, requestErrors, requestCost,
		waiting, waitingForSlots, queueWait, waitByReason, cost, eventsDropped, purged, clockOffset,
		evaluations, evaluationScore, evaluationTokens, evaluationsSkipped, evaluationsWaiting, evaluationsOldest,
		memoriesLearned, memoriesRefused, memoriesFailed, memoryTokens, learningSkipped, recallFailures, embeddingFailures,
		refusedRequests, budgets, journals, journalUsage, memory, modelGates)
}

// Controls records that this process is the active controller, until done is called.
func Controls() (done func()) {
	controllers.Inc()
	return controllers.Dec
}

// Started counts a running Turn of a namespace, until done is called.
func Started(namespace string) (done func()) {
	known.withNamespace(namespace, func(label string, n *namespaceSeries) {
		add := func(delta int) {
			running.WithLabelValues(label).Add(float64(delta))
			if n != nil {
				n.running += delta
			}
		}
		add(1)
		done = func() {
			known.mu.Lock()
			defer known.mu.Unlock()
			add(-1)
		}
	})
	return done
}

// Ended counts a Turn that has ended, after its status was written. result is nil if the engine has no result.
func Ended(t *v1alpha1.Turn, result *turn.Result) {
	known.withNamespace(t.Namespace, func(label string, n *namespaceSeries) {
		ended.WithLabelValues(label, t.StateReason()).Inc()
		if result == nil {
			return
		}
		if ms := t.Status.DurationMilliseconds; ms != nil {
			duration.WithLabelValues(label).Observe(float64(*ms) / 1000)
		}
		modelRequests.WithLabelValues(label).Add(float64(result.Counts.ModelRequests))
		modelRetries.WithLabelValues(label).Add(float64(result.Counts.ModelRetries))
		toolCalls.WithLabelValues(label).Add(float64(result.Counts.ToolCalls))
		compactions.WithLabelValues(label).Add(float64(result.Counts.Compactions))
		if result.Warned {
			contextWarnings.WithLabelValues(label).Inc()
		}
		if c := result.Record.Cost; c != nil {
			if amount, err := strconv.ParseFloat(c.Amount, 64); err == nil && amount > 0 {
				cost.WithLabelValues(label, n.currency(c.Currency)).Add(amount)
			}
		}
		for _, s := range result.Spent {
			estimated := strconv.FormatBool(s.Usage.Estimated)
			p := n.admit(label, pair{s.Provider, s.Model})
			tokens.WithLabelValues(label, p.provider, p.model, "input", estimated).Add(float64(s.Usage.InputTokens))
			tokens.WithLabelValues(label, p.provider, p.model, "output", estimated).Add(float64(s.Usage.OutputTokens))
		}
	})
}

// Bound counts a Turn that was bound to an executor for the first time. waited is its waiting time.
func Bound(namespace string, waited time.Duration) {
	known.withNamespace(namespace, func(label string, _ *namespaceSeries) { queueWait.WithLabelValues(label).Observe(waited.Seconds()) })
}

// Waited counts the end of a Turn's wait for one reason.
func Waited(namespace, reason string, waited time.Duration) {
	known.withNamespace(namespace, func(label string, _ *namespaceSeries) {
		waitByReason.WithLabelValues(label, reason).Observe(max(0, waited).Seconds())
	})
}

// Waits notes that a Turn of a namespace begins to wait. The gauge of waiting Turns is collected at scrapes, which do
// not use a namespace: without this, the first waits of a namespace could be shown as those of other namespaces.
func Waits(namespace string) { known.withNamespace(namespace, func(string, *namespaceSeries) {}) }

// SetClockOffset sets how far the clock of the API server is ahead of the clock of this machine.
func SetClockOffset(d time.Duration) { clockOffset.Set(d.Seconds()) }

// Parked counts a Turn that was parked, after its status was written.
func Parked(t *v1alpha1.Turn) {
	known.withNamespace(t.Namespace, func(label string, _ *namespaceSeries) { parked.WithLabelValues(label, t.StateReason()).Inc() })
}

// EventDropped counts an Event that was not written.
func EventDropped(namespace string) {
	known.withNamespace(namespace, func(label string, _ *namespaceSeries) { eventsDropped.WithLabelValues(label).Inc() })
}

// JournalLost counts a Turn whose journal was lost, after its status was written.
func JournalLost(t *v1alpha1.Turn, l Loss) {
	known.withNamespace(t.Namespace, func(label string, _ *namespaceSeries) { journalsLost.WithLabelValues(label, string(l)).Inc() })
}
