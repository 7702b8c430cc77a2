package journals

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// WithServer calls do with a client of a read API of the cluster, and with the namespace. If the given namespace is
// empty, do receives the namespace of the kubeconfig's context, or default with a server and a token.
func (c *ClusterFlags) WithServer(
	ctx context.Context, env terminal.Environment, namespace string, do func(client *readapi.Client, namespace string) error,
) error {
	remote, namespace, err := c.anyServer(ctx, env, namespace)
	if err != nil {
		return err
	}
	connected, err := remote.connect(ctx)
	if err != nil {
		return err
	}
	defer connected.close()
	return do(connected.Client, namespace)
}

// anyServer returns a Remote that connects to any executor, or to --server.
func (c *ClusterFlags) anyServer(
	ctx context.Context, env terminal.Environment, namespace string,
) (*Remote, string, error) {
	if c.Server != "" {
		if err := readapi.CheckServer(c.Server); err != nil {
			return nil, "", fmt.Errorf("--server: %w", err)
		}
	}
	if c.Server != "" && c.Token != "" { // this needs no kubeconfig
		namespace = cmp.Or(namespace, "default")
		remote, err := c.direct(env, &rest.Config{}, nil, namespace, "")
		return remote, namespace, err
	}
	config, namespace, err := c.Config(namespace)
	if err != nil {
		return nil, "", exit.WithCode(exit.Usage, fmt.Errorf("%w; without a cluster, set --data-dir to the directory of capstan run", err))
	}
	api, err := cluster.NewClient(ctx, config)
	if err != nil {
		return nil, "", exit.WithCode(exit.Failed, err)
	}
	if c.Server != "" {
		remote, err := c.direct(env, config, api, namespace, "")
		return remote, namespace, err
	}
	return &Remote{env: env, namespace: namespace, connect: func(ctx context.Context) (*connection, error) {
		return c.reachAny(ctx, config, tokenSource{api, namespace}, "")
	}}, namespace, nil
}

// OpenDirForWriting opens the journals and the records that capstan run keeps in a directory, for writing. It returns
// an error if they do not exist. The caller must close the store.
func OpenDirForWriting(ctx context.Context, dir string) (*sqlite.Store, error) {
	path, err := pathIn(dir) // sqlite.Open would create the file
	if err != nil {
		return nil, err
	}
	s, err := sqlite.Open(ctx, path)
	if err != nil {
		return nil, ExplainDir(dir, err)
	}
	return s, nil
}

// OpenDir opens the journals and the records that capstan run keeps in a directory, for reading. The caller must close
// the reader.
func OpenDir(ctx context.Context, dir string) (*sqlite.Reader, error) { return openDir(ctx, dir) }
