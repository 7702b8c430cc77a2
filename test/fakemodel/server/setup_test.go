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

	"github.com/sashabaranov/go-openai"
	"go.uber.org/goleak"
	"k8s.io/utils/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout bounds the wait for a condition.
const testTimeout = time.Minute

// fakeModel is a running Server with a real client for it.
type fakeModel struct {
	*Server
	url    string
	http   *http.Client
	client *openai.Client
}

// serveRules serves a rules file. The client sends "Bearer right".
func serveRules(t *testing.T, rules string, opts ...Option) *fakeModel {
	t.Helper()
	cfg, err := ParseConfig([]byte(rules))
	if err != nil {
		t.Fatalf("the test's rules must load: %v", err)
	}
	fake, err := New(cfg, opts...)
	if err != nil {
		t.Fatalf("the test's rules must compile: %v", err)
	}
	web := httptest.NewServer(fake)
	t.Cleanup(web.Close)
	t.Cleanup(fake.Close) // runs before web.Close
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f := &fakeModel{Server: fake, url: web.URL, http: &http.Client{Transport: transport}}
	f.client = f.withKey("right")
	return f
}

// withKey returns a client that sends this key.
func (f *fakeModel) withKey(key string) *openai.Client {
	cfg := openai.DefaultConfig(key)
	cfg.BaseURL, cfg.HTTPClient = f.url+"/v1", f.http
	return openai.NewClientWithConfig(cfg)
}

// await fails the test unless done reports true in time.
func (f *fakeModel) await(t *testing.T, done func(Stats) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := f.Wait(ctx, done); err != nil {
		t.Fatal(err)
	}
}

// response is a whole HTTP response.
type response struct {
	status int
	header http.Header
	body   string
}

// do sends a plain HTTP request with the right key and reads the whole response.
func (f *fakeModel) do(t *testing.T, method, path, body string) response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer right")
	res, err := f.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return response{status: res.StatusCode, header: res.Header, body: string(data)}
}

// ask returns a request with one user message for the model "m".
func ask(message string) openai.ChatCompletionRequest {
	return openai.ChatCompletionRequest{
		Model:    "m",
		Messages: []openai.ChatCompletionMessage{{Role: openai.ChatMessageRoleUser, Content: message}},
	}
}

// askForUsage is like ask, but the request asks for the usage at the end of the stream.
func askForUsage(message string) openai.ChatCompletionRequest {
	req := ask(message)
	req.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	return req
}

// openStream starts a stream, which is closed at the end of the test.
func openStream(ctx context.Context, t *testing.T, c *openai.Client, req openai.ChatCompletionRequest) *openai.ChatCompletionStream {
	t.Helper()
	stream, err := c.CreateChatCompletionStream(ctx, req)
	if err != nil {
		t.Fatalf("the stream must begin: %v", err)
	}
	t.Cleanup(func() {
		if err := stream.Close(); err != nil {
			t.Errorf("failed to close the stream: %v", err)
		}
	})
	return stream
}

// waiter is a clock that counts its waiting timers.
type waiter interface {
	clock.Clock
	Waiters() int
	Step(d time.Duration)
}

// stepWhenWaiting moves the clock as soon as this many timers wait. The server's counts cannot replace this check,
// because a timer starts some time after its request was counted.
func stepWhenWaiting(t *testing.T, c waiter, timers int, d time.Duration) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for c.Waiters() < timers {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("want %d timers waiting, have %d", timers, c.Waiters())
		}
	}
	c.Step(d)
}
