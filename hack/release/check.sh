#!/usr/bin/env bash
# check.sh VERSION: fails if the checked-out commit cannot be released as this version, and prints the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=$1
wrong() { echo "release: $*" >&2; exit 1; }

[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] ||
  wrong "the version $version is not a semantic version: run make release VERSION=v0.1.0, for example"
chart=$(sed -n 's/^appVersion: *"\(.*\)"$/\1/p' charts/capstan/Chart.yaml)
[ "$chart" = "$version" ] ||
  wrong "the appVersion of charts/capstan/Chart.yaml is $chart: the chart would install another image; set it to \"$version\", and commit"
image=$(sed -n 's|^ *image: *||p' config/manager/deployment.yaml)
[ "$image" = "capstan-dev/capstan:$version" ] ||
  wrong "config/manager/deployment.yaml names the image $image: set it to capstan-dev/capstan:$version, and commit"
for manifest in examples/cluster/servers/*.yaml; do
  other=$(sed -n "s|.*image: \(capstan-dev/capstan-examples:.*\)|\1|p" "$manifest" | grep -vxF "capstan-dev/capstan-examples:$version" || true)
  [ -z "$other" ] || wrong "$manifest names the image $other: set its tag to $version, and commit"
done
changed=$(git status --porcelain) || wrong "git cannot determine the commit: release from a clone"
[ -z "$changed" ] || wrong "the tree differs from its commit: commit or remove these files:"$'\n'"$changed"
if tagged=$(git rev-parse -q --verify "refs/tags/v$version^{commit}") && [ "$tagged" != "$(git rev-parse HEAD)" ]; then
  wrong "the tag v$version is on the commit $tagged: check it out, or release another version"
fi
