#!/usr/bin/env bash
# get.sh NAME VARIABLE ENTRY OLDEST: prints the path of an npm program that the tests run with node. Progress goes to
# standard error. hack/NAME/package-lock.json has the version of the program, ENTRY is the path of the program within the
# installed packages, and OLDEST is the oldest major version of node that the program supports.
#
# The script tries these sources in order: the environment variable VARIABLE, if it is the path of a file; the program
# that an earlier call has kept; npm, with package-lock.json. It uses node from PATH if it is new enough, or installs
# Debian's packages nodejs and npm with apt-get.
#
# The program is kept under $CAPSTAN_CACHE, otherwise in the user's cache directory.
set -euo pipefail
name=$1 variable=$2 entry=$3 oldest=$4
directory=$(cd "$(dirname "${BASH_SOURCE[0]}")/../$name" && pwd)

say() { echo "$name: $*" >&2; }

if [ -n "${!variable:-}" ]; then
  [ -f "${!variable}" ] && { echo "${!variable}"; exit 0; }
  say "$variable=${!variable} is not a file; unset it or point it to the program's ${entry##*/}"
  exit 1
fi

# has_node: succeeds if PATH contains a node that is new enough.
has_node() {
  local version
  version=$(node --version 2>/dev/null | sed -n 's/^v\([0-9]*\).*/\1/p')
  [ "${version:-0}" -ge "$oldest" ]
}
install_packages() {
  local other="install node $oldest or newer, with npm, by hand"
  command -v apt-get >/dev/null || { say "there is no node $oldest with npm here and no apt-get to install it with: $other"; exit 1; }
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "there is no node $oldest with npm here, and only root can install it: $other"; exit 1; }
    as_root=(sudo)
  fi
  apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >&2; }
  say "installing Debian's packages $*"
  apt install -y --no-install-recommends "$@" || { apt update && apt install -y --no-install-recommends "$@"; } ||
    { say "apt-get could not install them: $other"; exit 1; }
}
has_node || install_packages nodejs npm
has_node || { say "the node in PATH is $(node --version 2>/dev/null || echo missing), want $oldest or newer"; exit 1; }

key=$(cat "$directory/package.json" "$directory/package-lock.json" | git hash-object --stdin | cut -c1-12)
cache=${CAPSTAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/capstan}/$name
dir=$cache/$key
[ -f "$dir/$entry" ] && { echo "$dir/$entry"; exit 0; }
mkdir -p "$cache"

# Only one call at a time fills the cache. A second call waits and then finds the program.
exec 9>"$cache/.lock"
if command -v flock >/dev/null; then flock 9; fi
[ -f "$dir/$entry" ] && { echo "$dir/$entry"; exit 0; }
command -v npm >/dev/null || install_packages npm

say "installing it with npm"
tmp=$(mktemp -d "$cache/install.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
cp "$directory/package.json" "$directory/package-lock.json" "$tmp"
(cd "$tmp" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) >&2 9>&- ||
  { say "npm could not install it: see above; its registry must be within reach"; exit 1; }
[ -f "$tmp/$entry" ] || { say "npm has installed no $entry"; exit 1; }
rm -rf "$dir"
mv "$tmp" "$dir"
say "kept in $dir"
echo "$dir/$entry"
