#!/usr/bin/env bash
# needs.sh: fails if this machine cannot run make e2e, and prints the missing parts and how to get them. Its only lasting
# change is that it may load the kernel module br_netfilter.
set -euo pipefail
state=/run/capstan-e2e # of main.go
missing=() packages=()

lacks() { missing+=("$1"); }
program() { # program NAME PACKAGE
  PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || { lacks "the program $1"; packages+=("$2"); }
}
# own PID: succeeds if the process belongs to an earlier run, which the next run removes.
own() { tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -qF "$state/"; }

if [ "$(uname -s)" != Linux ]; then lacks "Linux: a kubelet runs only on Linux"; fi
if [ "$(id -u)" -ne 0 ]; then lacks "root, for containers, the network and mounts (sudo make e2e, with Go in root's PATH)"; fi
program containerd containerd
program ctr containerd
program containerd-shim-runc-v2 containerd
program runc runc
program ip iproute2
program nft nftables
cni=$(for d in /usr/lib/cni /opt/cni/bin; do if [ -x "$d/bridge" ] && [ -x "$d/host-local" ] && [ -x "$d/loopback" ]; then echo "$d"; break; fi; done)
if [ -z "$cni" ]; then
  lacks "the CNI plugins bridge, host-local and loopback in /usr/lib/cni or /opt/cni/bin"
  packages+=(containernetworking-plugins)
fi

# A kubelet creates cgroups: in each hierarchy of version 1, or in the hierarchy of version 2.
if [ "$(id -u)" -eq 0 ]; then
  for group in /sys/fs/cgroup /sys/fs/cgroup/memory /sys/fs/cgroup/pids; do
    if [ -e /sys/fs/cgroup/cgroup.controllers ] && [ "$group" != /sys/fs/cgroup ]; then continue; fi
    if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && [ "$group" = /sys/fs/cgroup ]; then continue; fi
    if mkdir "$group/capstan-e2e-probe" 2>/dev/null; then rmdir "$group/capstan-e2e-probe"; else
      lacks "permission to create cgroups in $group: run it in a privileged container, or on a separate machine"
    fi
  done
  # A mount namespace needs the same permission as containers.
  unshare --mount true 2>/dev/null || lacks "permission to mount (CAP_SYS_ADMIN): run it in a privileged container"
  [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || modprobe br_netfilter 2>/dev/null ||
    lacks "the kernel module br_netfilter (modprobe br_netfilter)"
fi

# Only one cluster can run at a time: addresses, cgroups and kube-proxy's tables belong to the whole machine.
for proc in /proc/[0-9]*; do
  pid=${proc#/proc/}
  # A process may end during the check.
  case $({ tr '\0' ' ' <"$proc/cmdline" | cut -d' ' -f1; } 2>/dev/null || true) in
    *kubelet | *kube-proxy | *k3s | *k0s) own "$pid" || lacks "a machine without another Kubernetes node: process $pid runs one" ;;
  esac
done
taken() { # taken ADDRESS PORT
  timeout 1 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null
}
if [ ! -e "$state" ]; then
  for port in 10248 10249 10256 10257 10259 23792 23793; do
    if taken 127.0.0.1 "$port"; then lacks "the free port $port of 127.0.0.1"; fi
  done
  if command -v ip >/dev/null && ip -o addr show 2>/dev/null | grep -qE ' inet (10\.244\.|10\.96\.)'; then
    lacks "the free networks 10.244.0.0/24 and 10.96.0.0/16: an interface has an address in one of them"
  fi
fi

if [ ${#missing[@]} -gt 0 ]; then
  echo "e2e: this machine cannot run make e2e. It lacks:" >&2
  printf 'e2e:   - %s\n' "${missing[@]}" >&2
  if [ ${#packages[@]} -gt 0 ]; then
    echo "e2e: on Debian and Ubuntu: apt-get install -y --no-install-recommends $(printf '%s\n' "${packages[@]}" | sort -u | tr '\n' ' ')" >&2
  fi
  exit 1
fi
echo "$cni"
