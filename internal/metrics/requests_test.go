package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// reply returns a request of 100 input and 20 output tokens that took a second and cost 0.25.
func reply(provider, name string) *turn.Span {
	return &turn.Span{
		Kind: turn.SpanRequest, Request: &loop.Request{Provider: provider, Model: name, EstimatedTokens: 7},
		Candidate: &loop.Candidate{Protocol: "Anthropic"},
		Reply: &loop.Step{
			Reply: model.Reply{Usage: model.Usage{InputTokens: 100, OutputTokens: 20}}, DurationMS: 1000, FirstEventMS: 250,
			Cost: &model.Cost{Amount: decimal.RequireFromString("0.25"), Currency: "EUR"},
		},
	}
}

// failure returns a request that failed after two seconds, with 3 billed input tokens, or with none if it was unsent.
func failure(kind model.ErrorKind, unsent bool) *turn.Span {
	f := &loop.FailedRequest{Kind: kind, DurationMS: 2000, Usage: model.Usage{InputTokens: 3}, Unsent: unsent}
	if unsent {
		f.Usage = model.Usage{}
	}
	return &turn.Span{
		Kind: turn.SpanRequest, Failure: string(kind), Failed: f,
		Request: &loop.Request{Provider: "openai", Model: "gpt", EstimatedTokens: 7},
	}
}

// observations returns the number and the sum of the values of a histogram.
func observations(t *testing.T, h *prometheus.HistogramVec, labels ...string) [2]float64 {
	t.Helper()
	m, ok := h.WithLabelValues(labels...).(prometheus.Metric)
	if !ok {
		t.Fatal("the histogram does not implement prometheus.Metric")
	}
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return [2]float64{float64(out.GetHistogram().GetSampleCount()), out.GetHistogram().GetSampleSum()}
}

func TestRequests(t *testing.T) {
	resetMetrics(t)
	interrupted := &turn.Span{
		Kind: turn.SpanRequest, Failure: turn.FailureInterrupted,
		Request: &loop.Request{
			Provider: "openai", Model: "gpt", EstimatedTokens: 40,
			EstimatedCost: &model.Cost{Amount: decimal.RequireFromString("0.5"), Currency: "EUR"},
		},
	}
	again := *interrupted
	again.Again = true
	vectors, learned := reply("openai", "embed"), reply("openai", "embed")
	vectors.Request.Purpose, vectors.Reply.FirstEventMS = loop.ForEmbedding, 0
	learned.Candidate, learned.Reply.FirstEventMS, learned.Reply.Cost = &loop.Candidate{Embeds: true}, 0, nil
	vectors.Reply.Cost = nil
	for _, s := range []*turn.Span{
		vectors, learned, reply("openai", "gpt"),
		failure(model.Timeout, false), failure(model.Unusable, true), failure(model.Cancelled, false), interrupted, &again,
		{Kind: turn.SpanStep, Step: 1},
		{Kind: turn.SpanCall, Failure: "Timeout"},
	} {
		Requested("helpdesk", "support", s)
	}
	labels := func(more ...string) []string {
		return append([]string{"helpdesk", "support", "openai", "gpt"}, more...)
	}
	for name, tc := range map[string]struct {
		vec    *prometheus.HistogramVec
		labels []string
		want   [2]float64
	}{
		"input tokens": {tokenUsage, labels("anthropic", "chat", "input"), [2]float64{1, 100}},
		"input tokens of failures, with the estimate": {tokenUsage, labels("", "chat", "input"), [2]float64{3, 46}},
		"output tokens": {tokenUsage, labels("anthropic", "chat", "output"), [2]float64{1, 20}},
		"successes":     {requestDuration, labels("anthropic", "chat", ""), [2]float64{1, 1}},
		"failures, without requests that were not sent or were cancelled": {
			requestDuration, labels("", "chat", "_OTHER"), [2]float64{1, 2},
		},
		"vectors": {tokenUsage, []string{"helpdesk", "support", "openai", "embed", "anthropic", "embeddings", "input"}, [2]float64{1, 100}},
		"vectors of learning, which have no purpose of their own": {
			requestDuration, []string{"helpdesk", "support", "openai", "embed", "", "embeddings", ""}, [2]float64{1, 1},
		},
		"first parts": {firstChunk, labels("anthropic", "chat"), [2]float64{1, .25}},
	} {
		if got := observations(t, tc.vec, tc.labels...); got != tc.want {
			t.Errorf("%s: number and sum are %v, want %v", name, got, tc.want)
		}
	}
	for kind, want := range map[string]float64{"Timeout": 1, "Unusable": 1, "Cancelled": 1, "Interrupted": 1} {
		if got := valueOf(t, requestErrors.WithLabelValues(labels(kind)...)); got != want {
			t.Errorf("%g requests failed with %s, want %g", got, kind, want)
		}
	}
	if got := valueOf(t, requestCost.WithLabelValues(labels("EUR")...)); got != .75 {
		t.Errorf("the cost is %g, want 0.75 with the estimate of the interrupted request", got)
	}
}

