package cli

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
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/readapi"
)

// clusterFlags hold the flags that select the cluster and the way to its manager.
type clusterFlags struct {
	kubeconfig, context string
	// server is the URL of a read API. If it is empty, a port is forwarded to an executor. serverCA is the path of
	// a file with the certificates that server may have.
	server, serverCA string
	// token replaces the credentials of the kubeconfig.
	token string
	// serviceAccount is the name of a ServiceAccount in the Turn's namespace. Its token is sent if there is no
	// other.
	serviceAccount string
	// managerNamespace is the namespace of the manager's Leases and Pods.
	managerNamespace string
}

// addAPIFlags adds the flags that say how to reach the API server.
func (c *clusterFlags) addAPIFlags(f *pflag.FlagSet) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "",
		"path of a kubeconfig file; default: $KUBECONFIG, else ~/.kube/config, else the cluster of the Pod in which capstan runs")
	f.StringVar(&c.context, "context", "", "context of the kubeconfig; default: the current context")
	f.StringVar(&c.token, "token", "", "bearer token that authenticates you; default: the token of the kubeconfig")
}

func (c *clusterFlags) addFlags(f *pflag.FlagSet) {
	c.addAPIFlags(f)
	f.StringVar(&c.server, "server", "",
		"`URL` of the manager's read API; default: a port that is forwarded to the Pod of the Turn's executor")
	f.StringVar(&c.serverCA, "server-ca-file", "",
		"`PATH` of a PEM file with the certificate authorities of --server; default: those of the system")
	f.StringVar(&c.serviceAccount, "service-account", defaultReader,
		"`NAME` of the ServiceAccount in the Turn's namespace that reads the journal if the kubeconfig has no "+
			"token, but a client certificate; you must have the right to create a token for it, "+
			"which is valid for ten minutes; empty for none")
	f.StringVar(&c.managerNamespace, "manager-namespace", "capstan-system", "namespace of the manager")
}

// names returns the flags that make no sense without a cluster.
func (c *clusterFlags) names() []string {
	return []string{"kubeconfig", "context", "server", "server-ca-file", "token", "service-account", "manager-namespace"}
}

// kubeconfigOf returns the kubeconfig that the flags select.
func (c *clusterFlags) kubeconfigOf() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context})
}

// configOf reads the kubeconfig. It returns the client configuration and the namespace, which is the namespace of
// the kubeconfig's context if none is given.
func (c *clusterFlags) configOf(namespace string) (*rest.Config, string, error) {
	given := c.kubeconfigOf()
	config, err := given.ClientConfig()
	if err == nil && namespace == "" {
		namespace, _, err = given.Namespace()
	}
	if err != nil {
		return nil, "", fmt.Errorf("failed to read the kubeconfig: %w", err)
	}
	return config, namespace, nil
}

// identity returns a client configuration that uses --token, or else the credentials of the kubeconfig.
func (c *clusterFlags) identity(config *rest.Config) *rest.Config {
	if c.token == "" {
		return config
	}
	acting := rest.AnonymousClientConfig(config)
	acting.BearerToken = c.token
	return acting
}

// open returns a reader of a Turn's journal in the cluster. It sends no request yet.
func (c *clusterFlags) open(_ context.Context, env Environment, namespace, name string) (journalReader, error) {
	if c.server != "" {
		if err := readapi.CheckServer(c.server); err != nil {
			return nil, fmt.Errorf("--server: %w", err)
		}
	}
	if c.server != "" && c.token != "" { // this needs no kubeconfig
		return c.direct(env, &rest.Config{}, nil, cmp.Or(namespace, "default"), name)
	}
	config, namespace, err := c.configOf(namespace)
	if err != nil {
		return nil, fail(ExitUsage, fmt.Errorf("%w; without a cluster, set --data-dir to the folder of capstan run", err))
	}
	api, err := apiClient(config)
	if err != nil {
		return nil, fail(ExitFailed, err)
	}
	if c.server != "" {
		return c.direct(env, config, api, namespace, name)
	}
	return &remote{env: env, namespace: namespace, name: name, connect: func(ctx context.Context) (*connection, error) {
		return c.find(ctx, config, api, namespace, name)
	}}, nil
}

