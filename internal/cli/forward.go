package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/readapi"
)

const (
	// forwardTimeout bounds the time in which a forwarded port must be ready.
	forwardTimeout = 20 * time.Second
	// dialTimeout bounds the time in which a server of this machine must answer.
	dialTimeout = 3 * time.Second
)

// find connects to an executor that has the journal of a Turn: its own, else any other, which has it too where they share
// the store.
func (c *clusterFlags) find(ctx context.Context, config *rest.Config, api client.Client, namespace, name string) (*connection, error) {
	var t v1alpha1.Turn
	if err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &t); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, fail(ExitFailed, fmt.Errorf("there is no Turn %s/%s", namespace, name))
		}
		return nil, fail(ExitFailed, elsewhere("failed to get the Turn", err))
	}
	own := ""
	if e := t.Status.Executor; e != nil {
		own = e.Name
	}
	var leases coordinationv1.LeaseList
	if err := api.List(ctx, &leases, client.InNamespace(c.managerNamespace), client.MatchingLabels{executor.LeaseLabel: executor.LeaseLabelValue}); err != nil {
		return nil, fail(ExitFailed, elsewhere(fmt.Sprintf("failed to list the Leases of executors in --manager-namespace %q", c.managerNamespace), err))
	}
	var tried []error
	for _, l := range byNearness(leases.Items, executor.LeasePrefix+own) {
		found, err := c.reach(ctx, config, reader{api, namespace}, l)
		if err == nil {
			return found, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		tried = append(tried, err)
	}
	if len(tried) == 0 {
		return nil, fail(ExitFailed, fmt.Errorf("%w: --manager-namespace %q has no Lease of one; is the manager there, and does it run?", errNowhere, c.managerNamespace))
	}
	return nil, fail(ExitFailed, fmt.Errorf("%w: %w", errNowhere, errors.Join(tried...)))
}

// elsewhere says, where something is not allowed, how to do without it.
func elsewhere(what string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: %w; with --server and the URL of the manager's read API it is not needed", what, err)
	}
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%w: %s: %w", errNowhere, what, err)
}

// byNearness sorts Leases: that of a name first, then those that were renewed last.
func byNearness(leases []coordinationv1.Lease, own string) []coordinationv1.Lease {
	renewed := func(l coordinationv1.Lease) time.Time {
		if l.Spec.RenewTime == nil {
			return time.Time{}
		}
		return l.Spec.RenewTime.Time
	}
	slices.SortFunc(leases, func(a, b coordinationv1.Lease) int {
		switch {
		case a.Name == own && b.Name != own:
			return -1
		case b.Name == own && a.Name != own:
			return 1
		}
		return cmp.Or(renewed(b).Compare(renewed(a)), cmp.Compare(a.Name, b.Name))
	})
	return leases
}

// reach connects to one executor: straight to it if its Lease says where it listens, else by a port that the API server
// forwards to its pod. A Lease is believed only as far as this machine: a token goes nowhere else because of one.
func (c *clusterFlags) reach(ctx context.Context, config *rest.Config, as reader, l coordinationv1.Lease) (*connection, error) {
	if at := l.Annotations[readapi.AddressAnnotation]; strings.HasPrefix(at, "http://") && readapi.CheckServer(at) == nil {
		if err := listens(ctx, at); err != nil {
			return nil, err
		}
		base := plainTransport()
		return c.connected(ctx, config, as, at, base, base.CloseIdleConnections)
	}
	port := cmp.Or(l.Annotations[readapi.PortAnnotation], strconv.Itoa(readapi.DefaultPort))
	pod := strings.TrimPrefix(l.Name, executor.LeasePrefix)
	f, err := forward(ctx, config, c.managerNamespace, pod, port)
	if err != nil {
		return nil, fmt.Errorf("failed to forward a port to pod %s/%s: %w", c.managerNamespace, pod, err)
	}
	base := plainTransport()
	return c.connected(ctx, config, as, f.url, told{base, f}, func() {
		base.CloseIdleConnections()
		f.stop()
	})
}

// listens fails if nobody listens at a URL: the Lease of a manager that was killed is there for a while.
func listens(ctx context.Context, at string) error {
	u, err := url.Parse(at)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	return conn.Close()
}

// forwarding is a port of this machine that leads to a pod.
type forwarding struct {
	url  string
	stop func()
	// words are what was said about connections that failed.
	words *words
}

// forward forwards a port to a pod, by websockets, else by SPDY, as kubectl does.
func forward(ctx context.Context, config *rest.Config, namespace, pod, port string) (*forwarding, error) {
	dialer, err := dialerOf(config, namespace, pod)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ready, said := make(chan struct{}), &words{}
	forwarder, err := portforward.NewOnAddressesForStreamingWithContext(life, dialer, []string{"127.0.0.1"}, []string{"0:" + port}, ready, io.Discard, said)
	if err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan struct{})
	var failure error
	go func() {
		defer close(ended)
		failure = forwarder.ForwardPorts()
	}()
	timer := time.NewTimer(forwardTimeout)
	defer timer.Stop()
	select {
	case <-ended:
		err = failure
	case <-ready:
		ports, err := forwarder.GetPorts()
		if err == nil {
			stop := func() {
				cancel()
				<-ended
			}
			return &forwarding{url: fmt.Sprintf("http://127.0.0.1:%d", ports[0].Local), stop: stop, words: said}, nil
		}
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = fmt.Errorf("it was not ready within %s", forwardTimeout)
	}
	cancel()
	return nil, err
}

func dialerOf(config *rest.Config, namespace, pod string) (httpstream.Dialer, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	at := base.JoinPath("api", "v1", "namespaces", url.PathEscape(namespace), "pods", url.PathEscape(pod), "portforward")
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, at)
	socket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(at, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(socket, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// words collects what is written, up to a bound.
type words struct {
	mu   sync.Mutex
	text bytes.Buffer
}

const mostWords = 4 << 10

// Write takes a text in.
func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p[:min(len(p), mostWords-min(mostWords, w.text.Len()))])
	return len(p), nil
}

// String returns what was written.
func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(w.text.String())
}

// told adds to the error of a connection what was said about its forwarding.
type told struct {
	http.RoundTripper
	by *forwarding
}

// RoundTrip sends a request.
func (t told) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if said := t.by.words.String(); err != nil && said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return response, err
}
