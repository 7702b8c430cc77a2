// Package metrics counts what becomes of Turns, on the registry that the manager serves.
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
	// Running are the Turns that this process runs.
	Running = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capstan_turns_running", Help: "Turns that this executor is running.",
	})
	// Capacity is how many Turns this process runs at once.
	Capacity = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capstan_turns_capacity", Help: "Turns that this executor runs at once.",
	})
	ended = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capstan_turns_total", Help: "Turns that have ended, by the reason of their main condition.",
	}, []string{"reason"})
	duration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "capstan_turn_duration_seconds", Help: "Time from the start of a turn to its end.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 900},
	})
	modelRequests = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "capstan_model_requests_total", Help: "Requests to models, retries included, of turns that have ended.",
	})
	modelRetries = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "capstan_model_retries_total", Help: "Requests to models that repeated a failed one, of turns that have ended.",
	})
	tokens = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capstan_tokens_total", Help: "Tokens used by turns that have ended, by provider, model and type (input, output), and whether a part is estimated.",
	}, []string{"provider", "model", "type", "estimated"})
	toolCalls = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "capstan_tool_calls_total", Help: "Calls of tools, of turns that have ended.",
	})
	contextWarnings = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "capstan_context_warnings_total", Help: "Turns that have ended and whose conversation has come near the model's context window.",
	})
	compactions = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "capstan_compactions_total", Help: "Summaries that replaced older messages, of turns that have ended.",
	})
	parked = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capstan_turns_parked_total", Help: "Times that turns gave up their place to wait, by the reason of their main condition.",
	}, []string{"reason"})
	purged = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "capstan_journals_purged_total", Help: "Journals of deleted turns and sessions that were purged.",
	})
	clockOffset = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "capstan_clock_offset_seconds", Help: "How far the clock of the API server is ahead of that of this machine.",
	})
	journalsLost = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capstan_journals_lost_total", Help: "Journals of turns that a later run found lost, by what became of the turn (interrupted, rerun).",
	}, []string{"outcome"})
	journals   = &journalSize{}
	journalUse = &journalUses{}
)

// Loss is what became of a Turn whose journal was lost.
type Loss string

const (
	// LossInterrupted means that the Turn ended.
	LossInterrupted Loss = "interrupted"
	// LossRerun means that it started over.
	LossRerun Loss = "rerun"
)

func init() {
	metrics.Registry.MustRegister(Running, Capacity, ended, duration, modelRequests, modelRetries, tokens, toolCalls, contextWarnings, compactions, parked, purged, clockOffset, journalsLost, journals, journalUse, memory)
}

// Ended counts a Turn that has ended, once its status is written; result is nil for one that was not run.
func Ended(t *v1alpha1.Turn, result *turn.Result) {
	ended.WithLabelValues(t.StateReason()).Inc()
	if result == nil {
		return
	}
	if ms := t.Status.DurationMilliseconds; ms != nil {
		duration.Observe(float64(*ms) / 1000)
	}
	modelRequests.Add(float64(result.Counts.ModelRequests))
	modelRetries.Add(float64(result.Counts.ModelRetries))
	toolCalls.Add(float64(result.Counts.ToolCalls))
	compactions.Add(float64(result.Counts.Compactions))
	if result.Warned {
		contextWarnings.Inc()
	}
	for _, s := range result.Spent {
		estimated := strconv.FormatBool(s.Usage.Estimated)
		tokens.WithLabelValues(s.Provider, s.Model, "input", estimated).Add(float64(s.Usage.InputTokens))
		tokens.WithLabelValues(s.Provider, s.Model, "output", estimated).Add(float64(s.Usage.OutputTokens))
	}
}

// ClockOffset notes how far the clock of the API server is ahead of that of this machine.
func ClockOffset(d time.Duration) { clockOffset.Set(d.Seconds()) }

// Parked counts a Turn that waits for people or for the Turns of sub-agents, once its status is written.
func Parked(t *v1alpha1.Turn) { parked.WithLabelValues(t.StateReason()).Inc() }

// JournalLost counts a Turn whose journal was lost, once its status is written.
func JournalLost(l Loss) { journalsLost.WithLabelValues(string(l)).Inc() }