// direct returns a reader that uses --server. api may be nil if --token is set.
func (c *clusterFlags) direct(env Environment, config *rest.Config, api client.Client, namespace, name string) (journalReader, error) {
	base := plainTransport()
	if c.serverCA != "" {
		data, err := os.ReadFile(c.serverCA)
		if err != nil {
			return nil, fail(ExitUsage, fmt.Errorf("--server-ca-file: %w", err))
		}
		known := x509.NewCertPool()
		if !known.AppendCertsFromPEM(data) {
			return nil, fail(ExitUsage, fmt.Errorf("--server-ca-file: %s must contain PEM certificates", c.serverCA))
		}
		base.TLSClientConfig = &tls.Config{RootCAs: known, MinVersion: tls.VersionTLS12}
	}
	if strings.HasPrefix(c.server, "https:") {
		base.Proxy = http.ProxyFromEnvironment
	}
	return &remote{env: env, namespace: namespace, name: name, connect: func(ctx context.Context) (*connection, error) {
		return c.connected(ctx, config, reader{api, namespace}, c.server, base, base.CloseIdleConnections)
	}}, nil
}

// connected returns a connection to a server. It authenticates with --token, the kubeconfig's token or a token of
// --service-account.
func (c *clusterFlags) connected(
	ctx context.Context, config *rest.Config, as reader, server string, base http.RoundTripper, closed func(),
) (*connection, error) {
	authorised, err := c.authorised(ctx, config, as, base)
	if err != nil {
		closed()
		return nil, fail(ExitFailed, err)
	}
	reads, err := readapi.NewClient(server, authorised)
	if err != nil {
		closed()
		return nil, fail(ExitFailed, err)
	}
	return &connection{Client: reads, close: closed}, nil
}

// authorised adds a bearer token to requests: --token, else the token of the kubeconfig (a text, a file or the
// output of a plug-in), else a new token of --service-account.
func (c *clusterFlags) authorised(ctx context.Context, config *rest.Config, as reader, base http.RoundTripper) (http.RoundTripper, error) {
	if c.token != "" {
		return rest.HTTPWrappersForConfig(&rest.Config{BearerToken: c.token}, base)
	}
	if config.Impersonate.UserName != "" {
		return nil, errors.New("the kubeconfig impersonates another user (as: ...), which the read API does not " +
			"support: use a kubeconfig with its own token, or --token")
	}
	if c.serviceAccount != "" && !bearsToken(config) {
		token, err := as.token(ctx, c.serviceAccount)
		if err != nil {
			return nil, err
		}
		return rest.HTTPWrappersForConfig(&rest.Config{BearerToken: token}, base)
	}
	return rest.HTTPWrappersForConfig(config, tokenOnly{base})
}

// errNoToken is the error for a user who authenticates without a token.
var errNoToken = errors.New(`the kubeconfig has no bearer token (it may have a client certificate), and the manager accepts only tokens: ` +
	`set --service-account to a ServiceAccount of the Turn's namespace that may get turns/log, or pass a token ` +
	`with --token "$(kubectl create token NAME)"`)

// tokenOnly is a transport that refuses requests without a bearer token.
type tokenOnly struct{ http.RoundTripper }

// RoundTrip sends a request if it has a bearer token.
func (t tokenOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
		return nil, errNoToken
	}
	return t.RoundTripper.RoundTrip(r)
}

// plainTransport returns a transport that uses no proxy.
func plainTransport() *http.Transport {
	return &http.Transport{TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: time.Minute, ForceAttemptHTTP2: true}
}

// apiClient returns an API server client for Turns, ToolApprovals and the built-in kinds.
func apiClient(config *rest.Config) (client.Client, error) {
	kinds := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(kinds), v1alpha1.AddToScheme(kinds)); err != nil {
		return nil, err
	}
	api, err := client.New(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("failed to create a client of the API server: %w", err)
	}
	return api, nil
}

const (
	// mostCompleted and completionTimeout limit the number of names that a completion offers and the time to list
	// them.
	mostCompleted     = 500
	completionTimeout = 3 * time.Second
)

// anyTurn returns true for each Turn.
func anyTurn(*v1alpha1.Turn) bool { return true }

// turns returns the names of the Turns of a namespace for which wanted returns true, for completion.
func (c *clusterFlags) turns(ctx context.Context, namespace string, wanted func(*v1alpha1.Turn) bool) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	config, namespace, err := c.configOf(namespace)
	if err != nil {
		return nil, err
	}
	api, err := apiClient(config)
	if err != nil {
		return nil, err
	}
	var list v1alpha1.TurnList
	if err := api.List(ctx, &list, client.InNamespace(namespace), client.Limit(mostCompleted)); err != nil {
		return nil, err
	}
	found := make([]string, 0, len(list.Items))
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			found = append(found, list.Items[i].Name)
		}
	}
	return found, nil
}
