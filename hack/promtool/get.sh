#!/usr/bin/env bash
# get.sh: prints the path of promtool, which checks and tests alerts. Progress goes to standard error.
#
# The script tries these sources in order: $CAPSTAN_PROMTOOL, if it is a program; PATH; the program that an earlier
# call has kept; promtool from Debian's package prometheus, which is unpacked and not installed. The program is kept under
# $CAPSTAN_CACHE, otherwise in the user's cache directory.
set -euo pipefail
say() { echo "promtool: $*" >&2; }

if [ -n "${CAPSTAN_PROMTOOL:-}" ]; then
  [ -x "$CAPSTAN_PROMTOOL" ] && { echo "$CAPSTAN_PROMTOOL"; exit 0; }
  say "CAPSTAN_PROMTOOL=$CAPSTAN_PROMTOOL is no program; unset it or point it to promtool"
  exit 1
fi
command -v promtool && exit 0
cache=${CAPSTAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/capstan}/promtool
[ -x "$cache/promtool" ] && { echo "$cache/promtool"; exit 0; }

other="install Prometheus' promtool by hand, into PATH or as CAPSTAN_PROMTOOL"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { say "there is no promtool here and no apt-get to get it with: $other"; exit 1; }
mkdir -p "$cache"
tmp=$(mktemp -d "$cache/get.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
say "taking it from Debian's package prometheus"
(cd "$tmp" && apt-get -q download prometheus && dpkg-deb -x prometheus_*.deb .) >&2 || { say "apt-get could not download it (try apt-get update): $other"; exit 1; }
mv "$tmp/usr/bin/promtool" "$cache/promtool"
echo "$cache/promtool"
