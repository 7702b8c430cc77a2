package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/capstan-dev/capstan/internal/genai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// The metrics of requests to models. Metrics that begin with gen_ai have the names, labels, units and values of
// OpenTelemetry's conventions for generative AI, in Prometheus's form. Their buckets are those of the conventions, as
// far as requests reach them. All metrics here also have Capstan's own labels: namespace, agent and provider (the
// ModelProvider; gen_ai_provider_name is the kind of service).
var (
	requestLabels = []string{"namespace", "agent", "provider", "gen_ai_request_model"}
	tokenUsage    = requestHistogram("gen_ai_client_token_usage", "Tokens of one request to a model, by type (input, output).",
		[]float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576}, "gen_ai_token_type")
	requestDuration = requestHistogram("gen_ai_client_operation_duration_seconds",
		"Time of one request to a model. error_type is empty if the request has succeeded, and _OTHER if it has failed.",
		secondsOfRequest, "error_type")
	firstChunk = requestHistogram("gen_ai_client_operation_time_to_first_chunk_seconds",
		"Time from the start of a request to a model to the first part of its reply.", secondsOfRequest)
	requestErrors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capstan_model_errors_total", Help: "Requests to models that have failed, by the class of the failure.",
	}, append(requestLabels[:4:4], "error_type"))
	requestCost = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "capstan_model_cost_total", Help: "Cost of requests to models that have prices, by currency.",
	}, append(requestLabels[:4:4], "currency"))

	secondsOfRequest = []float64{.08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	// requestVectors are all metrics with requestLabels.
	requestVectors = []vector{
		tokenUsage.MetricVec, requestDuration.MetricVec, firstChunk.MetricVec, requestErrors.MetricVec, requestCost.MetricVec,
	}
)

// errorOther is the value of error_type for errors for which the conventions define no value.
const errorOther = "_OTHER"

func requestHistogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
	}, append(append(requestLabels[:4:4], "gen_ai_provider_name", "gen_ai_operation_name"), labels...))
}

// Requested counts a request of a Turn to a model, and ignores all other parts of Turns. No request is counted twice,
// even if processes are killed: only the run that records the end of a request counts it. If the run that sent the
// request was killed before that, the run that records the next request or the end of the Turn counts it, with the
// estimated tokens of its prompt. A request of a judge or of learning is not counted if its process was killed.
func Requested(namespace, agent string, s *turn.Span) {
	if s.Kind != turn.SpanRequest || s.Again {
		return
	}
	usage, cost := model.Usage{InputTokens: s.Request.EstimatedTokens}, s.Request.EstimatedCost
	switch {
	case s.Reply != nil:
		usage, cost = s.Reply.Reply.Usage, s.Reply.Cost
	case s.Failed != nil:
		usage, cost = s.Failed.Usage, s.Failed.Cost
	}
	known.withNamespace(namespace, func(label string, n *namespaceSeries) {
		g := known.admitGroup(label, n, group{agent, s.Request.Provider, s.Request.Model})
		service, operation := genai.ProviderName(s.Candidate), genai.OperationName(s.Request, s.Candidate)
		labels := func(more ...string) []string { return append([]string{label, g.agent, g.provider, g.model}, more...) }
		if s.Failure != "" {
			requestErrors.WithLabelValues(labels(s.Failure)...).Inc()
		}
		for kind, tokens := range map[string]int64{"input": usage.InputTokens, "output": usage.OutputTokens} {
			if tokens > 0 {
				tokenUsage.WithLabelValues(labels(service, operation, kind)...).Observe(float64(tokens))
			}
		}
		if cost != nil && cost.Amount.IsPositive() {
			requestCost.WithLabelValues(labels(n.currency(cost.Currency))...).Add(cost.Amount.InexactFloat64())
		}
		if failed := s.Failed; failed != nil && !failed.Unsent && failed.Kind != model.Cancelled {
			requestDuration.WithLabelValues(labels(service, operation, errorOther)...).Observe(seconds(failed.DurationMS))
		}
		if s.Reply != nil {
			requestDuration.WithLabelValues(labels(service, operation, "")...).Observe(seconds(s.Reply.DurationMS))
			if first := s.Reply.FirstEventMS; first > 0 {
				firstChunk.WithLabelValues(labels(service, operation)...).Observe(seconds(first))
			}
		}
	})
}

func seconds(milliseconds int64) float64 {
	return (time.Duration(milliseconds) * time.Millisecond).Seconds()
}
