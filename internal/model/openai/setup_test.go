package openai_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "sk-demo-0123456789abcdefghijklmnopqrstuvwxyz"

// fakeModel starts a fake model with rules in YAML. It returns the model and its base URL.
func fakeModel(t *testing.T, rules string) (*server.Server, string) {
	t.Helper()
	cfg, err := server.ParseConfig([]byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	t.Cleanup(s.Close)
	return s, web.URL + "/v1"
}

// serve starts an HTTP server with one handler and returns its base URL.
func serve(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	web := httptest.NewServer(handle)
	t.Cleanup(web.Close)
	return web.URL + "/v1"
}

// respond returns a handler that answers every request with a status and a body. Each header is "name: value".
func respond(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // the test notices if the client is gone
	}
}

// events returns the body of an event stream with this data.
func events(data ...string) string {
	return "data: " + strings.Join(data, "\n\ndata: ") + "\n\n"
}

// Content types of answers.
const (
	stream   = "Content-Type: text/event-stream"
	jsonType = "Content-Type: application/json"
)

// provider returns a provider for a base URL. It is closed when the test ends.
func provider(t *testing.T, baseURL string, mutate ...func(*openai.Config)) *endpoint.Provider {
	t.Helper()
	cfg := openai.Config{Config: endpoint.Config{
		Name: "demo", BaseURL: baseURL, APIKey: key, CredentialsFrom: `key "apiKey" of Secret "demo"`,
		ConnectTimeout: 30 * time.Second, IdleTimeout: 20 * time.Second,
		Policy: netpolicy.NewLocalPolicy(),
	}}
	for _, m := range mutate {
		m(&cfg)
	}
	p := openai.New(cfg)
	t.Cleanup(p.Close)
	return p
}

// generate asks a provider for a reply. The reply is zero if there is an error.
func generate(ctx context.Context, p model.Provider, req model.Request) (model.Reply, error) {
	reply, err := p.Generate(ctx, &req)
	if reply == nil {
		reply = &model.Reply{}
	}
	return *reply, err
}

func request(message string) model.Request {
	return model.Request{Model: "small", Messages: []model.Message{
		{Role: model.RoleSystem, Name: "system_prompt", Content: "Be brief."},
		{Role: model.RoleUser, Name: "user_message", Content: message},
	}}
}

// failure sends a request and returns its error, which must be a *model.Error without any part of the key.
func failure(t *testing.T, p *endpoint.Provider) *model.Error {
	t.Helper()
	reply, err := generate(t.Context(), p, request("hello"))
	return check(t, reply, err)
}

// check returns err, which must be a *model.Error without any part of the key.
func check(t *testing.T, reply model.Reply, err error) *model.Error {
	t.Helper()
	e, ok := errors.AsType[*model.Error](err)
	if !ok {
		t.Fatalf("Generate = %+v, %v; want a *model.Error", reply, err)
	}
	if strings.Contains(e.Message, key[8:20]) || strings.ContainsAny(e.Message, "\n\r\x00\x1b") {
		t.Errorf("message %q holds a part of the key, or is not one printable line", e.Message)
	}
	return e
}

// longContext returns a context that ends with the test, or after one minute.
func longContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
