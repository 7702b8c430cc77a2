package journals

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
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/readapi"
)

const (
	// forwardTimeout is how long forward waits for a forwarded port to become ready.
	forwardTimeout = 20 * time.Second
	// dialTimeout is how long checkListens waits for a server on this machine to accept a connection.
	dialTimeout = 3 * time.Second
)

// errNoTurn is the error if the API server has no Turn with a name. The name follows in the message.
var errNoTurn = errors.New("there is no Turn")

// find connects to an executor that can read the journal of a Turn. It tries the Turn's own executor first, then the
// other executors, which can read the journal if all executors share a store.
func (c *ClusterFlags) find(ctx context.Context, config *rest.Config, api client.Client, namespace, name string) (*connection, error) {
	var t v1alpha1.Turn
	if err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &t); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, exit.WithCode(exit.Failed, fmt.Errorf("%w %s/%s", errNoTurn, namespace, name))
		}
		return nil, exit.WithCode(exit.Failed, requestError("failed to get the Turn", err))
	}
	own := ""
	if e := t.Status.Executor; e != nil {
		own = e.Name
	}
	return c.reachAny(ctx, config, tokenSource{api, namespace}, own)
}

// reachAny connects to an executor. It tries the executor named own first, then the others.
func (c *ClusterFlags) reachAny(ctx context.Context, config *rest.Config, source tokenSource, own string) (*connection, error) {
	var leases coordinationv1.LeaseList
	if err := source.api.List(ctx, &leases, client.InNamespace(c.ManagerNamespace),
		client.MatchingLabels{executor.LeaseLabel: executor.LeaseLabelValue}); err != nil {
		return nil, exit.WithCode(exit.Failed, requestError(
			fmt.Sprintf("failed to list the Leases of executors in --manager-namespace %q", c.ManagerNamespace), err))
	}
	executors := executor.LeasesOfExecutors(leases.Items) // the Lease of a store names no Pod
	var tried []error
	for _, l := range sortLeases(executors, executor.LeasePrefix+own) {
		found, err := c.reach(ctx, config, source, l)
		if err == nil {
			return found, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		tried = append(tried, err)
	}
	if len(tried) == 0 {
		return nil, exit.WithCode(exit.Failed, fmt.Errorf(
			"%w: --manager-namespace %q has no Lease of an executor; check that the manager runs in this namespace",
			errNoExecutor, c.ManagerNamespace))
	}
	return nil, exit.WithCode(exit.Failed, fmt.Errorf("%w: %w", errNoExecutor, errors.Join(tried...)))
}

// requestError wraps an error of the API server. If access was denied, the message says that --server avoids the
// request. If the user is not authenticated, the error is final. Any other error also wraps errNoExecutor, so that the
// caller tries again.
func requestError(message string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s: %w; with --server and the URL of the manager's read API, this permission is not required", message, err)
	}
	if apierrors.IsUnauthorized(err) {
		return fmt.Errorf("%s: %w", message, err)
	}
	return fmt.Errorf("%w: %s: %w", errNoExecutor, message, err)
}

// sortLeases sorts Leases: first the Lease named own, then the others by the time of their renewal, the latest first.
func sortLeases(leases []coordinationv1.Lease, own string) []coordinationv1.Lease {
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

// reach connects to one executor. It connects directly if the executor's Lease names an address on this machine,
// else through a port that the API server forwards to the Pod. It ignores other addresses, so that a forged Lease
// cannot direct the user's token elsewhere.
func (c *ClusterFlags) reach(ctx context.Context, config *rest.Config, source tokenSource, l coordinationv1.Lease) (*connection, error) {
	if address := l.Annotations[readapi.AddressAnnotation]; strings.HasPrefix(address, "http://") && readapi.CheckServer(address) == nil {
		if err := checkListens(ctx, address); err != nil {
			return nil, err
		}
		base := plainTransport()
		return c.newConnection(ctx, config, source, address, base, base.CloseIdleConnections)
	}
	port := cmp.Or(l.Annotations[readapi.PortAnnotation], strconv.Itoa(readapi.DefaultPort))
	pod := strings.TrimPrefix(l.Name, executor.LeasePrefix)
	f, err := forward(ctx, config, c.ManagerNamespace, pod, port)
	if err != nil {
		return nil, fmt.Errorf("failed to forward a port to pod %s/%s: %w", c.ManagerNamespace, pod, err)
	}
	base := plainTransport()
	return c.newConnection(ctx, config, source, f.url, errorLogTransport{base, f}, func() {
		base.CloseIdleConnections()
		f.stop()
	})
}

// checkListens returns an error if no process listens at a URL. The Lease of a killed manager still exists for a while.
func checkListens(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	return conn.Close()
}

// forwarding is a local port that is forwarded to a Pod.
type forwarding struct {
	url  string
	stop func()
	// errorLog holds the error messages about connections that failed.
	errorLog *errorLog
}

// forward forwards a local port to a Pod. Like kubectl it uses WebSockets and falls back to SPDY.
func forward(ctx context.Context, config *rest.Config, namespace, pod, port string) (*forwarding, error) {
	dialer, err := dialerOf(config, namespace, pod)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ready, messages := make(chan struct{}), &errorLog{}
	forwarder, err := portforward.NewOnAddressesForStreamingWithContext(life, dialer, []string{"127.0.0.1"},
		[]string{"0:" + port}, ready, io.Discard, messages)
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
			return &forwarding{url: fmt.Sprintf("http://127.0.0.1:%d", ports[0].Local), stop: stop, errorLog: messages}, nil
		}
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = fmt.Errorf("the forwarded port was not ready within %s", forwardTimeout)
	}
	cancel()
	return nil, err
}

func dialerOf(config *rest.Config, namespace, pod string) (httpstream.Dialer, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	endpoint := base.JoinPath("api", "v1", "namespaces", url.PathEscape(namespace), "pods", url.PathEscape(pod), "portforward")
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, endpoint)
	socket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(endpoint, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(socket, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// errorLog collects written text up to a limit of maxErrorLog bytes. It is safe for concurrent use.
type errorLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

const maxErrorLog = 4 << 10

// Write adds text, and discards the text over the limit.
func (w *errorLog) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p[:min(len(p), maxErrorLog-min(maxErrorLog, w.text.Len()))])
	return len(p), nil
}

// String returns the collected text.
func (w *errorLog) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(w.text.String())
}

// errorLogTransport is a transport that adds the messages of the forwarding to the error of a request.
type errorLogTransport struct {
	http.RoundTripper
	forwarding *forwarding
}

// RoundTrip sends a request.
func (t errorLogTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if messages := t.forwarding.errorLog.String(); err != nil && messages != "" {
		err = fmt.Errorf("%w: %s", err, messages)
	}
	return response, err
}
