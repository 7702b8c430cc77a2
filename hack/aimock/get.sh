#!/usr/bin/env bash
# get.sh: prints the path of the program of aimock, a third-party mock of the APIs of many model services. `node PATH
# --port 4010 --fixtures FILE` runs it. See hack/npm/get.sh.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../npm/get.sh" aimock CAPSTAN_AIMOCK node_modules/@copilotkit/aimock/dist/cli.js 20
