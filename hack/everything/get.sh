#!/usr/bin/env bash
# get.sh: prints the path of the reference MCP server's program, which `node PATH streamableHttp` runs on port
# $PORT. See hack/npm/get.sh.
exec bash "$(dirname "${BASH_SOURCE[0]}")/../npm/get.sh" everything CAPSTAN_MCP_EVERYTHING \
  node_modules/@modelcontextprotocol/server-everything/dist/index.js 18
