package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// controlPlaneTimeout bounds the start of etcd, and also the start of kube-apiserver. On a busy machine with two cores,
// each start takes a tenth of this time.
const controlPlaneTimeout = 60 * time.Second

// assetsVariable is the environment variable with the directory that holds etcd, kube-apiserver and kubectl.
const assetsVariable = "KUBEBUILDER_ASSETS"

// Install lists what to install in a new control plane. The zero value stands for an empty API server.
type Install struct {
	// CRDs is the directory of Capstan's CRDs: config/crd/bases in the repository. Empty means no CRDs.
	CRDs string
	// Policy is the directory of the policy by which the API server checks who decides about calls: config/policy in
	// the repository. Empty means no policy. With the policy, StartControlPlane takes some seconds longer, because it
	// waits until managers accept decisions.
	Policy string
}

// ControlPlane is a running etcd and kube-apiserver.
type ControlPlane struct {
	// Config is the configuration of a client with administrator permissions and without a rate limit.
	Config *rest.Config
	// Kubeconfig is the absolute path of a kubeconfig with the same permissions. Only the file's owner can read it.
	Kubeconfig string
	// Kubectl is the path of a kubectl of the API server's version.
	Kubectl string

	env      *envtest.Environment
	stopOnce sync.Once
	// certificates is the certificate directory of an API server that was killed. stop removes it, because envtest does
	// not.
	certificates string
}

// StartControlPlane starts etcd and kube-apiserver on free ports of 127.0.0.1, installs the given parts and writes
// the kubeconfig. It returns an error if KUBEBUILDER_ASSETS does not name a directory with the programs, or if
// a program does not become ready; in the second case, the error ends with the last lines of both logs. A cancelled
// ctx takes effect only after both programs have started.
func (h *Harness) StartControlPlane(ctx context.Context, install Install) (*ControlPlane, error) {
	assets, err := findAssets()
	if err != nil {
		return nil, err
	}
	env := &envtest.Environment{ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: controlPlaneTimeout}
	if install.CRDs != "" {
		env.CRDDirectoryPaths = []string{install.CRDs}
	}
	closeLogs, err := h.logControlPlane(env)
	if err != nil {
		return nil, err
	}
	defer closeLogs()

	c := &ControlPlane{env: env, Kubectl: filepath.Join(assets, "kubectl")}
	h.push(c)
	if c.Config, err = env.Start(); err != nil {
		return nil, fmt.Errorf("failed to start the control plane: %w%s", err, h.controlPlaneTails())
	}
	c.Config.QPS = -1
	if c.Kubeconfig, err = h.writeKubeconfig(env.KubeConfig); err != nil {
		return nil, err
	}
	if install.Policy != "" {
		if err := installPolicy(ctx, c.Config, install.Policy); err != nil {
			return nil, err
		}
	}
	return c, context.Cause(ctx)
}

// RunKubectl runs kubectl with administrator permissions. The error contains the standard error of kubectl.
func (c *ControlPlane) RunKubectl(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errOut strings.Builder
	cmd := exec.CommandContext(ctx, c.Kubectl, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	// Do not use the cache in the home directory.
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(filepath.Dir(c.Kubeconfig), "cache"))
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("failed to run kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), errOut.String(), err
}

// stop stops kube-apiserver and etcd and removes their data.
func (c *ControlPlane) stop() error {
	var err error
	c.stopOnce.Do(func() {
		if err = c.env.Stop(); err != nil {
			err = fmt.Errorf("failed to stop the control plane: %w", err)
		}
		if c.certificates != "" {
			err = errors.Join(err, os.RemoveAll(c.certificates))
		}
	})
	return err
}

// logControlPlane opens log files for etcd and kube-apiserver. The returned function closes the file descriptors of
// this process.
func (h *Harness) logControlPlane(env *envtest.Environment) (func(), error) {
	etcd, err := h.openLog("etcd")
	if err != nil {
		return nil, err
	}
	server, err := h.openLog("kube-apiserver")
	if err != nil {
		return nil, errors.Join(err, etcd.Close())
	}
	env.ControlPlane.Etcd = &envtest.Etcd{Out: etcd, Err: etcd}
	// The objects of all attacks of a benchmark, and their history, have more than the 2 GiB of the default.
	env.ControlPlane.Etcd.Configure().Set("quota-backend-bytes", "8589934592")
	apiServer := env.ControlPlane.GetAPIServer()
	apiServer.Out, apiServer.Err = server, server
	return func() {
		_ = etcd.Close() // the children have their own descriptors, and nothing was written through this one
		_ = server.Close()
	}, nil
}

func (h *Harness) writeKubeconfig(content []byte) (string, error) {
	path, err := filepath.Abs(filepath.Join(h.dir, "kubeconfig"))
	if err != nil {
		return "", fmt.Errorf("failed to find the path of the kubeconfig: %w", err)
	}
	// Remove the old file first, because writing to an existing file would keep its mode.
	if err := os.RemoveAll(path); err != nil {
		return "", fmt.Errorf("failed to replace the kubeconfig: %w", err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return "", fmt.Errorf("failed to write the kubeconfig: %w", err)
	}
	return path, nil
}

func (h *Harness) controlPlaneTails() string {
	return withTail(filepath.Join(h.logDir(), "etcd.log")) + withTail(filepath.Join(h.logDir(), "kube-apiserver.log"))
}

func findAssets() (string, error) {
	assets := os.Getenv(assetsVariable)
	if assets == "" {
		return "", fmt.Errorf("failed to find etcd and kube-apiserver: %s is not set; "+
			"run through make, or set it to what hack/controlplane/get.sh prints", assetsVariable)
	}
	for _, program := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if _, err := os.Stat(filepath.Join(assets, program)); err != nil {
			return "", fmt.Errorf("failed to find %s in the directory that %s names: %w; "+
				"set it to what hack/controlplane/get.sh prints", program, assetsVariable, err)
		}
	}
	return assets, nil
}
