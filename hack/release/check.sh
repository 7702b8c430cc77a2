#!/usr/bin/env bash
# check.sh VERSION: fails if what is checked out cannot be released as this version, and says why.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=$1
wrong() { echo "release: $*" >&2; exit 1; }

[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] ||
  wrong "the version $version is no semantic version: make release VERSION=v0.1.0"
chart=$(sed -n 's/^appVersion: *"\(.*\)"$/\1/p' charts/capstan/Chart.yaml)
[ "$chart" = "$version" ] ||
  wrong "the appVersion of charts/capstan/Chart.yaml is $chart: the chart would install another image; set it to \"$version\", and commit"
grep -qF "image: capstan-dev/capstan:$version" config/manager/deployment.yaml ||
  wrong "config/manager/deployment.yaml does not name the image capstan-dev/capstan:$version: correct it, and commit"
changed=$(git status --porcelain) || wrong "git does not know which commit this is: release from a clone"
[ -z "$changed" ] || wrong "the tree differs from its commit: commit or remove these files:"$'\n'"$changed"
if tagged=$(git rev-parse -q --verify "refs/tags/v$version^{commit}") && [ "$tagged" != "$(git rev-parse HEAD)" ]; then
  wrong "the tag v$version is on the commit $tagged: check it out, or release another version"
fi
