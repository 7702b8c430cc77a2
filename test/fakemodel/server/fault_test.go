package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sashabaranov/go-openai"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestDisconnectedClientIsCountedAsCancelled(t *testing.T) {
	for name, tc := range map[string]struct {
		fault string
		// begins reports whether the client receives the beginning of a response.
		begins bool
	}{
		"BeforeHeaders":  {"hang: BeforeHeaders", false},
		"AfterHeaders":   {"hang: AfterHeaders", true},
		"DuringLatency":  {"latencyMilliseconds: 3600000", false},
		"BetweenContent": {"chunkDelayMilliseconds: 3600000", true},
	} {
		t.Run(name, func(t *testing.T) {
			fake := serveRules(t, "rules: [{fault: {"+tc.fault+"}}]")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began, done := make(chan struct{}), make(chan error, 1)
			go func() {
				stream, err := fake.client.CreateChatCompletionStream(ctx, ask("hi"))
				close(began)
				if err == nil {
					_, err = receive(stream)
					err = errors.Join(err, stream.Close())
				}
				done <- err
			}()
			fake.await(t, func(s Stats) bool { return s.InFlight == 1 })
			if tc.begins {
				<-began
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("the client's error is %v, want its own cancellation", err)
			}
			fake.await(t, func(s Stats) bool {
				return s.InFlight == 0 && s.Cancelled == 1 && s.ByOutcome[OutcomeCancelled] == 1
			})
			// ctx has ended, so the handler returns at once, with all that it has sent before the fault.
			w := httptest.NewRecorder()
			fake.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions",
				strings.NewReader(streamedRequest)))
			if w.Flushed && !tc.begins {
				t.Error("the beginning of a response was sent before the fault, want nothing")
			}
		})
	}
}

func TestCloseReleasesHangs(t *testing.T) {
	for _, fault := range []string{"hang: BeforeHeaders", "hang: AfterHeaders", "latencyMilliseconds: 3600000"} {
		t.Run(fault, func(t *testing.T) {
			fake := serveRules(t, "rules: [{fault: {"+fault+"}}]")
			done := make(chan error, 1)
			go func() {
				_, err := fake.client.CreateChatCompletion(t.Context(), ask("hi"))
				done <- err
			}()
			fake.await(t, func(s Stats) bool { return s.InFlight == 1 })
			fake.Close()
			if err := <-done; err == nil {
				t.Error("a released hang must end in an error, not in an answer")
			}
			fake.await(t, func(s Stats) bool { return s.ByOutcome[OutcomeReleased] == 1 })
		})
	}
}

func TestCutStream(t *testing.T) {
	for name, tc := range map[string]struct {
		fault string
		want  received
	}{
		"AtOnce":       {"cutAfterChunks: 0", received{}},
		"InTheMiddle":  {"cutAfterChunks: 2", received{Text: "abcd", Chunks: 2}},
		"BeforeTheEnd": {"cutAfterChunks: 99", received{Text: "abcdef", Chunks: 3}},
		"WithDelays":   {"cutAfterChunks: 1, chunkDelayMilliseconds: 1", received{Text: "ab", Chunks: 1}},
		"AfterLatency": {"cutAfterChunks: 1, latencyMilliseconds: 1", received{Text: "ab", Chunks: 1}},
		"AfterTheLast": {"cutAfterChunks: 3", received{Text: "abcdef", Chunks: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			fake := serveRules(t, "rules: [{reply: {text: abcdef, chunkChars: 2}, fault: {"+tc.fault+"}}]")
			got, err := receive(openStream(t.Context(), t, fake.client, askForUsage("hi")))
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("want a connection that breaks off, have: %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("all before the cut must arrive (-want +got):\n%s", diff)
			}
			if got := fake.Stats().ByOutcome[OutcomeCut]; got != 1 {
				t.Errorf("want 1 request counted as cut, have %d", got)
			}
		})
	}
}

