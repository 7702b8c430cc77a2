// Package node runs a Kubernetes cluster of one real node from plain processes: etcd, the control plane, containerd, a kubelet,
// kube-proxy and CoreDNS. It needs root and Linux; hack/e2e/needs.sh says what else. There may be one such cluster on a machine.
package node

import (
	"fmt"
	"os"
	"path/filepath"
)

// ServiceNet is the range of the cluster's Services.
const ServiceNet = "10.96.0.0/16"

// Name is that of the node, and Address its own on the bridge, at which Pods reach the host.
const (
	Name    = "e2e-node"
	Address = "10.244.0.1"
)

// The addresses of the cluster. The bridge has the node's and the API server's address, and all Pods are on it.
const (
	nodeName   = Name
	bridge     = "capstan-e2e0"
	nodeIP     = Address
	podCIDR    = "10.244.0.0/24"
	firstPodIP = "10.244.0.10"
	serviceIP  = "10.96.0.1"
	dnsIP      = "10.96.0.10"
	apiServer  = "https://" + nodeIP + ":6443"
	etcdClient = "http://127.0.0.1:23792"
	etcdPeer   = "http://127.0.0.1:23793"
	bridgeMTU  = 1400
	domain     = "cluster.local"
)

// The images of the cluster itself. They are imported, and never pulled.
const (
	pauseImage = "e2e.local/pause:1"
	dnsImage   = "e2e.local/coredns:1"
)

// Image is an image that Pods may use without a registry.
type Image struct {
	// Reference is the image's whole name, with registry and tag.
	Reference string
	// Archive is the path of an OCI archive that holds the image under this name.
	Archive string
}

// Config says where a cluster finds its programs, and where it keeps what it writes.
type Config struct {
	// Kubernetes is the folder of etcd, kubectl, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and kube-proxy.
	Kubernetes string
	// CoreDNS and Pause are the paths of OCI archives, which hold the images e2e.local/coredns:1 and e2e.local/pause:1.
	CoreDNS, Pause string
	// CNI is the folder of the plugins bridge, host-local and loopback.
	CNI string
	// State is an absolute path of at most 80 characters: a folder that Up makes and Down removes.
	State string
	// Logs is an absolute path: a folder for the logs of the processes, which stays.
	Logs string
	// Images are the images that Pods may use besides those of the cluster.
	Images []Image
}

// Cluster is a cluster that runs, or may have been left by an earlier process.
type Cluster struct {
	config Config
	// Kubeconfig is the path of a file that reaches the API server as an administrator.
	Kubeconfig string
	// Kubectl is the path of a kubectl of its version.
	Kubectl string
}

// New returns the cluster of a configuration. Nothing is started yet.
func New(c Config) (*Cluster, error) {
	if !filepath.IsAbs(c.State) || len(c.State) > 80 {
		return nil, fmt.Errorf("the folder for the cluster's state must be an absolute path of at most 80 characters, because a socket is in it, got %q", c.State)
	}
	return &Cluster{config: c, Kubeconfig: filepath.Join(c.State, "admin.conf"), Kubectl: filepath.Join(c.Kubernetes, "kubectl")}, nil
}

// Volumes is the folder for PersistentVolumes on the node. It goes with the state.
func (c *Cluster) Volumes() string { return c.path("volumes") }

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.config.State}, elements...)...)
}

func (c *Cluster) socket() string { return c.path("containerd.sock") }

// write writes a file of the state.
func (c *Cluster) write(content string, elements ...string) (string, error) {
	path := c.path(elements...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // because containers run as other users
		return "", err
	}
	return path, os.WriteFile(path, []byte(content), 0o600)
}
