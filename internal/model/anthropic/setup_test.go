package anthropic_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/model/anthropic"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/modeltest"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "sk-ant-0123456789abcdefghijklmnopqrstuvwxyz"

// provider returns a provider for a base URL. It is closed when the test ends.
func provider(t *testing.T, baseURL string, mutate ...func(*anthropic.Config)) *endpoint.Provider {
	t.Helper()
	cfg := anthropic.Config{Config: endpoint.Config{
		Name: modeltest.Name, BaseURL: baseURL, APIKey: key, CredentialsFrom: `key "apiKey" of Secret "demo"`,
		ConnectTimeout: 30 * time.Second, IdleTimeout: 20 * time.Second, Policy: netpolicy.NewLocalPolicy(),
	}}
	for _, m := range mutate {
		m(&cfg)
	}
	p := anthropic.New(cfg)
	t.Cleanup(p.Close)
	return p
}

// start starts a strict server, and returns the server and its base URL. If reply is nil, the server answers "yes".
func start(t *testing.T, reply func(modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string)) (*modeltest.Anthropic, string) {
	t.Helper()
	if reply == nil {
		reply = func(modeltest.AnthropicRequest) ([]modeltest.AnthropicBlock, string) {
			return []modeltest.AnthropicBlock{{Type: "text", Text: "yes"}}, "end_turn"
		}
	}
	s := &modeltest.Anthropic{Key: key, Reply: reply}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return s, web.URL + "/v1"
}

// TestCorpus replays the answers of Anthropic.
func TestCorpus(t *testing.T) {
	modeltest.Run(t, "anthropic", func(t *testing.T, url string) model.Provider { return provider(t, url) })
}