func TestBrokenResponsesReachTheClient(t *testing.T) {
	for name, tc := range map[string]struct {
		fault    string
		streamed func(received, error) bool
		whole    func(openai.ChatCompletionResponse, error) bool
		outcome  Outcome
	}{
		"Cut": {
			fault:    "cutAfterChunks: 1",
			streamed: func(got received, err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) && got.Finish == "" },
			whole:    func(_ openai.ChatCompletionResponse, err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) },
			outcome:  OutcomeCut,
		},
		"EndWithoutFinish": {
			fault: "endWithoutFinish: true",
			streamed: func(got received, err error) bool {
				return err == nil && got.Text == "abc" && got.Finish == "" && got.Usage == nil
			},
			whole: func(got openai.ChatCompletionResponse, err error) bool {
				return err == nil && got.Choices[0].Message.Content == "abc" && got.Choices[0].FinishReason == ""
			},
			outcome: OutcomeUnfinished,
		},
		"NotJSON": {
			fault:    "rubbish: NotJSON",
			streamed: func(_ received, err error) bool { return err != nil },
			whole:    func(_ openai.ChatCompletionResponse, err error) bool { return err != nil },
			outcome:  OutcomeRubbish,
		},
		"NotSSE": {
			fault:    "rubbish: NotSSE",
			streamed: func(got received, _ error) bool { return cmp.Equal(got, received{}) },
			whole:    func(_ openai.ChatCompletionResponse, err error) bool { return err != nil },
			outcome:  OutcomeRubbish,
		},
		"HTML": {
			fault:    "rubbish: HTML",
			streamed: func(got received, _ error) bool { return cmp.Equal(got, received{}) },
			whole:    func(_ openai.ChatCompletionResponse, err error) bool { return err != nil },
			outcome:  OutcomeRubbish,
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake := serveRules(t, "rules: [{reply: {text: abc}, fault: {"+tc.fault+"}}]")
			got, err := receive(openStream(t.Context(), t, fake.client, askForUsage("hi")))
			if !tc.streamed(got, err) {
				t.Errorf("streamed: the client has %+v and error %v, want a result that shows the fault", got, err)
			}
			whole, err := fake.client.CreateChatCompletion(t.Context(), ask("hi"))
			if !tc.whole(whole, err) {
				t.Errorf("whole: the client has %+v and error %v, want a result that shows the fault", whole, err)
			}
			if got := fake.Stats().ByOutcome; got[tc.outcome] != 2 || len(got) != 1 {
				t.Errorf("want 2 requests counted as %q, have %v", tc.outcome, got)
			}
		})
	}
}

func TestLatencyAndChunkDelayHoldTheResponseBack(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	fake := serveRules(t, `
rules: [{reply: {text: abcd, chunkChars: 2}, fault: {latencyMilliseconds: 300, chunkDelayMilliseconds: 20}}]
`, WithClock(clock))
	done := make(chan received, 1)
	go func() {
		stream, err := fake.client.CreateChatCompletionStream(t.Context(), ask("hi"))
		if err != nil {
			t.Errorf("the stream must begin: %v", err)
			close(done)
			return
		}
		got, err := receive(stream)
		if err := errors.Join(err, stream.Close()); err != nil {
			t.Errorf("the stream must end without an error: %v", err)
		}
		done <- got
	}()
	for _, delay := range []int{300, 20, 20} { // before the first byte, then before each of two chunks
		stepWhenWaiting(t, clock, 1, time.Duration(delay)*time.Millisecond)
	}
	want := received{Text: "abcd", Chunks: 2, Finish: openai.FinishReasonStop}
	if diff := cmp.Diff(want, <-done); diff != "" {
		t.Errorf("streamed (-want +got):\n%s", diff)
	}
	if got := clock.Since(time.Unix(1_700_000_000, 0)); got != 340*time.Millisecond {
		t.Errorf("want 340ms in all, have %s", got)
	}
}
