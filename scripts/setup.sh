#!/usr/bin/env bash
# Installs missing packages on Debian or Ubuntu, and lists them. For an ordinary user it only lists
# them and succeeds, because the build and the demo work without most of them. With CI=true, a missing
# package is an error.
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

has_command() { command -v "$1"; }
# Sandboxes use the Python in /usr, not another one on PATH.
python_has() { /usr/bin/python3 -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

if ! command -v "${GO:-go}" >/dev/null; then
  echo "Go, which builds recluse, is not on PATH: install it from https://go.dev/dl/" >&2
  exit 1
fi

need python3 "Python in sandboxes" test -x /usr/bin/python3
need bash "shell in sandboxes" test -x /bin/bash
need ca-certificates "downloads" test -e /etc/ssl/certs/ca-certificates.crt
if [ "$mode" = test ]; then
  need gcc "go test -race" has_command gcc
  need libc6-dev "go test -race" test -e /usr/include/stdlib.h
  need git "version of the build" has_command git
  need procps "tests that list processes in sandboxes" has_command ps
  need iproute2 "tests of the network in sandboxes" has_command ip
  need systemd "tests of the systemd service" has_command systemd-analyze
  need docker.io "tests of the docker backend" has_command dockerd
  need qemu-system-x86 "tests of the vm backend" has_command qemu-system-x86_64
  need squashfs-tools "tests of the vm backend" has_command mksquashfs
  need mmdebstrap "tests of the vm backend" has_command mmdebstrap
  need podman "tests of the docker backend with Podman" has_command podman
  need poppler-utils "tests of PDF files as context" has_command pdftotext
  need chromium "tests of the HTML page of a run" has_command chromium
  need openssh-server "tests of real programs in sandboxes" test -x /usr/sbin/sshd
  need postgresql "tests of real programs in sandboxes" has_command psql
  need xfsprogs "tests of disks on a file system with reflink" test -x /usr/sbin/mkfs.xfs
  need btrfs-progs "tests of a Docker engine that limits disks" test -x /usr/sbin/mkfs.btrfs
  need e2fsprogs "tests of volumes, and of the vm backend" test -x /usr/sbin/mke2fs
  need redis "tests of real programs in sandboxes" has_command redis-server
  need nodejs "tests of the HTTP API and the MCP server" has_command node
  need npm "tests of the HTTP API, the MCP server and coding agents" has_command npx
  need python3-numpy "tests in sandboxes" python_has numpy
  need python3-pandas "tests in sandboxes" python_has pandas
  need python3-matplotlib "tests in sandboxes" python_has matplotlib
  need python3-ipython "tests in sandboxes" python_has IPython
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
  echo "these packages could not be installed: ${missing[*]}" >&2
else
  echo "these packages are missing; installing them requires root on Debian or Ubuntu:" >&2
  printf '    %s\n' "${reasons[@]}" >&2
  echo "    apt-get install -y --no-install-recommends ${missing[*]}" >&2
fi
if [ "${CI:-}" = true ]; then
  exit 1
fi
echo "continuing without them" >&2
