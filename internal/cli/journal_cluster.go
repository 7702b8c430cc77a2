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

// clusterFlags say which cluster, and how its manager is reached.
type clusterFlags struct {
	kubeconfig, context string
	// server is the URL of a read API, empty for that of the executor, by a forwarded port; serverCA is a file of
	// certificates that it may have one of.
	server, serverCA string
	// token to send in place of the kubeconfig's own.
	token string
	// serviceAccount is that of the Turn's namespace whose token is sent if there is none else.
	serviceAccount string
	// managerNamespace is where the manager's Leases and pods are.
	managerNamespace string
}

// addAPIFlags adds those that say how the API server is reached.
func (c *clusterFlags) addAPIFlags(f *pflag.FlagSet) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "path of a kubeconfig file; default: $KUBECONFIG, else ~/.kube/config, else the cluster this runs in")
	f.StringVar(&c.context, "context", "", "context of the kubeconfig; default: its current one")
	f.StringVar(&c.token, "token", "", "bearer token that says who you are; default: that of the kubeconfig")
}

func (c *clusterFlags) addFlags(f *pflag.FlagSet) {
	c.addAPIFlags(f)
	f.StringVar(&c.server, "server", "", "`URL` of the manager's read API; default: a port is forwarded to the pod of the Turn's executor")
	f.StringVar(&c.serverCA, "server-ca-file", "", "`PATH` of a PEM file with the certificates that --server is known by; default: those of the system")
	f.StringVar(&c.serviceAccount, "service-account", defaultReader, "`NAME` of the ServiceAccount of the Turn's namespace as which the journal is read if the kubeconfig has no token, but a client certificate: by a token of ten minutes that you must be allowed to make; empty for none")
	f.StringVar(&c.managerNamespace, "manager-namespace", "capstan-system", "namespace of the manager")
}

// names are the flags that have no meaning without a cluster.
func (c *clusterFlags) names() []string {
	return []string{"kubeconfig", "context", "server", "server-ca-file", "token", "service-account", "manager-namespace"}
}

// kubeconfigOf reads the kubeconfig.
func (c *clusterFlags) kubeconfigOf() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.context})
}

// configOf reads the kubeconfig: how the API server is reached, and the namespace, that of the context where none is given.
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

// identity is a configuration of a client that acts as --token says, else as the kubeconfig does.
func (c *clusterFlags) identity(config *rest.Config) *rest.Config {
	if c.token == "" {
		return config
	}
	acting := rest.AnonymousClientConfig(config)
	acting.BearerToken = c.token
	return acting
}

// open returns a reader of a Turn's journal in the cluster. It asks nobody yet.
func (c *clusterFlags) open(_ context.Context, env Environment, namespace, name string) (journalReader, error) {
	if c.server != "" {
		if err := readapi.CheckServer(c.server); err != nil {
			return nil, fmt.Errorf("--server: %w", err)
		}
	}
	if c.server != "" && c.token != "" { // no kubeconfig is needed
		return c.direct(env, &rest.Config{}, nil, cmp.Or(namespace, "default"), name)
	}
	config, namespace, err := c.configOf(namespace)
	if err != nil {
		return nil, fail(ExitUsage, fmt.Errorf("%w; without a cluster, name the folder of capstan run with --data-dir", err))
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

// direct reads from the server that was named. api may be nil if there is a --token.
func (c *clusterFlags) direct(env Environment, config *rest.Config, api client.Client, namespace, name string) (journalReader, error) {
	base := plainTransport()
	if c.serverCA != "" {
		data, err := os.ReadFile(c.serverCA)
		if err != nil {
			return nil, fail(ExitUsage, fmt.Errorf("--server-ca-file: %w", err))
		}
		known := x509.NewCertPool()
		if !known.AppendCertsFromPEM(data) {
			return nil, fail(ExitUsage, fmt.Errorf("--server-ca-file: %s must hold certificates as PEM", c.serverCA))
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

// connected returns a connection to a server, as whom the kubeconfig, --token or --service-account says.
func (c *clusterFlags) connected(ctx context.Context, config *rest.Config, as reader, server string, base http.RoundTripper, closed func()) (*connection, error) {
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

// authorised adds the bearer token of --token, else that of the kubeconfig: a text, a file, or what a plug-in gets; else one that it makes
// for --service-account.
func (c *clusterFlags) authorised(ctx context.Context, config *rest.Config, as reader, base http.RoundTripper) (http.RoundTripper, error) {
	if c.token != "" {
		return rest.HTTPWrappersForConfig(&rest.Config{BearerToken: c.token}, base)
	}
	if config.Impersonate.UserName != "" {
		return nil, errors.New("the kubeconfig acts as somebody else (as: ...), which the read API does not know: use one that has a token of its own, or --token")
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

// errNoToken is the error for who is known by something else than a token.
var errNoToken = errors.New(`the kubeconfig has no bearer token (it may have a client certificate), and the manager knows people by nothing else: ` +
	`name with --service-account a ServiceAccount of the Turn's namespace that may get turns/log, or give a token with --token "$(kubectl create token NAME)"`)

// tokenOnly refuses requests without a bearer token.
type tokenOnly struct{ http.RoundTripper }

// RoundTrip sends a request that has a token.
func (t tokenOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
		return nil, errNoToken
	}
	return t.RoundTripper.RoundTrip(r)
}

// plainTransport goes straight to where it is told, by no proxy.
func plainTransport() *http.Transport {
	return &http.Transport{TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: time.Minute, ForceAttemptHTTP2: true}
}

// apiClient returns a client of the API server for Turns and Leases.
func apiClient(config *rest.Config) (client.Client, error) {
	kinds := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(kinds), v1alpha1.AddToScheme(kinds)); err != nil {
		return nil, err
	}
	api, err := client.New(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("failed to make a client of the API server: %w", err)
	}
	return api, nil
}

const (
	// mostCompleted and completionTimeout bound the names that a shell is offered.
	mostCompleted     = 500
	completionTimeout = 3 * time.Second
)

// anyTurn is true for each Turn.
func anyTurn(*v1alpha1.Turn) bool { return true }

// turns are the names of the Turns of a namespace that are wanted, for completion.
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
