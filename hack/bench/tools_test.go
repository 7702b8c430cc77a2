package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestGateHoldsRequestsWithToolResults(t *testing.T) {
	g := newGate(2)
	web := httptest.NewServer(g.inFrontOf(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body) // echoes the request, if it can still be read
	})))
	defer web.Close()
	ask := func(body string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL, strings.NewReader(body))
		if err != nil {
			return err.Error()
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = response.Body.Close() }() // the body was read to its end
		text, err := io.ReadAll(response.Body)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	const first, later = `{"messages": []}`, `{"messages": [{"tool_call_id": "1"}]}`
	if got := ask(first); got != first {
		t.Errorf("before the tool call the model received %q, want %q", got, first)
	}
	answers := make(chan string, 2)
	go func() { answers <- ask(later) }()
	if err := g.awaitFull(t.Context(), 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "of 2 Turns wait") {
		t.Errorf("with one of two requests: error %v, want a timeout", err)
	}
	go func() { answers <- ask(later) }()
	if err := g.awaitFull(t.Context(), time.Minute); err != nil {
		t.Fatalf("with two of two requests: error %v, want none", err)
	}
	select {
	case got := <-answers:
		t.Fatalf("want no answer before the gate is opened, have %q", got)
	default:
	}
	g.open()
	for range 2 {
		if got := <-answers; got != later {
			t.Errorf("the model received %q, want %q", got, later)
		}
	}
}

func TestGateForgetsDisconnectedClients(t *testing.T) {
	g := newGate(2)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if g.wait(gone) {
			t.Error("want false for a client that has disconnected")
		}
	}
	if g.waiting != 0 {
		t.Errorf("%d waiting requests, want none", g.waiting)
	}
	select {
	case <-g.full:
		t.Error("want a gate that is not full, because the second request came after the first had left")
	default:
	}
}

// toolsReport returns a report in which no limit is exceeded.
func toolsReport() *ToolsReport {
	return &ToolsReport{
		HeldReport: HeldReport{InFlight: 1000, IdleMiB: 100, Held: Memory{ResidentMiB: 280, HeapMiB: 90}, PeakMiB: 300, BoundMiB: 300},
		One:        StepsCost{Steps: 1, CountedSteps: 1, WritesPerTurn: 3, WritesPerTurnByKind: map[string]float64{"PUT turns/status": 3}},
		Many: StepsCost{
			Steps: 20, CountedSteps: 20, ToolCalls: 19, WritesPerTurn: 3,
			WritesPerTurnByKind: map[string]float64{"PUT turns/status": 3},
		},
	}
}

func TestToolsReportChecksItsLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*ToolsReport)
		want   string
	}{
		"at the limits": {"the limits themselves are allowed", func(*ToolsReport) {}, ""},
		"fewer writes":  {"a longer Turn may cause fewer writes", func(r *ToolsReport) { r.Many.WritesPerTurn = 2 }, ""},
		"memory": {
			"the memory exceeds its limit", func(r *ToolsReport) { r.PeakMiB = 301 },
			"peak memory: 301 MiB until all of the 1000 Turns in flight had ended, more than 300 MiB",
		},
		"more writes": {
			"more steps must not cause more writes", func(r *ToolsReport) { r.Many.WritesPerTurn = 3.1 },
			"API writes per Turn: 3.10 with 20 steps, 3.00 with 1",
		},
		"too few calls": {
			"each step except the last one must call a tool", func(r *ToolsReport) { r.Many.ToolCalls = 18 },
			"20.0 steps and 18.0 tool calls, want 20 and 19",
		},
		"failed Turns": {
			"all Turns must succeed",
			func(r *ToolsReport) { r.FailedTurns = map[string]int{"Deadline": 1} }, "not all Turns succeeded: in flight map[Deadline:1]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := toolsReport()
			tc.change(r)
			err := r.failure()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q: %s", err, tc.want, tc.reason)
			}
			exceeded := strings.Contains(r.table(Setup{}), "EXCEEDED")
			if want := name == "memory" || name == "more writes"; exceeded != want {
				t.Errorf("EXCEEDED in the table: %t, want %t", exceeded, want)
			}
		})
	}
}

func TestPeakMemoryMayGrowWithTheTurnsInFlight(t *testing.T) {
	for inFlight, want := range map[int]int{1: 300, 1000: 300, 1030: 301, 5500: 450, 10_000: 600, 19_000: 900} {
		if got := peakBoundMiB(inFlight); got != want {
			t.Errorf("peakBoundMiB(%d) = %d, want %d", inFlight, got, want)
		}
	}
}

func TestWritesPerTurnLeaveOutTheCreation(t *testing.T) {
	before := sample{counters: counters{writes: writes{"POST turns": 5, "PUT turns/status": 10}}}
	after := sample{counters: counters{writes: writes{"POST turns": 15, "PUT turns/status": 30}}}
	byKind, all := writesPerTurn(before, after, 10)
	if diff := cmp.Diff(map[string]float64{"PUT turns/status": 2}, byKind); diff != "" || all != 2 {
		t.Errorf("%v in total, want 2; by kind (-want +got):\n%s", all, diff)
	}
}
