package journals

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
)

// ClusterFlags holds the flags that specify how to reach the cluster and its manager.
type ClusterFlags struct {
	cluster.Flags
	// Server is the URL of a read API. If it is empty, a port is forwarded to an executor. ServerCA is the path of a
	// file with the certificate authorities to trust for Server. If it is empty, those of the system are trusted.
	Server, ServerCA string
	// ServiceAccount is the name of a ServiceAccount in the Turn's namespace. Its token is sent if neither Token nor
	// the kubeconfig has a token. If it is empty, such a request fails.
	ServiceAccount string
	// ManagerNamespace is the namespace of the manager's Leases and Pods.
	ManagerNamespace string

	// once sets known and unread: the certificate authorities of ServerCA, or why they cannot be read. The file is read
	// only once, because it may be a pipe.
	once   sync.Once
	known  *x509.CertPool
	unread error
}

// Open returns a reader of a Turn's journal in the cluster. Open itself sends no request. The end of ctx ends the
// requests of the reader.
func (c *ClusterFlags) Open(ctx context.Context, env terminal.Environment, namespace, name string) (*Remote, error) {
	if c.Server != "" {
		if err := readapi.CheckServer(c.Server); err != nil {
			return nil, fmt.Errorf("--server: %w", err)
		}
	}
	if c.Server != "" && c.Token != "" { // this needs no kubeconfig
		return c.direct(env, &rest.Config{}, nil, cmp.Or(namespace, "default"), name)
	}
	config, namespace, err := c.Config(namespace)
	if err != nil {
		return nil, exit.WithCode(exit.Usage, fmt.Errorf("%w; without a cluster, set --data-dir to the directory of capstan run", err))
	}
	api, err := cluster.NewClient(ctx, config)
	if err != nil {
		return nil, exit.WithCode(exit.Failed, err)
	}
	remote := &Remote{env: env, namespace: namespace, name: name, connect: func(ctx context.Context) (*connection, error) {
		return c.find(ctx, config, api, namespace, name)
	}}
	if c.Server != "" {
		if remote, err = c.direct(env, config, api, namespace, name); err != nil {
			return nil, err
		}
	}
	remote.turn = func(ctx context.Context, name string) (*v1alpha1.Turn, error) {
		var t v1alpha1.Turn
		err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &t)
		return &t, err
	}
	return remote, nil
}

// direct returns a reader that uses --server. api may be nil if --token is set.
func (c *ClusterFlags) direct(env terminal.Environment, config *rest.Config, api client.Client, namespace, name string) (*Remote, error) {
	base := plainTransport()
	if c.ServerCA != "" {
		c.once.Do(c.readServerCA)
		if c.unread != nil {
			return nil, exit.WithCode(exit.Usage, fmt.Errorf("--server-ca-file: %w", c.unread))
		}
		base.TLSClientConfig = &tls.Config{RootCAs: c.known, MinVersion: tls.VersionTLS12}
	}
	if strings.HasPrefix(c.Server, "https:") {
		base.Proxy = http.ProxyFromEnvironment
	}
	return &Remote{env: env, namespace: namespace, name: name, connect: func(ctx context.Context) (*connection, error) {
		return c.newConnection(ctx, config, tokenSource{api, namespace}, c.Server, base, base.CloseIdleConnections)
	}}, nil
}

// readServerCA reads the certificate authorities of ServerCA.
func (c *ClusterFlags) readServerCA() {
	data, err := os.ReadFile(c.ServerCA)
	if err != nil {
		c.unread = err
		return
	}
	if c.known = x509.NewCertPool(); !c.known.AppendCertsFromPEM(data) {
		c.unread = fmt.Errorf("%s must contain PEM certificates", c.ServerCA)
	}
}

// newConnection returns a connection to a server. It authenticates with --token, the kubeconfig's token or a token of
// --service-account. closed is called when the connection is closed or could not be made.
func (c *ClusterFlags) newConnection(
	ctx context.Context, config *rest.Config, source tokenSource, server string, base http.RoundTripper, closed func(),
) (*connection, error) {
	transport, err := c.withToken(ctx, config, source, base)
	if err != nil {
		closed()
		return nil, exit.WithCode(exit.Failed, err)
	}
	readClient, err := readapi.NewClient(server, transport)
	if err != nil {
		closed()
		return nil, exit.WithCode(exit.Failed, err)
	}
	return &connection{Client: readClient, close: closed}, nil
}

// withToken adds a bearer token to requests: --token, else the token of the kubeconfig (a text, a file or the
// output of a plug-in), else a new token of --service-account.
func (c *ClusterFlags) withToken(
	ctx context.Context, config *rest.Config, source tokenSource, base http.RoundTripper,
) (http.RoundTripper, error) {
	if c.Token != "" {
		return rest.HTTPWrappersForConfig(&rest.Config{BearerToken: c.Token}, base)
	}
	if config.Impersonate.UserName != "" {
		return nil, errors.New("the kubeconfig impersonates another user (as: ...), which the read API does not " +
			"support: use a kubeconfig with its own token, or --token")
	}
	if c.ServiceAccount != "" && !mayHaveToken(config) {
		token, err := source.token(ctx, c.ServiceAccount)
		if err != nil {
			return nil, err
		}
		return rest.HTTPWrappersForConfig(&rest.Config{BearerToken: token}, base)
	}
	return rest.HTTPWrappersForConfig(config, tokenOnly{base})
}

// errNoToken is the error for a user who authenticates without a token.
var errNoToken = errors.New(`the kubeconfig has no bearer token (it may have a client certificate), and the manager accepts only tokens: ` +
	`set --service-account to a ServiceAccount of the Turn's namespace that has the permission for this command, or pass a token ` +
	`with --token "$(kubectl create token NAME)"`)

// errNoOwnToken is errNoToken for feedback. A record has one feedback of each user, so all users of a shared
// ServiceAccount would replace the feedback of each other. For this reason it has no default.
var errNoOwnToken = errors.New(`the kubeconfig has no bearer token (it may have a client certificate), and feedback is stored under the ` +
	`name of the token's user: pass a token of your own with --token, or set --service-account to store the feedback under ` +
	`the name of a ServiceAccount; all its users together have one feedback for each Turn`)

// tokenOnly is a transport that sends only requests with a bearer token. Other requests fail with errNoToken.
type tokenOnly struct{ http.RoundTripper }

// RoundTrip sends a request if it has a bearer token.
func (t tokenOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
		return nil, errNoToken
	}
	return t.RoundTripper.RoundTrip(r)
}

// headerTimeout is the maximum time from a request to the head of its answer. All requests have shorter limits of their
// own, so that their errors name those limits.
const headerTimeout = readapi.RecordsTimeout + 10*time.Second

// plainTransport returns a transport that uses no proxy.
func plainTransport() *http.Transport {
	return &http.Transport{TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: headerTimeout, ForceAttemptHTTP2: true}
}
