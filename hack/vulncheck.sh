#!/usr/bin/env bash
# vulncheck.sh [ARGUMENT...]: looks for known vulnerabilities in the code that the programs call, with the pinned
# govulncheck. The arguments are passed to govulncheck; the default is ./...
#
# It fails if there are findings, or if the code cannot be read. If the database cannot be reached, for example without a
# network, the script prints that nothing was checked, and succeeds. VULNDB is the URL of another database, such as a
# mirror or file:///PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
database=${VULNDB:-https://vuln.go.dev}
[ $# -gt 0 ] || set -- ./...

status=0
output=$(go tool -modfile=hack/tools/vuln/go.mod govulncheck -db "$database" "$@" 2>&1) || status=$?
printf '%s\n' "$output"
case $status in
  0) echo "vulncheck: no known vulnerabilities are called, according to the database $database" ;;
  3)
    echo "vulncheck: the findings above are called: update the modules, or Go, to the versions that are named as fixed" >&2
    exit 1
    ;;
  *)
    # The first message is about Go's own database, the second about any other database.
    if grep -qE '^(govulncheck: fetching vulnerabilities|creating client): ' <<<"$output"; then
      echo "vulncheck: NOT CHECKED: the database $database cannot be reached; set VULNDB to one that can" >&2
      exit 0
    fi
    exit "$status"
    ;;
esac
