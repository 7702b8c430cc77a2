package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"
)

// post sends one completion request with a client request ID and reads the whole response. It returns the error
// that ended the request.
func (f *fakeModel) post(ctx context.Context, t *testing.T, id, body string) error {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer right")
	req.Header.Set("X-Client-Request-Id", id)
	res, err := f.http.Do(req)
	if err != nil {
		return err
	}
	_, err = new(bytes.Buffer).ReadFrom(res.Body)
	return errors.Join(err, res.Body.Close())
}

const (
	wholeRequest    = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	streamedRequest = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

func TestBilling(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// rule holds further fields of the only rule. "x" stands for a rule whose template fails.
		rule, body string
		// gone cancels the client while the request is in flight.
		gone bool
		want []Bill
	}{
		"whole": {"an answer costs", "", wholeRequest, false, []Bill{{"r", "m", 3, 4, true}}},
		"streamed": {
			"a streamed answer costs, even without usage in the stream", "", streamedRequest, false,
			[]Bill{{"r", "m", 3, 4, true}},
		},
		"gone in latency": {
			"generated tokens cost, even if no client reads them", "fault: {latencyMilliseconds: 3600000}",
			wholeRequest, true,
			[]Bill{{"r", "m", 3, 4, false}},
		},
		"gone during the stream": {
			"generated tokens of a stream cost, too", "fault: {chunkDelayMilliseconds: 3600000}", streamedRequest, true,
			[]Bill{{"r", "m", 3, 4, false}},
		},
		"cut": {
			"a broken connection does not reduce the bill", "fault: {cutAfterChunks: 1}", streamedRequest,
			false,
			[]Bill{{"r", "m", 3, 4, false}},
		},
		"cut whole": {
			"a response that is cut costs, too", "fault: {cutAfterChunks: 1}", wholeRequest, false,
			[]Bill{{"r", "m", 3, 4, false}},
		},
		"without an end": {
			"an unfinished answer costs, too", "fault: {endWithoutFinish: true}", streamedRequest,
			false,
			[]Bill{{"r", "m", 3, 4, false}},
		},
		"rate limit": {"a rate limit error costs nothing", "fault: {status: 429}", wholeRequest, false, []Bill{}},
		"late rate limit": {
			"a late error for a disconnected client costs nothing",
			"fault: {status: 429, latencyMilliseconds: 3600000}", wholeRequest, true,
			[]Bill{},
		},
		"failure":     {"a server error costs nothing", "fault: {status: 503}", streamedRequest, false, []Bill{}},
		"bad request": {"an invalid request costs nothing", "", `{"model":"m","messages":[]}`, false, []Bill{}},
		"hang":        {"a hang has no reply, so it costs nothing", "fault: {hang: AfterHeaders}", streamedRequest, true, []Bill{}},
		"rubbish":     {"rubbish costs nothing", "fault: {rubbish: HTML}", wholeRequest, false, []Bill{}},
		"template failure": {
			"a template that fails costs nothing", "x",
			`{"model":"m","messages":[{"role":"system","content":"none"}]}`, false,
			[]Bill{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := "{reply: {usage: {promptTokens: 3, completionTokens: 4}}, " + tc.rule + "}"
			if tc.rule == "x" {
				rules = `{reply: {text: "{{ slice .User 1 }}"}}`
			}
			fake := serveRules(t, "rules: ["+rules+"]")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- fake.post(ctx, t, "r", tc.body) }()
			if tc.gone {
				fake.await(t, func(s Stats) bool { return s.InFlight == 1 })
				cancel()
			}
			if err, breaks := <-done, tc.gone || strings.Contains(tc.rule, "cut"); (err != nil) != breaks {
				t.Errorf("want an error: %t, have: %v", breaks, err)
			}
			fake.await(t, func(s Stats) bool { return s.Requests == 1 && s.InFlight == 0 })
			if diff := cmp.Diff(tc.want, fake.Billing()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			kept, stats, n := fake.Requests()[0], fake.Stats(), int64(len(tc.want))
			if kept.ClientRequestID != "r" || kept.Billed != (n == 1) || kept.InputTokens != 3*n || kept.OutputTokens != 4*n {
				t.Errorf("the kept request is %+v, want the values of the bill", kept)
			}
			if stats.Billed != n || stats.BilledInputTokens != 3*n || stats.BilledOutputTokens != 4*n {
				t.Errorf("the totals are %+v, want the values of the bills", stats)
			}
			if n == 1 && kept.Delivered != tc.want[0].Delivered {
				t.Errorf("the kept request must have delivered %t, as the bill has", tc.want[0].Delivered)
			}
		})
	}
}

func TestUnauthorizedIsNotBilled(t *testing.T) {
	fake := serveRules(t, "apiKeys: [other]")
	if err := fake.post(t.Context(), t, "r", wholeRequest); err != nil {
		t.Fatal(err)
	}
	if bills := fake.Billing(); len(bills) != 0 {
		t.Errorf("want no bill for a wrong key, have %+v", bills)
	}
}

// brokenWriter is a connection that breaks when a certain text is written.
type brokenWriter struct {
	*httptest.ResponseRecorder
	breakAt string
	broken  bool
}

func (w *brokenWriter) Write(p []byte) (int, error) {
	w.broken = w.broken || bytes.Contains(p, []byte(w.breakAt))
	return w.ResponseRecorder.Write(p)
}

