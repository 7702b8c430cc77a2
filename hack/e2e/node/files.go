package node

import (
	_ "embed"
	"strconv"
	"strings"
)

//go:embed coredns.yaml
var dnsManifest string

// fill replaces the variables in the text of a file, such as $STATE.
func (c *Cluster) fill(text string) string {
	return strings.NewReplacer(
		"$STATE", c.path(), "$SOCKET", c.socket(), "$CNI", c.config.CNI, "$BRIDGE", bridge, "$MTU", strconv.Itoa(bridgeMTU),
		"$POD_CIDR", podCIDR, "$FIRST_POD_IP", firstPodIP, "$NODE_IP", nodeIP, "$NODE", nodeName, "$DNS_IP", dnsIP, "$DOMAIN", domain,
		"$PAUSE", pauseImage, "$DNS_IMAGE", dnsImage,
	).Replace(text)
}

const networkConfig = `{
  "cniVersion": "0.4.0",
  "name": "capstan-e2e",
  "plugins": [{
    "type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "hairpinMode": true, "ipMasq": false, "mtu": $MTU,
    "ipam": {
      "type": "host-local", "dataDir": "$STATE/cni-leases",
      "ranges": [[{"subnet": "$POD_CIDR", "rangeStart": "$FIRST_POD_IP"}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}
`

// containerdConfig1 is for containerd 1.x. It sets restrict_oom_score_adj because a container without
// CAP_SYS_RESOURCE may not lower its OOM score, and every sandbox tries to.
const containerdConfig1 = `version = 2
root = "$STATE/containerd/root"
state = "$STATE/containerd/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "$SOCKET"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "$CNI"
  conf_dir = "$STATE/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
`

// containerdConfig2 is for containerd 2.x, which has split the CRI plugin.
const containerdConfig2 = `version = 3
root = "$STATE/containerd/root"
state = "$STATE/containerd/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs", "io.containerd.differ.v1.erofs",
  "io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "$SOCKET"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "$PAUSE"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["$CNI"]
  conf_dir = "$STATE/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
`

// kubeletConfig disables the garbage collection of images, which could not be pulled again. It leaves the host's
// iptables alone.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
failSwapOn: false
oomScoreAdj: 0
containerRuntimeEndpoint: unix://$SOCKET
address: $NODE_IP
healthzBindAddress: 127.0.0.1
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $STATE/pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $STATE/pki/kubelet-server.crt
tlsPrivateKeyFile: $STATE/pki/kubelet-server.key
clusterDNS: [$DNS_IP]
clusterDomain: $DOMAIN
resolvConf: $STATE/resolv.conf
podLogsDir: $STATE/pods
volumePluginDir: $STATE/kubelet/plugins-exec
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
nftables: {minSyncPeriod: 100ms}
clientConnection: {kubeconfig: $STATE/proxy.conf}
clusterCIDR: $POD_CIDR
hostnameOverride: $NODE
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
nodePortAddresses: ["$NODE_IP/32"]
conntrack: {maxPerCore: 0}
oomScoreAdj: 0
`
