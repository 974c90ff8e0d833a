#!/usr/bin/env bash
# Installs what is missing on Debian or Ubuntu, and says what. An ordinary user is told what is
# missing, and may go on: the build and the demo do. Where CI=true a missing prerequisite is an error.
#
#   scripts/setup.sh build|test
set -euo pipefail

mode=${1:-build}
missing=()
reasons=()

need() { # need PACKAGE REASON CHECK...
  local package=$1 reason=$2
  shift 2
  if ! "$@" >/dev/null 2>&1; then
    missing+=("$package")
    reasons+=("$package: $reason")
  fi
}

command_is_there() { command -v "$1"; }
# Sandboxes see the Python of /usr, not one from elsewhere on PATH.
python_has() { /usr/bin/python3 -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

if ! command -v "${GO:-go}" >/dev/null; then
  echo "recluse is built with Go, which is not on PATH: get it from https://go.dev/dl/" >&2
  exit 1
fi

need python3 "the Python that sandboxes see" test -x /usr/bin/python3
need bash "the shell that sandboxes see" test -x /bin/bash
need ca-certificates "downloads" test -e /etc/ssl/certs/ca-certificates.crt
if [ "$mode" = test ]; then
  need gcc "go test -race" command_is_there gcc
  need libc6-dev "go test -race" test -e /usr/include/stdlib.h
  need git "versions" command_is_there git
  need procps "processes, seen from inside" command_is_there ps
  need iproute2 "networks, seen from inside" command_is_there ip
  need systemd "the service" command_is_there systemd-analyze
  need docker.io "containers as sandboxes" command_is_there dockerd
  need podman "containers as sandboxes, by another engine" command_is_there podman
  need poppler-utils "questions about PDF files" command_is_there pdftotext
  need nodejs "clients of the HTTP API and the MCP server" command_is_there node
  need npm "clients of the HTTP API and the MCP server, and coding agents" command_is_there npx
  need python3-numpy "tried inside sandboxes" python_has numpy
  need python3-pandas "tried inside sandboxes" python_has pandas
  need python3-matplotlib "tried inside sandboxes" python_has matplotlib
  need python3-ipython "tried inside sandboxes" python_has IPython
fi

if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "==> installing ${missing[*]}"
  printf '    %s\n' "${reasons[@]}"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if { DEBIAN_FRONTEND=noninteractive apt-get update &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    exit 0
  fi
  tail -n 5 "$log" >&2
  echo "these could not be installed: ${missing[*]}" >&2
else
  echo "these are missing, and installing them takes root on Debian or Ubuntu:" >&2
  printf '    %s\n' "${reasons[@]}" >&2
  echo "    apt-get install -y --no-install-recommends ${missing[*]}" >&2
fi
if [ "${CI:-}" = true ]; then
  exit 1
fi
echo "going on without them" >&2