func (w *brokenWriter) FlushError() error {
	if w.broken {
		return errors.New("broken pipe")
	}
	return nil
}

func TestAnswerWhoseEndIsLostIsNotDelivered(t *testing.T) {
	for name, tc := range map[string]struct{ body, breakAt string }{
		"whole": {wholeRequest, "choices"}, "stream": {streamedRequest, `"finish_reason":"stop"`},
		"its last line": {streamedRequest, "[DONE]"},
	} {
		t.Run(name, func(t *testing.T) {
			fake, err := New(Config{})
			if err != nil {
				t.Fatal(err)
			}
			for i, breakAt := range []string{tc.breakAt, "nowhere"} {
				w := &brokenWriter{ResponseRecorder: httptest.NewRecorder(), breakAt: breakAt}
				fake.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions",
					strings.NewReader(tc.body)))
				if got := fake.Billing()[i].Delivered; got == (i == 0) {
					t.Errorf("connection that breaks at %q: delivered is %t, want %t", breakAt, got, i == 1)
				}
			}
		})
	}
}

// TestBillingIsExactUnderConcurrency runs three kinds of clients at the same time: clients that read everything,
// clients that disconnect in the middle, and clients that get an error.
func TestBillingIsExactUnderConcurrency(t *testing.T) {
	const each = 60
	clock := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	fake := serveRules(t, `
rules:
- {when: {contains: refuse}, fault: {status: 429, latencyMilliseconds: 1000}}
- {when: {contains: leave}, reply: {usage: {promptTokens: 5, completionTokens: 7}}, fault: {latencyMilliseconds: 3600000}}
- {reply: {usage: {promptTokens: 11, completionTokens: 13}}, fault: {latencyMilliseconds: 1000}}
`, WithClock(clock), WithKeptRequests(0))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var wg, left sync.WaitGroup
	for i := range each {
		for _, kind := range []string{"refuse", "leave", "read"} {
			id := fmt.Sprintf("%s-%d", kind, i)
			body := fmt.Sprintf(`{"model":"m","stream":%t,"messages":[{"role":"user","content":%q}]}`, i%2 == 0, kind)
			if kind == "leave" {
				left.Go(func() {
					if err := fake.post(ctx, t, id, body); !errors.Is(err, context.Canceled) {
						t.Errorf("%s: have error %v", id, err)
					}
				})
				continue
			}
			wg.Go(func() {
				if err := fake.post(t.Context(), t, id, body); err != nil {
					t.Errorf("%s: have error %v", id, err)
				}
			})
		}
	}
	stepWhenWaiting(t, clock, 3*each, time.Second)
	wg.Wait()
	leave()
	left.Wait()
	fake.await(t, func(s Stats) bool { return s.InFlight == 0 })

	got := map[Bill]int{}
	for _, bill := range fake.Billing() {
		got[bill]++
	}
	want := map[Bill]int{}
	for i := range each {
		want[Bill{fmt.Sprint("leave-", i), "m", 5, 7, false}] = 1
		want[Bill{fmt.Sprint("read-", i), "m", 11, 13, true}] = 1
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("one bill for each reply (-want +got):\n%s", diff)
	}
	stats := fake.Stats()
	if stats.Requests != 3*each || stats.Billed != 2*each || stats.BilledInputTokens != 16*each || stats.BilledOutputTokens != 20*each {
		t.Errorf("want %d requests, %d billed with %d and %d tokens; have %+v", 3*each, 2*each, 16*each, 20*each, stats)
	}
}

func TestBillsOutliveRequestsAndAreBounded(t *testing.T) {
	fake := serveRules(t, "", WithKeptRequests(1))
	name := strings.Repeat("n", 10_000)
	bill := func(n int) {
		for range n {
			fake.recorder.begin(&Request{Model: name, ClientRequestID: name, Body: json.RawMessage(`{}`)}).bill(
				wireUsage{PromptTokens: 1, CompletionTokens: 2})
		}
	}
	bill(20_000)
	var bills []Bill
	decode(t, fake.do(t, http.MethodGet, "/_fake/billing", ""), &bills)
	want := Bill{ClientRequestID: name[:maxBilledName], Model: name[:maxBilledName], InputTokens: 1, OutputTokens: 2}
	if len(bills) != 20_000 || bills[0] != want || bills[19_999] != want {
		t.Fatalf("want 20,000 bills with short names, have %d", len(bills))
	}
	bill(maxBills)
	if n, stats := len(fake.Billing()), fake.Stats(); n != maxBills || stats.Billed != 20_000+maxBills ||
		stats.BilledOutputTokens != 2*stats.Billed {
		t.Errorf("want the last %d bills and the totals of all, have %d and %+v", maxBills, n, stats)
	}
}

func TestResetForgetsBills(t *testing.T) {
	fake := serveRules(t, "")
	before, during := fake.recorder.begin(&Request{}), fake.recorder.begin(&Request{})
	before.bill(wireUsage{PromptTokens: 1})
	fake.Reset()
	during.bill(wireUsage{PromptTokens: 1})
	before.finish(OutcomeAnswered, wireUsage{})
	if res := fake.do(t, http.MethodGet, "/_fake/billing", ""); res.body != "[]" || fake.Stats().Billed != 0 {
		t.Errorf("requests in flight at a reset must not be counted after it, have %s", res.body)
	}
}
