#!/usr/bin/env bash
# verify.sh: fails if a generated file is out of date, and prints its name.
#
# It generates into a copy of the tree, so that a failed check leaves the working tree unchanged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do
  if [ -e "$f" ]; then printf '%s\0' "$f"; fi
done | tar --null -cf - -T - | tar -xf - -C "$work"
(
  cd "$work"
  git init -q .
  git add -A
  git -c user.name=verify -c user.email=verify@localhost -c commit.gpgsign=false commit -qm before
  make -s generate
  # In parallel: hashing all modules takes half a minute of CPU time.
  printf '%s\n' hack/controlplane hack/e2e/coredns hack/release test/collector test/gitops hack/tools/{dev,lint,helm,sbom,vuln} |
    xargs -P "$(getconf _NPROCESSORS_ONLN)" -I{} sh -c 'cd "$1" && go mod verify >/dev/null && go mod download >/dev/null' sh {}
  git add -A
  if ! git diff --cached --exit-code --stat HEAD; then
    echo "verify: the files above are not current: run 'make generate' and commit what it changes" >&2
    exit 1
  fi
)
echo "verify: everything generated is current"