// TestGroupsAreBounded checks that one namespace with many names, or many namespaces, do not create unlimited series of
// requests.
func TestGroupsAreBounded(t *testing.T) {
	resetMetrics(t)
	Requested("victim", "support", reply("openai", "gpt"))
	for i := range 1000 {
		Requested("hostile", fmt.Sprintf("agent-%d", i), reply("p", fmt.Sprintf("model-%d", i)))
	}
	got, want := observations(t, tokenUsage, "hostile", Other, Other, Other, "anthropic", "chat", "input"), float64(1000-mostGroups)
	if got[0] != want {
		t.Errorf("%g requests count as other, want %g, so that all requests count", got[0], want)
	}
	for ns := range mostNamespaces {
		for i := range mostGroups {
			Requested(fmt.Sprintf("ns-%d", ns), "a", reply("p", fmt.Sprint(i)))
		}
	}
	if most, got := mostNamespaces*ownGroups+sharedGroups+mostNamespaces+1, seriesOf(firstChunk); got > most {
		t.Errorf("%d groups have series, want at most %d", got, most)
	}
	for i := range ownGroups - 1 {
		name := fmt.Sprintf("gpt-%d", i)
		Requested("victim", "support", reply("openai", name))
		if got := observations(t, firstChunk, "victim", "support", "openai", name, "anthropic", "chat"); got[0] != 1 {
			t.Errorf("the victim's model %s has no series: other namespaces have used up its room", name)
		}
	}
}

// TestGroupsOfDeletedAgentsAreDropped checks that the series of a deleted Agent are removed, and no other series.
func TestGroupsOfDeletedAgentsAreDropped(t *testing.T) {
	resetMetrics(t)
	live := Live{"helpdesk": {map[string]bool{"support": true, "old": true}, map[string]bool{"openai": true}}}
	Requested("helpdesk", "support", reply("openai", "gpt"))
	Requested("helpdesk", "old", failure(model.Timeout, false))
	delete(live["helpdesk"].Agents, "old")
	for range keepGone - 1 {
		Sweep(live)
	}
	if got := seriesOf(requestErrors); got != 1 {
		t.Errorf("%d series of errors, want that of the deleted Agent, which may not have been scraped", got)
	}
	Sweep(live)
	for _, v := range []prometheus.Collector{requestErrors, tokenUsage, requestDuration, firstChunk, requestCost} {
		text, err := scrape(v)
		if want := v != requestErrors; err != nil || (text != "") != want {
			t.Errorf("error %v; a scrape has %q, want only series of support", err, text)
		}
	}
	if got := len(known.namespaces["helpdesk"].groups); got != 1 {
		t.Errorf("there are %d groups, want 1", got)
	}
}

// TestSeriesOfSharedObjectsStay checks that the series of a ModelProvider and an Agent of another namespace are kept
// while these objects exist.
func TestSeriesOfSharedObjectsStay(t *testing.T) {
	resetMetrics(t)
	live := Live{
		"helpdesk": {Agents: map[string]bool{"support": true}},
		"platform": {Agents: map[string]bool{"researcher": true}, Providers: map[string]bool{"openai": true}},
	}
	Requested("helpdesk", "platform/researcher", reply("platform/openai", "gpt"))
	Requested("helpdesk", "platform/gone", reply("platform/openai", "gpt"))
	Requested("helpdesk", "support", reply("platform/openai", "gpt"))
	Requested("helpdesk", "support", reply("platform/gone", "gpt"))
	for range keepGone {
		Sweep(live)
	}
	shared := observations(t, firstChunk, "helpdesk", "support", "platform/openai", "gpt", "anthropic", "chat")
	subAgent := observations(t, firstChunk, "helpdesk", "platform/researcher", "platform/openai", "gpt", "anthropic", "chat")
	if got := seriesOf(firstChunk); got != 2 || shared[0] != 1 || subAgent[0] != 1 {
		t.Errorf("%d series, want the 2 of the ModelProvider and the Agent that exist", got)
	}
}

func TestWaitsAreBounded(t *testing.T) {
	resetMetrics(t)
	for i := range mostNamespaces + 10 {
		Waited(fmt.Sprintf("ns-%d", i), "Queued", 2*time.Second)
	}
	Waited("ns-1", "WaitingForBudget", -time.Second) // a clock was set back
	if got := observations(t, waitByReason, Other, "Queued"); got != [2]float64{10, 20} {
		t.Errorf("the waits of other namespaces are %v, want 10 with 20 seconds in all", got)
	}
	if got := observations(t, waitByReason, "ns-1", "WaitingForBudget"); got != [2]float64{1, 0} {
		t.Errorf("the wait over a clock that was set back is %v, want one of 0 seconds", got)
	}
}
