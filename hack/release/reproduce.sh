#!/usr/bin/env bash
# reproduce.sh VERSION DIST: builds the checked-out commit again in another directory, and fails if any file of the
# release in DIST differs. IMAGE_PLATFORMS, CLI_PLATFORMS and BUILDER must be the values of the release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=$1 dist=$(realpath "$2")
[ -f "$dist/checksums.txt" ] || { echo "reproduce: $2 has no release: run make release VERSION=v$version" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone -q . "$work/capstan"
make -s -C "$work/capstan" release VERSION="$version" DIST=dist >/dev/null
if ! diff "$dist/checksums.txt" "$work/capstan/dist/checksums.txt"; then
  echo "reproduce: the second build differs: the lines with < are from the release, and the lines with > from the second build" >&2
  exit 1
fi
echo "reproduce: the second build gives the same $(wc -l <"$dist/checksums.txt") files"
