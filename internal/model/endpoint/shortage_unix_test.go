//go:build unix

package endpoint_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/model/anthropic"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestShortageIsNoFailureOfTheEndpoint checks the failures of requests and probes while this process has no free file
// descriptor, and that the endpoint is reached afterwards.
func TestShortageIsNoFailureOfTheEndpoint(t *testing.T) {
	for name, adapter := range map[string]func(endpoint.Config) *endpoint.Provider{
		"openai":    func(cfg endpoint.Config) *endpoint.Provider { return openai.New(openai.Config{Config: cfg}) },
		"anthropic": func(cfg endpoint.Config) *endpoint.Provider { return anthropic.New(anthropic.Config{Config: cfg}) },
	} {
		t.Run(name, func(t *testing.T) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
			}))
			defer web.Close()
			p := adapter(endpoint.Config{
				Name: "demo", BaseURL: web.URL + "/v1", ConnectTimeout: time.Minute, IdleTimeout: time.Minute,
				FirstEventTimeout: time.Minute, Policy: netpolicy.NewLocalPolicy(),
			})
			defer p.Close()
			generate := func() *model.Error {
				_, err := p.Generate(t.Context(), &model.Request{
					Model: "m", Messages: []model.Message{{Role: model.RoleUser, Content: "hello"}},
				})
				return model.AsError(err)
			}
			restore := shortagetest.NoFiles(t)
			failed := generate()
			_, err := p.Probe(t.Context())
			restore()
			for what, e := range map[string]*model.Error{"request": failed, "probe": model.AsError(err)} {
				if !errors.Is(e, model.ErrOwnShortage) || !e.Unsent || e.MayBeBilled || !e.Kind.Retryable() {
					t.Errorf("the failure of the %s is %+v, want an own shortage that may pass", what, e)
				}
				if !strings.HasPrefix(e.Message, `provider "demo": this process has no free file descriptor`) ||
					!strings.Contains(e.Message, "ulimit -n") {
					t.Errorf("the message of the %s is %q, want the remedy", what, e.Message)
				}
			}
			if e := generate(); e.Kind != model.Overloaded || e.Unsent {
				t.Errorf("after the shortage: %+v, want the failure that the endpoint sends", e)
			}
		})
	}
}
