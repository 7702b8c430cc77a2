#!/usr/bin/env bash
# get.sh [--all]: prints a directory that contains etcd, kube-apiserver and kubectl. With --all, it also contains the
# other programs of a cluster with one node. Progress goes to standard error.
#
# The script tries these sources in order:
#  1. $KUBEBUILDER_ASSETS, if it contains the programs;
#  2. the programs that an earlier call has kept;
#  3. the download of setup-envtest, without --all;
#  4. a build of all programs from the Go modules pinned in go.mod in this directory. It takes minutes, once per
#     version, and is used by tests and make e2e.
#
# Programs are kept under $CAPSTAN_CACHE, otherwise in the user's cache directory.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
programs=(etcd kube-apiserver kubectl)
others=(kube-controller-manager kube-scheduler kubelet kube-proxy)
all=
if [ "${1:-}" = --all ]; then
  all=true
  programs+=("${others[@]}")
  others=()
fi

say() { echo "controlplane: $*" >&2; }
complete() {
  local p
  for p in "${programs[@]}"; do [ -x "$1/$p" ] || return 1; done
}

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  complete "$KUBEBUILDER_ASSETS" && { echo "$KUBEBUILDER_ASSETS"; exit 0; }
  # A download for the tests contains no kubelet. This is no error: the script tries the next source.
  [ -n "$all" ] || { say "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS does not hold ${programs[*]}; unset it or point it to a directory that does"; exit 1; }
fi

version=$(sed -n 's/^[[:space:]]*\(require \)\{0,1\}k8s.io\/kubernetes \(v[0-9.]*\).*/\2/p' "$here/go.mod")
key=$(cat "$here/main.go" "$here/go.mod" "$here/go.sum" | git hash-object --stdin | cut -c1-12)
cache=${CAPSTAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/capstan}/controlplane
dir=$cache/$version-$(go env GOOS)-$(go env GOARCH)-$key
complete "$dir" && { echo "$dir"; exit 0; }
mkdir -p "$cache"

# Only one call at a time fills the cache. A second call waits and then finds the programs.
exec 9>"$cache/.lock"
if command -v flock >/dev/null; then flock 9; fi
complete "$dir" && { echo "$dir"; exit 0; }

# If the network allows it, the release binaries are downloaded in seconds.
minor=${version#v}
if [ -z "$all" ] && [ "${CAPSTAN_CONTROLPLANE:-}" != build ]; then
  say "asking setup-envtest for Kubernetes ${minor%.*}"
  if got=$(cd "$here/../.." && timeout 300 go tool -modfile=hack/tools/dev/go.mod setup-envtest use "${minor%.*}.x" --bin-dir "$cache/envtest" -p path 2>"$cache/setup-envtest.log") && complete "$got"; then
    echo "$got"
    exit 0
  fi
  say "setup-envtest could not download it ($(tail -n 1 "$cache/setup-envtest.log" | cut -c1-120))"
fi

say "building Kubernetes $version and etcd from Go modules: about 7 minutes on 2 cores, once"
tmp=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$tmp"; [ -z "${ticker:-}" ] || kill "$ticker" 2>/dev/null || true' EXIT
start=$SECONDS
(while sleep 30; do say "still building, $((SECONDS - start)) s"; done) 9>&- &
ticker=$!
v=k8s.io/component-base/version
# Without the version stamp, the programs report v0.0.0-master and every version check fails.
(cd "$here" && CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -o "$tmp/controlplane" -ldflags "-s -w \
  -X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=$(cut -d. -f2 <<<"$version") \
  -X k8s.io/client-go/pkg/version.gitVersion=$version" .) >&2 9>&-
for p in "${programs[@]}" "${others[@]}"; do ln -s controlplane "$tmp/$p"; done
rm -rf "$dir"
mv "$tmp" "$dir"
say "built in $((SECONDS - start)) s, kept in $dir"
echo "$dir"
