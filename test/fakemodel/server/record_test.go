package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sashabaranov/go-openai"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestRequestsKeepTheLastWithoutKeys(t *testing.T) {
	fake := serveRules(t, "apiKeys: [right]", WithKeptRequests(2))
	for i, key := range []string{"right", "right", "wrong-secret"} {
		_, err := fake.withKey(key).CreateChatCompletion(t.Context(), ask(fmt.Sprint("message ", i)))
		if (err != nil) != (key != "right") {
			t.Fatalf("key %q: have error %v", key, err)
		}
	}
	got := fake.Requests()
	want := []Request{
		{
			Number: 2, Authorized: true, Model: "m", Rule: -1, Outcome: OutcomeAnswered, Billed: true, InputTokens: 3,
			OutputTokens: 8, Delivered: true,
		},
		{Number: 3, Authorized: false, Model: "m", Rule: -1, Outcome: OutcomeUnauthorized},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Request{}, "Received", "Header", "Body")); diff != "" {
		t.Errorf("the last 2 must be kept (-want +got):\n%s", diff)
	}
	if body := string(got[0].Body); !strings.Contains(body, "message 1") {
		t.Errorf("want the body as sent, have %s", body)
	}
	if got[0].Header.Get("Content-Type") != "application/json" {
		t.Errorf("want the headers as sent, have %v", got[0].Header)
	}
	all, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(all), "wrong-secret") || strings.Contains(string(all), "Bearer") {
		t.Errorf("no key may be kept, have %s", all)
	}
}

func TestBodiesAreBoundedTogether(t *testing.T) {
	r := newRecorder(10)
	body := json.RawMessage(strings.Repeat(" ", maxKeptBytes/3))
	for range 5 {
		r.begin(&Request{Body: body})
	}
	if got := len(r.kept()); got != 3 {
		t.Errorf("want the 3 requests that fit, have %d", got)
	}
}

func TestModelNamesAreBounded(t *testing.T) {
	r := newRecorder(0)
	for i := range maxModels + 7 {
		r.begin(&Request{Model: fmt.Sprint("model-", i)})
	}
	stats, _ := r.snapshot()
	if len(stats.ByModel) != maxModels+1 || stats.ByModel[otherModels] != 7 {
		t.Errorf("want %d names and 7 others, have %d and %d", maxModels, len(stats.ByModel), stats.ByModel[otherModels])
	}
}

func TestResetKeepsRequestsInFlight(t *testing.T) {
	r := newRecorder(10)
	before := r.begin(&Request{Model: "m"})
	r.clear()
	stats, _ := r.snapshot()
	want := Stats{InFlight: 1, PeakInFlight: 1, ByModel: map[string]int64{}, ByOutcome: map[Outcome]int64{}}
	if diff := cmp.Diff(want, stats); diff != "" {
		t.Errorf("after the reset (-want +got):\n%s", diff)
	}
	before.finish(OutcomeAnswered, wireUsage{PromptTokens: 5})
	before.finish(OutcomeFailed, wireUsage{})
	stats, _ = r.snapshot()
	want.InFlight = 0
	if diff := cmp.Diff(want, stats); diff != "" {
		t.Errorf("a request that began before the reset must not be counted after it (-want +got):\n%s", diff)
	}
}

func TestWaitFailsWithTheCountsWhenTimeIsUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := newRecorder(1).wait(ctx, func(Stats) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "Requests:0") {
		t.Errorf("want an error with the counts, have: %v", err)
	}
}

func TestFiveHundredConcurrentClients(t *testing.T) {
	const clients = 500
	clock := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	fake := serveRules(t, "rules: [{fault: {latencyMilliseconds: 2000}}]", WithClock(clock))
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			want := fmt.Sprintf("This is m. You said: %d", i)
			stream, err := fake.client.CreateChatCompletionStream(t.Context(), ask(fmt.Sprint(i)))
			if err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			got, err := receive(stream)
			if err != nil || got.Text != want || got.Finish != openai.FinishReasonStop {
				t.Errorf("client %d: want %q, have %+v and error %v", i, want, got, err)
			}
			if err := stream.Close(); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	stepWhenWaiting(t, clock, clients, 2*time.Second)
	wg.Wait()
	stats := fake.Stats()
	if stats.PeakInFlight != clients || stats.InFlight != 0 || stats.ByOutcome[OutcomeAnswered] != clients {
		t.Errorf("want %d concurrent requests, all answered, have %+v", clients, stats)
	}
}

