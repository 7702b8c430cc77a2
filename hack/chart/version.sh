#!/usr/bin/env bash
# version.sh check: fails if the chart has changed since the last change of its version.
#
# version.sh bump: raises the last number of the version, and keeps the old values.yaml for the tests of upgrades, unless
# an earlier version had the same values.
#
# version.sh previous: prints the last commit before the newest change of the chart's values or templates. A version with
# only other descriptions would prove nothing about an upgrade.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
chart=charts/capstan
version=$(sed -n 's/^version: //p' $chart/Chart.yaml)

case ${1:-} in
check)
  [ "$(git show HEAD:$chart/Chart.yaml 2>/dev/null | sed -n 's/^version: //p')" = "$version" ] || exit 0 # the version changes with the next commit
  since=$(git log -1 --format=%H -G '^version: ' -- $chart/Chart.yaml)
  if ! git diff --stat --exit-code "${since:-HEAD}" -- $chart; then
    echo "version.sh: the chart has changed since it got the version $version: run 'bash hack/chart/version.sh bump'" >&2
    exit 1
  fi
  ;;
bump)
  earlier=charts/testdata/earlier/$version.yaml
  git show HEAD:$chart/values.yaml | sed -e '/^ *#/d' -e '/^$/d' >"$earlier"
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
  if ! git diff --quiet HEAD -- $chart/values.yaml $chart/templates; then
    git rev-parse HEAD # they change with the next commit
  else
    git rev-parse --verify --quiet "$(git log -1 --format=%H -- $chart/values.yaml $chart/templates)^" ||
      { echo "version.sh: the history does not reach back to the chart before $version: fetch the whole history (git fetch --unshallow)" >&2; exit 1; }
  fi
  ;;
*)
  echo "version.sh: want check, bump or previous" >&2
  exit 2
  ;;
esac
