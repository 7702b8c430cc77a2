// Package node runs a Kubernetes cluster with one real node as plain processes: etcd, the control plane,
// containerd, a kubelet, kube-proxy and CoreDNS. It needs root and Linux; hack/e2e/needs.sh lists the other
// requirements. A machine can run one such cluster at a time.
package node

import (
	"fmt"
	"os"
	"path/filepath"
)

// ServiceNet is the IP range of the cluster's Services.
const ServiceNet = "10.96.0.0/16"

// Name is the name of the node. Address is its address on the bridge, at which Pods reach the host.
const (
	Name    = "e2e-node"
	Address = "10.244.0.1"
)

// The addresses of the cluster. The node and the API server share the bridge's address, and all Pods are on the
// bridge.
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

// The images of the cluster itself. They are imported and never pulled.
const (
	pauseImage = "e2e.local/pause:1"
	dnsImage   = "e2e.local/coredns:1"
)

// Image is an image that Pods can use without a registry.
type Image struct {
	// Reference is the full name of the image, with registry and tag.
	Reference string
	// Archive is the path of an OCI archive that contains the image under this name.
	Archive string
	// Alias is a second full name for the image. It may be empty.
	Alias string
}

// Config tells a cluster where its programs are and where to write its files.
type Config struct {
	// Kubernetes is the directory of etcd, kubectl, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet
	// and kube-proxy.
	Kubernetes string
	// CoreDNS and Pause are the paths of OCI archives, which hold the images e2e.local/coredns:1 and e2e.local/pause:1.
	CoreDNS, Pause string
	// CNI is the directory of the plugins bridge, host-local and loopback.
	CNI string
	// State is the directory of the cluster's files: an absolute path of at most 80 characters. Up creates this
	// directory and Down removes it.
	State string
	// Logs is the absolute path of a directory for the logs of the processes. Down keeps it.
	Logs string
	// Images are the images that Pods can use in addition to the images of the cluster itself.
	Images []Image
}

// Cluster is a cluster that may be running, or that an earlier process may have left behind.
type Cluster struct {
	config Config
	// Kubeconfig is the path of the administrator's kubeconfig.
	Kubeconfig string
	// Kubectl is the path of a kubectl of the cluster's version.
	Kubectl string
}

// New returns the cluster of a configuration. It does not start anything.
func New(c Config) (*Cluster, error) {
	if !filepath.IsAbs(c.State) || len(c.State) > 80 {
		return nil, fmt.Errorf("the directory for the cluster's state must be an absolute path of at most 80 "+
			"characters, because a socket is in it, got %q", c.State)
	}
	return &Cluster{config: c, Kubeconfig: filepath.Join(c.State, "admin.conf"), Kubectl: filepath.Join(c.Kubernetes, "kubectl")}, nil
}

// Volumes returns the directory for PersistentVolumes on the node. Down removes it with the state.
func (c *Cluster) Volumes() string { return c.path("volumes") }

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.config.State}, elements...)...)
}

func (c *Cluster) socket() string { return c.path("containerd.sock") }

// write writes a file of the state and returns its path.
func (c *Cluster) write(content string, elements ...string) (string, error) {
	path := c.path(elements...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // because containers run as other users
		return "", err
	}
	return path, os.WriteFile(path, []byte(content), 0o600)
}
