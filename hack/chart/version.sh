#!/usr/bin/env bash
# version.sh check: fails if the chart has changed since the last change of its version.
#
# version.sh bump: raises the last number of the version, and keeps the values.yaml that the old version had at first for
# the tests of upgrades, unless an earlier version had the same values.
#
# version.sh previous: prints the last commit before the newest change of the chart's values or objects. A change of
# comments or NOTES does not count: a version with only other texts would prove nothing about an upgrade.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
chart=charts/capstan
version=$(sed -n 's/^version: //p' $chart/Chart.yaml)
# since prints the commit that gave the chart its version.
since() { git log -1 --format=%H -G '^version: ' -- $chart/Chart.yaml; }

case ${1:-} in
check)
  [ "$(git show HEAD:$chart/Chart.yaml 2>/dev/null | sed -n 's/^version: //p')" = "$version" ] || exit 0 # the version changes with the next commit
  commit=$(since)
  if ! git diff --stat --exit-code "${commit:-HEAD}" -- $chart; then
    echo "version.sh: the chart has changed since it got the version $version: run 'bash hack/chart/version.sh bump'" >&2
    exit 1
  fi
  ;;
bump)
  earlier=charts/testdata/earlier/$version.yaml
  commit=$(since)
  git show "${commit:-HEAD}:$chart/values.yaml" | sed -e '/^ *#/d' -e '/^$/d' >"$earlier"
  for known in charts/testdata/earlier/*.yaml; do
    if [ "$known" != "$earlier" ] && cmp -s "$known" "$earlier"; then
      rm "$earlier"
      break
    fi
  done
  sed -i.bak "s/^version: .*/version: ${version%.*}.$((${version##*.} + 1))/" $chart/Chart.yaml
  rm $chart/Chart.yaml.bak
  grep '^version: ' $chart/Chart.yaml
  ;;
previous)
  given=("$chart/values.yaml" "$chart/templates" ":(exclude)$chart/templates/NOTES.txt")
  # changed COMMIT: the values or templates are not those of the commit. Comments and empty lines do not count.
  changed() { [ -n "$(git diff --no-color -I '^[[:space:]]*#' -I '^[{][{]-? ?/[*].*[*]/' --ignore-blank-lines "$1" -- "${given[@]}")" ]; }
  for commit in HEAD $(git log --format='%H^' -- "${given[@]}"); do
    if git rev-parse --verify --quiet "$commit" >/dev/null && changed "$commit"; then
      git rev-parse "$commit"
      exit
    fi
  done
  echo "version.sh: the history does not reach back to the chart before $version: fetch the whole history (git fetch --unshallow)" >&2
  exit 1
  ;;
*)
  echo "version.sh: want check, bump or previous" >&2
  exit 2
  ;;
esac
