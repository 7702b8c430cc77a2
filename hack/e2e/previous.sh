#!/usr/bin/env bash
# previous.sh DIRECTORY ARCHITECTURE: writes to DIRECTORY the chart before the newest change of its values or templates,
# and the manager of that commit with the names of its migrations.
set -euo pipefail
directory=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
commit=$(bash hack/chart/version.sh previous)
if [ "$(cat "$directory/commit" 2>/dev/null)" = "$commit-$2" ]; then exit 0; fi
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
git archive "$commit" | tar -x -C "$sources"
rm -rf "$directory"
mkdir -p "$directory"
(cd "$sources" && CGO_ENABLED=0 GOOS=linux GOARCH=$2 GOAMD64=v1 GOARM64=v8.0 GOFIPS140=off GOEXPERIMENT='' \
  go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=previous' -o "$directory/manager" ./cmd/manager)
mv "$sources/charts/capstan" "$directory/chart"
# The test compares this list with the current migrations: the previous manager refuses a newer schema.
ls "$sources/internal/store/sqlite/migrations" >"$directory/migrations"
echo "$commit-$2" >"$directory/commit"
