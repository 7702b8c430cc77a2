package providers_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// replies is a model that always gives the same reply, or fails.
type replies struct {
	tokens int64
	err    error
}

func (r replies) Generate(context.Context, *model.Request) (*model.Reply, error) {
	if r.err != nil {
		return nil, r.err
	}
	return &model.Reply{Text: "Fine.", FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: r.tokens}}, nil
}

// limited returns a ModelProvider with limits.
func limited(generation int64, l v1alpha1.RateLimits) *v1alpha1.ModelProvider {
	o := object("http://model.test/v1")
	o.Generation, o.Spec.Limits = generation, &l
	return o
}

// TestGates checks that all Turns of a ModelProvider share its limits, and that changes of its spec and of the number
// of executors apply to requests that already wait.
func TestGates(t *testing.T) {
	const perMinute = 6
	for name, tc := range map[string]struct {
		reason string
		change func(c *providers.Cache)
		after  time.Duration
	}{
		"nothing changes": {"one request in ten seconds", func(*providers.Cache) {}, 10 * time.Second},
		"a higher limit": {"it applies immediately", func(c *providers.Cache) {
			c.Changed(limited(2, v1alpha1.RateLimits{RequestsPerMinute: new(int64(600))}))
		}, 5 * time.Second},
		"an older spec": {"a watch may be late", func(c *providers.Cache) {
			c.Changed(limited(0, v1alpha1.RateLimits{RequestsPerMinute: new(int64(60))}))
		}, 10 * time.Second},
		"another object": {"the name is not enough", func(c *providers.Cache) {
			other := limited(2, v1alpha1.RateLimits{RequestsPerMinute: new(int64(60))})
			other.UID = "other"
			c.Changed(other)
		}, 10 * time.Second},
		"a second executor":  {"each executor has half of the limit", func(c *providers.Cache) { c.SetExecutors(2) }, 15 * time.Second},
		"no executor at all": {"this executor counts", func(c *providers.Cache) { c.SetExecutors(0) }, 10 * time.Second},
		"a forgotten gate": {"waiting requests keep the gate", func(c *providers.Cache) {
			c.Forget(types.NamespacedName{Namespace: "demo", Name: "main"})
		}, 10 * time.Second},
		"a gate that is used": {"a sweep does not drop it", func(c *providers.Cache) { sweep(c, 20) }, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := providers.NewCache(nil, time.Now, nil, nil)
				o := limited(1, v1alpha1.RateLimits{RequestsPerMinute: new(int64(perMinute))})
				begin := time.Now()
				if _, err := c.Gated(o, pace.Caller{Namespace: "demo"}, replies{}).Generate(t.Context(), &model.Request{}); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(5*time.Second, func() { tc.change(c) })
				if _, err := c.Gated(o, pace.Caller{Namespace: "demo"}, replies{}).Generate(t.Context(), &model.Request{}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin).Round(time.Second); took != tc.after {
					t.Errorf("the second request was sent after %s, want %s: %s", took, tc.after, tc.reason)
				}
			})
		})
	}
}

// TestRefusedRequestsAreNamed checks that the cache reports the ModelProvider of each request that a gate refuses, also
// after the gate was replaced.
func TestRefusedRequestsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := providers.NewCache(nil, time.Now, nil, nil)
		var refused []string
		c.OnRefused(func(namespace, provider string) { refused = append(refused, namespace+"/"+provider) })
		o := limited(1, v1alpha1.RateLimits{MaxConcurrentRequests: new(int64(1))})
		for range 2 {
			gate := c.Gated(o, pace.Caller{Namespace: "caller"}, replies{}).(model.Gate)
			if _, err := gate.Enter(t.Context(), model.Wait{Model: "m"}); err != nil {
				t.Fatal(err)
			}
			if _, err := gate.Enter(t.Context(), model.Wait{Model: "m", MaxWait: time.Second}); err == nil {
				t.Error("a request beyond the limit was let in")
			}
			c.Forget(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		}
		if want := []string{"demo/main", "demo/main"}; !slices.Equal(refused, want) {
			t.Errorf("the refused requests are %q, want %q", refused, want)
		}
	})
}

func sweep(c *providers.Cache, times int) {
	for range times {
		c.Sweep()
	}
}

// TestTokensOfRequests checks which tokens count for a limit.
func TestTokensOfRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		model  replies
		after  time.Duration
	}{
		"used":       {"the real usage counts", replies{tokens: 600}, time.Minute},
		"unreported": {"the estimate counts", replies{}, 10 * time.Second},
		"refused":    {"nothing was used", replies{err: &model.Error{Kind: model.InvalidRequest}}, 0},
		"billed":     {"the estimate counts", replies{err: &model.Error{Kind: model.Timeout, MayBeBilled: true}}, 10 * time.Second},
		"hostile":    {"a negative usage reports nothing", replies{tokens: -1 << 60}, 10 * time.Second},
		"not an error of a model": {
			"it counts as a failure of the network", replies{err: errors.New("broken")}, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := providers.NewCache(nil, time.Now, nil, nil)
				o := limited(1, v1alpha1.RateLimits{TokensPerMinute: new(int64(600))})
				gate, ok := c.Gated(o, pace.Caller{Namespace: "demo"}, tc.model).(model.Gate)
				if !ok {
					t.Fatal("the provider has no gate")
				}
				begin := time.Now()
				for range 2 {
					ticket, err := gate.Enter(t.Context(), model.Wait{Model: "m", Tokens: 100})
					if err != nil {
						t.Fatal(err)
					}
					if took := time.Since(begin); took > 0 {
						if took = took.Round(5 * time.Second); took != tc.after {
							t.Errorf("the second request was sent after %s, want %s: %s", took, tc.after, tc.reason)
						}
					}
					_, _ = ticket.Generate(t.Context(), &model.Request{})
					ticket.Leave() // has no effect after Generate
				}
				if took := time.Since(begin); tc.after > 0 && took == 0 || tc.after == 0 && took > 0 {
					t.Errorf("the second request was sent after %s, want %s: %s", took, tc.after, tc.reason)
				}
			})
		})
	}
}

// TestCancelledWait checks the error of a request whose context ends while the request waits.
func TestCancelledWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := providers.NewCache(nil, time.Now, nil, nil)
		p := c.Gated(limited(1, v1alpha1.RateLimits{RequestsPerMinute: new(int64(1))}), pace.Caller{Namespace: "demo"}, replies{})
		if _, err := p.Generate(t.Context(), &model.Request{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Generate(ctx, &model.Request{}); model.AsError(err).Kind != model.Cancelled || !model.AsError(err).Unsent {
			t.Errorf("Generate: %v, want a cancelled request that was not sent", err)
		}
	})
}