func TestControlOverHTTP(t *testing.T) {
	fake := serveRules(t, "apiKeys: [right]\nmodels: [m]")
	if _, err := fake.client.CreateChatCompletion(t.Context(), ask("hi")); err != nil {
		t.Fatal(err)
	}
	var stats Stats
	decode(t, fake.do(t, http.MethodGet, "/_fake/stats", ""), &stats)
	if diff := cmp.Diff(fake.Stats(), stats); diff != "" {
		t.Errorf("stats over HTTP must equal those of Stats (-want +got):\n%s", diff)
	}
	var requests []Request
	decode(t, fake.do(t, http.MethodGet, "/_fake/requests", ""), &requests)
	if diff := cmp.Diff(fake.Requests(), requests, cmpopts.EquateApproxTime(0)); diff != "" {
		t.Errorf("requests over HTTP must equal those of Requests (-want +got):\n%s", diff)
	}

	if res := fake.do(t, http.MethodPut, "/_fake/rules", "rules: [{reply: {texts: a}}]"); res.status != http.StatusBadRequest {
		t.Errorf("invalid rules: status %d, want 400", res.status)
	}
	if res := fake.do(t, http.MethodPut, "/_fake/rules", "rules: [{reply: {text: new rules}}]"); res.status != http.StatusNoContent {
		t.Errorf("valid rules: status %d, want 204", res.status)
	}
	got, err := fake.withKey("any").CreateChatCompletion(t.Context(), ask("hi"))
	if err != nil || got.Choices[0].Message.Content != "new rules" {
		t.Errorf("the new rules must also replace the old keys, have %+v and error %v", got.Choices, err)
	}

	if res := fake.do(t, http.MethodPost, "/_fake/reset", ""); res.status != http.StatusNoContent {
		t.Errorf("reset: status %d, want 204", res.status)
	}
	if stats := fake.Stats(); stats.Requests != 0 || len(fake.Requests()) != 0 {
		t.Errorf("want nothing after a reset, have %+v", stats)
	}
}

func TestModels(t *testing.T) {
	fake := serveRules(t, "apiKeys: [right]\nmodels: [m, vendor/large]")
	list, err := fake.client.ListModels(t.Context())
	if err != nil || len(list.Models) != 2 || list.Models[1].ID != "vendor/large" {
		t.Errorf("want the two models, have %+v and error %v", list.Models, err)
	}
	if model, err := fake.client.GetModel(t.Context(), "vendor/large"); err != nil || model.ID != "vendor/large" {
		t.Errorf("want the model, have %+v and error %v", model, err)
	}
	_, err = fake.client.GetModel(t.Context(), "none")
	if got := apiError(t, err); got.HTTPStatusCode != http.StatusNotFound || got.Code != "model_not_found" {
		t.Errorf("want 404 model_not_found, have %+v", got)
	}
	for name, call := range map[string]func(*openai.Client) error{
		"list": func(c *openai.Client) error { _, err := c.ListModels(t.Context()); return err },
		"get":  func(c *openai.Client) error { _, err := c.GetModel(t.Context(), "m"); return err },
	} {
		if got := apiError(t, call(fake.withKey("wrong"))); got.HTTPStatusCode != http.StatusUnauthorized {
			t.Errorf("%s with a wrong key: want 401, have %+v", name, got)
		}
	}
	if stats := fake.Stats(); stats.ModelLists != 5 || stats.Requests != 0 {
		t.Errorf("want 5 requests for models and no completion counted, have %+v", stats)
	}
	if res := fake.do(t, http.MethodGet, "/v1/nothing", ""); res.status != http.StatusNotFound {
		t.Errorf("want 404 for an unknown URL, have %d", res.status)
	}
}

// decode reads a JSON response.
func decode(t *testing.T, res response, into any) {
	t.Helper()
	if res.status != http.StatusOK {
		t.Fatalf("want 200, have %d", res.status)
	}
	if err := json.Unmarshal([]byte(res.body), into); err != nil {
		t.Fatal(err)
	}
}
