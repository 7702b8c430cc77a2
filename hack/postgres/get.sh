#!/usr/bin/env bash
# get.sh: prints the directory of PostgreSQL's server programs (initdb, pg_ctl, postgres, pg_basebackup). Progress goes
# to standard error.
#
# The script tries these sources in order: $CAPSTAN_POSTGRES_BIN, if it contains the programs; pg_config's directory;
# the newest of Debian's directories; PATH; Debian's package postgresql, installed with apt-get. An installation leaves
# no server running, because tests start their own.
set -euo pipefail
programs=(initdb pg_ctl postgres pg_basebackup)
oldest=13 # the oldest version that the tests support
debian=${CAPSTAN_POSTGRES_DEBIAN:-/usr/lib/postgresql}

say() { echo "postgres: $*" >&2; }
complete() {
  local p
  for p in "${programs[@]}"; do [ -x "$1/$p" ] || return 1; done
}
# fits: succeeds if a directory contains the programs in a supported version.
fits() {
  local version
  complete "$1" || return 1
  version=$("$1/postgres" --version | sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*/\1/p')
  [ "${version:-0}" -ge "$oldest" ] || { say "$1 holds PostgreSQL ${version:-of unknown version}, wanted is $oldest or newer"; return 1; }
}
find_programs() {
  local dir
  if dir=$(pg_config --bindir 2>/dev/null) && fits "$dir"; then echo "$dir"; return; fi
  while read -r dir; do
    if fits "$dir"; then echo "$dir"; return; fi
  done < <(printf '%s\n' "$debian"/*/bin | sort -rV)
  # A program in PATH may be a link to the directory with the other programs.
  if dir=$(command -v postgres) && dir=$(dirname "$(readlink -f "$dir")") && fits "$dir"; then echo "$dir"; return; fi
  return 1
}

if [ -n "${CAPSTAN_POSTGRES_BIN:-}" ]; then
  fits "$CAPSTAN_POSTGRES_BIN" && { echo "$CAPSTAN_POSTGRES_BIN"; exit 0; }
  say "CAPSTAN_POSTGRES_BIN=$CAPSTAN_POSTGRES_BIN does not hold ${programs[*]}; unset it or point it to a directory that does"
  exit 1
fi
find_programs && exit 0

other="install PostgreSQL's server ($oldest or newer) by hand, or set CAPSTAN_POSTGRES_BIN to the directory of its programs, or CAPSTAN_TEST_POSTGRES to the URL of a server"
command -v apt-get >/dev/null || { say "there is no PostgreSQL here and no apt-get to install it with: $other"; exit 1; }
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { say "there is no PostgreSQL here, and only root can install it: $other"; exit 1; }
  as_root=(sudo)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >&2; }

say "installing Debian's package postgresql"
before=$(pg_lsclusters -h 2>/dev/null | awk '{print $1 "/" $2}' || true)
apt install -y --no-install-recommends postgresql || { apt update && apt install -y --no-install-recommends postgresql; } ||
  { say "apt-get could not install it: $other"; exit 1; }
# The package creates a cluster and starts it on the default port. Remove it, because it was not requested.
while read -r version name _; do
  grep -qxF "$version/$name" <<<"$before" || "${as_root[@]}" pg_dropcluster --stop "$version" "$name" >&2
done < <(pg_lsclusters -h)
find_programs || { say "the package holds no server that will do: $other"; exit 1; }
