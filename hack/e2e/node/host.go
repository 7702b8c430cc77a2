package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// settings are the kernel settings below /proc/sys that the cluster changes: setUpHost changes two of them, and the
// kubelet and kube-proxy change the others. Down restores them.
var settings = []string{
	"net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops",
	"net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_tcp_timeout_established",
	"net/netfilter/nf_conntrack_tcp_timeout_close_wait",
}

// settingsFile stores the original values, below the state directory.
const settingsFile = "settings"

// setUpHost creates the bridge and lets the kernel route between Pods and Services on it.
func (c *Cluster) setUpHost(ctx context.Context) error {
	var saved strings.Builder
	for _, name := range settings {
		if value, err := os.ReadFile("/proc/sys/" + name); err == nil {
			fmt.Fprintf(&saved, "%s=%s\n", name, strings.TrimSpace(string(value)))
		}
	}
	if _, err := c.write(saved.String(), settingsFile); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Volumes(), 0o755); err != nil { //nolint:gosec // because Pods have volumes in it
		return err
	}
	if err := errors.Join(set("net/ipv4/ip_forward", "1"), set("net/bridge/bridge-nf-call-iptables", "1")); err != nil {
		return err
	}
	for _, args := range []string{
		"link add " + bridge + " type bridge", "addr add " + nodeIP + "/24 dev " + bridge,
		fmt.Sprintf("link set %s mtu %d up", bridge, bridgeMTU),
	} {
		if _, err := run(ctx, nil, "ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return nil
}

func set(name, value string) error {
	return os.WriteFile("/proc/sys/"+name, []byte(value), 0o644) //nolint:gosec // because the file is the kernel's
}

// restoreHost undoes the changes to the host outside the cluster's own directories. Each step may find nothing to do.
func (c *Cluster) restoreHost(ctx context.Context) error {
	errs := c.unmount()
	for _, family := range []string{"ip", "ip6"} {
		// The tables exist only if kube-proxy has run.
		_, _ = run(ctx, nil, "nft", "delete", "table", family, "kube-proxy")
	}
	if _, err := os.Stat("/sys/class/net/" + bridge); err == nil {
		ports, _ := filepath.Glob("/sys/class/net/" + bridge + "/brif/*")
		for _, port := range ports {
			// The port may have been removed together with its namespace.
			_, _ = run(ctx, nil, "ip", "link", "delete", filepath.Base(port))
		}
		_, err := run(ctx, nil, "ip", "link", "delete", bridge)
		errs = errors.Join(errs, err)
	}
	saved, err := os.ReadFile(c.path(settingsFile))
	errs = errors.Join(errs, ignoreMissing(err))
	for line := range strings.Lines(string(saved)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			errs = errors.Join(errs, set(name, value))
		}
	}
	c.removeTraces()
	return errs
}

// removeTraces removes files and empty directories that the kubelet, kube-controller-manager, containerd and the CNI
// plugins leave outside the state directory.
func (c *Cluster) removeTraces() {
	for _, pattern := range []string{"/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/*/kubepods"} {
		groups, _ := filepath.Glob(pattern)
		for _, group := range groups {
			removeEmpty(group)
		}
	}
	links, _ := filepath.Glob("/var/log/containers/*.log")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, c.path()+"/") {
			_ = os.Remove(link)
		}
	}
	results, _ := filepath.Glob("/var/lib/cni/results/c*") // capstan-e2e-..., cni-loopback-...
	for _, result := range results {
		if base := filepath.Base(result); strings.HasPrefix(base, "capstan-e2e-") || strings.HasPrefix(base, "cni-loopback-") {
			_ = os.Remove(result)
		}
	}
	for _, socket := range []string{"kubelet.sock", "DEPRECATION"} {
		_ = os.Remove("/var/lib/kubelet/device-plugins/" + socket)
	}
	for _, directory := range []string{
		"/var/lib/kubelet", "/usr/libexec/kubernetes", "/var/lib/cni", "/var/log/containers", "/run/netns", "/run/containerd",
	} {
		removeEmpty(directory)
	}
}

// removeEmpty removes a directory and its subdirectories if they are empty.
func removeEmpty(directory string) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeEmpty(filepath.Join(directory, e.Name()))
		}
	}
	_ = os.Remove(directory) // fails unless the directory is empty
}
