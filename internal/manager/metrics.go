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
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/webserver"
)

const (
	// mostScrapes is the maximum number of concurrent scrapes, because each scrape renders all metrics in memory.
	mostScrapes = 4
	// mostConnections is the maximum number of connections of the metrics, and that of the probes.
	mostConnections = 32
	// requestTimeout bounds the time to read a request, and scrapeTimeout the time from then to the end of the
	// response.
	requestTimeout, scrapeTimeout = 10 * time.Second, 30 * time.Second
	// seriesInterval is the time between two removals of the series of deleted objects.
	seriesInterval = time.Minute
)

// metricsSecure reports whether /metrics is served over TLS, to authorized users only. It is, unless the address is on
// the loopback interface and no certificate is configured.
func (o *Options) metricsSecure() bool {
	host, _, err := net.SplitHostPort(o.MetricsBindAddress)
	return err == nil && (o.MetricsTLSCertFile != "" || !readapi.IsLoopback(host))
}

// metricsHandler returns the handler of /metrics, and the settings of its TLS, which are nil for plain HTTP. now and
// log are for the certificate.
func (o *Options) metricsHandler(
	guard *access.Guard, now func() time.Time, log logr.Logger,
) (h http.Handler, secure *tls.Config, err error) {
	h = promhttp.HandlerFor(ctrlmetrics.Registry,
		promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: mostScrapes})
	if o.metricsSecure() {
		h = guard.Handler(h)
		secure = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}} // a scrape does not need HTTP/2
	}
	if o.metricsSecure() && o.MetricsTLSCertFile != "" {
		certificate, err := webserver.NewCertificate(o.MetricsTLSCertFile, o.MetricsTLSKeyFile, now, log)
		if err != nil {
			return nil, nil, fmt.Errorf("--metrics-tls-cert-file and --metrics-tls-key-file: %w", err)
		}
		secure.GetCertificate = certificate.Get
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", h)
	return mux, secure, nil
}

// listenForMetrics returns a listener with these settings of TLS, which are nil for plain HTTP. Without a certificate,
// it makes one that no client trusts: a scraper must skip its check, but the metrics and tokens are encrypted.
func (o *Options) listenForMetrics(ctx context.Context, secure *tls.Config) (net.Listener, error) {
	if secure != nil && secure.GetCertificate == nil {
		certificate, key, err := cert.GenerateSelfSignedCertKeyWithFixtures("localhost", []net.IP{{127, 0, 0, 1}}, nil, "")
		if err != nil {
			return nil, fmt.Errorf("failed to make a certificate for the metrics: %w", err)
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("failed to use the certificate for the metrics: %w", err)
		}
		secure.Certificates = []tls.Certificate{pair}
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.MetricsBindAddress)
	if err != nil {
		return nil, fmt.Errorf("--metrics-bind-address: %w", err)
	}
	l = webserver.Limit(l, mostConnections)
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	return l, nil
}

// addMetrics makes the manager serve /metrics, unless no address is set. The caller must call stop, even if the manager
// is never started.
func (p *parts) addMetrics(ctx context.Context) (stop func(), err error) {
	o := p.options
	if o.MetricsBindAddress == "" || o.MetricsBindAddress == "0" {
		return func() {}, nil
	}
	handler, secure, err := o.metricsHandler(p.access, p.localNow, p.log.WithName("metrics"))
	if err != nil {
		return nil, err
	}
	listener, err := o.listenForMetrics(ctx, secure)
	if err != nil {
		return nil, err
	}
	server := webserver.New(handler)
	server.ReadTimeout, server.WriteTimeout = requestTimeout, scrapeTimeout
	err = p.manager.Add(&manager.Server{
		Name: "metrics", Listener: listener, ShutdownTimeout: new(time.Second), Server: server,
	})
	return func() { _ = listener.Close() }, err // it is closed already if the server has run
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
