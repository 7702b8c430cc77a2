#!/usr/bin/env bash
# check.sh [REVISION [FLAG...]]: prints what the files here change in the prompts of agents/, compared with a revision of
# Git (default: origin/main). It renders each Turn of checks/ before and after the change. It needs capstan and git, and
# no cluster. FLAGs are passed to capstan render, for example -o json.
#
# Exit codes, as of capstan render --diff: 0 if the prompts are the same, 2 if at least one differs or is new, 1 after an
# error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
revision=${1:-origin/main}
shift $(($# > 0))
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
git archive --format=tar "$revision" agents | tar -xf - -C "$old" || {
  echo "check.sh: the revision $revision has no folder agents here: fetch it, or name another one" >&2
  exit 1
}
status=0
failed=0
for turn in checks/*.yaml; do
  code=0
  capstan render -f agents -f "$turn" --diff "$old/agents" "$@" 2>"$old/errors" || code=$?
  # The Agent of a new check may be new, too. Then there is no prompt to compare with, and the new prompt is printed.
  if [ $code = 1 ] && ! git cat-file -e "$revision:./$turn" 2>/dev/null; then
    code=2
    capstan render -f agents -f "$turn" "$@" 2>"$old/errors" || code=1
  fi
  cat "$old/errors" >&2
  case $code in
    0) ;;
    2) status=2 ;;
    *) failed=1 ;; # the other checks still show their prompts
  esac
done
[ $failed = 0 ] || exit 1
exit $status
