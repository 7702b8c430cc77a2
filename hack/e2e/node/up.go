package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// startPatience is the maximum time until one part is ready, on a busy machine with two cores.
const startPatience = 2 * time.Minute

// Up starts the cluster, after it has removed the remains of an earlier process. It returns when the node is ready
// and DNS works. The caller must call Down, even after an error.
func (c *Cluster) Up(ctx context.Context) error {
	if err := c.Down(ctx); err != nil {
		return fmt.Errorf("failed to remove an earlier cluster: %w", err)
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"write the certificates", func(context.Context) error { return c.makePKI() }},
		{"set up the bridge of the Pods", c.setUpHost},
		{"start containerd and etcd", c.startBase},
		{"import the images", c.importImages},
		{"start the control plane", c.startControlPlane},
		{"start the node", c.startNode},
		{"start CoreDNS", c.startDNS},
	} {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("failed to %s: %w", step.name, err)
		}
	}
	return nil
}

// Import imports an image into the node. It returns an error if the archive contains another image.
func (c *Cluster) Import(ctx context.Context, image Image) error {
	if _, err := c.ctr(ctx, "images", "import", image.Archive); err != nil {
		return fmt.Errorf("failed to import %s: %w", image.Archive, err)
	}
	names, err := c.ctr(ctx, "images", "list", "--quiet")
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(names), image.Reference) {
		return fmt.Errorf("%s does not contain the image %s", image.Archive, image.Reference)
	}
	if image.Alias != "" {
		_, err = c.ctr(ctx, "images", "tag", image.Reference, image.Alias)
	}
	return err
}

func (c *Cluster) importImages(ctx context.Context) error {
	images := append([]Image{
		{Reference: pauseImage, Archive: c.config.Pause},
		{Reference: dnsImage, Archive: c.config.CoreDNS},
	}, c.config.Images...)
	for _, image := range images {
		if err := c.Import(ctx, image); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) ctr(ctx context.Context, args ...string) (string, error) {
	return run(ctx, nil, "ctr", append([]string{"--address", c.socket(), "--namespace", "k8s.io"}, args...)...)
}

func (c *Cluster) kubectl(ctx context.Context, stdin string, args ...string) error {
	_, err := run(ctx, []byte(stdin), c.Kubectl, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	return err
}

func (c *Cluster) program(name string) string { return filepath.Join(c.config.Kubernetes, name) }

// startBase starts the parts without dependencies: containerd and etcd.
func (c *Cluster) startBase(ctx context.Context) error {
	if _, err := c.write(c.fill(networkConfig), "cni", "10-e2e.conflist"); err != nil {
		return err
	}
	version, err := run(ctx, nil, "containerd", "--version")
	if err != nil {
		return err
	}
	config := containerdConfig2
	if strings.Contains(version, " 1.") || strings.Contains(version, " v1.") {
		config = containerdConfig1
	}
	path, err := c.write(c.fill(config), "containerd.toml")
	if err != nil {
		return err
	}
	err = errors.Join(
		c.start("containerd", "containerd", "--config", path),
		c.start("etcd", c.program("etcd"), "--data-dir", c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls", etcdClient, "--advertise-client-urls", etcdClient,
			"--listen-peer-urls", etcdPeer, "--initial-advertise-peer-urls", etcdPeer, "--initial-cluster", "default="+etcdPeer),
	)
	if err != nil {
		return err
	}
	return c.wait(ctx, "containerd", func(ctx context.Context) error {
		_, err := c.ctr(ctx, "version")
		return err
	})
}

func (c *Cluster) startControlPlane(ctx context.Context) error {
	authority := c.certificate("ca")
	err := c.start("kube-apiserver", c.program("kube-apiserver"),
		"--etcd-servers", etcdClient, "--bind-address", nodeIP, "--advertise-address", nodeIP, "--secure-port=6443",
		"--tls-cert-file", c.certificate("apiserver"), "--tls-private-key-file", c.key("apiserver"), "--client-ca-file", authority,
		"--kubelet-client-certificate", c.certificate("apiserver-to-kubelet"), "--kubelet-client-key", c.key("apiserver-to-kubelet"),
		"--kubelet-certificate-authority", authority, "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer", "https://kubernetes.default.svc."+domain,
		"--service-account-key-file", c.key("accounts"), "--service-account-signing-key-file", c.key("accounts"),
		"--service-cluster-ip-range", ServiceNet, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true")
	if err != nil {
		return err
	}
	if err := c.wait(ctx, "kube-apiserver",
		func(ctx context.Context) error { return c.kubectl(ctx, "", "get", "--raw", "/readyz") }); err != nil {
		return err
	}
	manager, scheduler := c.path("controller-manager.conf"), c.path("scheduler.conf")
	return errors.Join(
		c.start("kube-controller-manager", c.program("kube-controller-manager"), "--kubeconfig", manager,
			"--authentication-kubeconfig", manager, "--authorization-kubeconfig", manager, "--bind-address=127.0.0.1",
			"--root-ca-file", authority, "--service-account-private-key-file", c.key("accounts"), "--use-service-account-credentials",
			"--leader-elect=false"),
		c.start("kube-scheduler", c.program("kube-scheduler"), "--kubeconfig", scheduler,
			"--authentication-kubeconfig", scheduler, "--authorization-kubeconfig", scheduler, "--bind-address=127.0.0.1",
			"--leader-elect=false"),
	)
}

func (c *Cluster) startNode(ctx context.Context) error {
	// CoreDNS answers only for the cluster, because there is no upstream resolver.
	if _, err := c.write("nameserver 127.0.0.1\n", "resolv.conf"); err != nil {
		return err
	}
	kubelet, err := c.write(c.fill(kubeletConfig), "kubelet.yaml")
	if err != nil {
		return err
	}
	proxy, err := c.write(c.fill(proxyConfig), "proxy.yaml")
	if err != nil {
		return err
	}
	err = errors.Join(
		c.start("kubelet", c.program("kubelet"), "--config", kubelet, "--kubeconfig", c.path("kubelet.conf"),
			"--root-dir", c.path("kubelet"),
			"--hostname-override", nodeName, "--node-ip", nodeIP),
		c.start("kube-proxy", c.program("kube-proxy"), "--config", proxy),
	)
	if err != nil {
		return err
	}
	return c.wait(ctx, "the node", func(ctx context.Context) error {
		return c.kubectl(ctx, "", "wait", "--for=condition=Ready", "node/"+nodeName, "--timeout=5s")
	})
}

func (c *Cluster) startDNS(ctx context.Context) error {
	if err := c.kubectl(ctx, c.fill(dnsManifest), "apply", "-f", "-"); err != nil {
		return err
	}
	if err := c.wait(ctx, "CoreDNS", func(ctx context.Context) error {
		return c.kubectl(ctx, "", "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=5s")
	}); err != nil {
		return err
	}
	// kube-proxy may lag behind a Service's readiness by up to a second.
	return c.wait(ctx, "the Service of CoreDNS", func(ctx context.Context) error {
		connection, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(dnsIP, "53"))
		if err != nil {
			return err
		}
		return connection.Close()
	})
}
