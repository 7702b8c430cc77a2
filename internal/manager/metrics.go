package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/readapi"
)

const (
	// mostScrapes is the maximum number of concurrent scrapes, because each scrape renders all metrics in memory.
	mostScrapes = 4
	// seriesInterval is the time between two removals of the series of deleted objects.
	seriesInterval = time.Minute
)

// metricsSecure reports whether /metrics is served over TLS, to authorized users only. It is, unless the address is on
// the loopback interface and no certificate is configured.
func (o *Options) metricsSecure() bool {
	host, _, err := net.SplitHostPort(o.MetricsBindAddress)
	return err == nil && (o.MetricsTLSCertFile != "" || !readapi.IsLoopback(host))
}

// metricsOptions returns the options of the metrics server. watcher keeps its certificate up to date; it is nil if
// the server has no certificate, or creates its own.
func (o *Options) metricsOptions(guard *access.Guard) (options metricsserver.Options, watcher *certwatcher.CertWatcher, err error) {
	options = metricsserver.Options{
		BindAddress: o.MetricsBindAddress,
		HandlerOpts: []func(*promhttp.HandlerOpts){func(h *promhttp.HandlerOpts) { h.MaxRequestsInFlight = mostScrapes }},
	}
	if !o.metricsSecure() {
		return options, nil, nil
	}
	options.SecureServing = true
	options.FilterProvider = func(*rest.Config, *http.Client) (metricsserver.Filter, error) {
		return func(_ logr.Logger, next http.Handler) (http.Handler, error) { return guard.Handler(next), nil }, nil
	}
	options.TLSOpts = []func(*tls.Config){func(c *tls.Config) {
		c.MinVersion, c.NextProtos = tls.VersionTLS12, []string{"http/1.1"} // a scrape does not need HTTP/2
	}}
	if o.MetricsTLSCertFile != "" {
		if watcher, err = certwatcher.New(o.MetricsTLSCertFile, o.MetricsTLSKeyFile); err != nil {
			return options, nil, fmt.Errorf("--metrics-tls-cert-file and --metrics-tls-key-file: %w", err)
		}
		options.TLSOpts = append(options.TLSOpts, func(c *tls.Config) { c.GetCertificate = watcher.GetCertificate })
	}
	return options, watcher, nil
}

// checkMetrics returns an error if the options of /metrics contradict each other.
func (o *Options) checkMetrics() error {
	if (o.MetricsTLSCertFile == "") != (o.MetricsTLSKeyFile == "") {
		return fmt.Errorf("--metrics-tls-cert-file %q and --metrics-tls-key-file %q must be set together",
			o.MetricsTLSCertFile, o.MetricsTLSKeyFile)
	}
	return nil
}

// addSweeper adds the removal of the metrics of deleted objects.
func (p *parts) addSweeper() error {
	return p.manager.Add(everywhere{manager.RunnableFunc(func(ctx context.Context) error {
		tick := time.NewTicker(seriesInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			live, err := liveSeries(ctx, p.manager.GetCache())
			if err == nil {
				metrics.Sweep(live)
			} else if ctx.Err() == nil {
				p.log.Error(err, "Failed to list the objects whose metrics must be kept")
			}
		}
	})})
}

// liveSeries returns the Agents and the ModelProviders of each namespace, from the cache.
func liveSeries(ctx context.Context, cache client.Reader) (metrics.Live, error) {
	var agents v1alpha1.AgentList
	var providers v1alpha1.ModelProviderList
	if err := errors.Join(cache.List(ctx, &agents, client.UnsafeDisableDeepCopy),
		cache.List(ctx, &providers, client.UnsafeDisableDeepCopy)); err != nil {
		return nil, err
	}
	live := metrics.Live{}
	in := func(namespace string) metrics.Names {
		if _, known := live[namespace]; !known {
			live[namespace] = metrics.Names{Agents: map[string]bool{}, Providers: map[string]bool{}}
		}
		return live[namespace]
	}
	for i := range agents.Items {
		in(agents.Items[i].Namespace).Agents[agents.Items[i].Name] = true
	}
	for i := range providers.Items {
		in(providers.Items[i].Namespace).Providers[providers.Items[i].Name] = true
	}
	return live, nil
}
