#!/bin/sh
# Runs a private Docker engine for tests, with its own socket, data and network settings. Other engines are not touched.
#
#   docker-engine.sh install             install the Docker engine from Debian's packages
#   docker-engine.sh start DIR [RUNSC]   start an engine in DIR, print its address; RUNSC: program of its runtimes
#                                        "runsc" and, without raw sockets, "runsc-plain"
#   docker-engine.sh stop DIR            stop the engine and remove DIR
#
# Exit status 3: the machine has no Docker engine, or this user may not install or start it.
set -eu

die() {
	echo "docker-engine.sh: $2" >&2
	exit "$1"
}

# answers DIR: reports whether the engine in DIR answers.
answers() { docker -H "unix://$1/docker.sock" version >/dev/null 2>&1; }

verb=${1:-}
dir=${2:-}

case $verb in
install)
	command -v dockerd >/dev/null && exit 0
	[ "$(id -u)" = 0 ] || die 3 "only root can install the Docker engine"
	command -v apt-get >/dev/null || die 3 "apt-get not found: install Docker Engine in the way of your system"
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends docker.io
	;;
start)
	[ -n "$dir" ] || die 2 "missing DIR"
	command -v dockerd >/dev/null || die 3 "dockerd not found: run $0 install"
	[ "$(id -u)" = 0 ] || die 3 "only root can start a Docker engine"
	mkdir -p "$dir"
	dir=$(cd "$dir" && pwd)
	runtimes=
	[ -z "${3:-}" ] || runtimes="\"runsc\": {\"path\": \"$3\", \"runtimeArgs\": [\"--net-raw\", \"--in-sandbox-cgroup=v2\"]}, \"runsc-plain\": {\"path\": \"$3\"}"
	# No bridge and no firewall rules, so that the network of the machine is not changed.
	cat >"$dir/daemon.json" <<-JSON
		{
		  "data-root": "$dir/data", "exec-root": "$dir/exec", "pidfile": "$dir/pid", "hosts": ["unix://$dir/docker.sock"],
		  "bridge": "none", "iptables": false, "ip-forward": false, "runtimes": {$runtimes}
		}
	JSON
	# Its own process session: an interrupt at the terminal is for the tests, which then stop the engine.
	setsid dockerd --config-file "$dir/daemon.json" >"$dir/log" 2>&1 </dev/null &
	pid=$!
	n=0
	until answers "$dir"; do
		kill -0 "$pid" 2>/dev/null || die 1 "the Docker engine did not start: $(tail -n 3 "$dir/log")"
		n=$((n + 1))
		[ "$n" -lt 300 ] || die 1 "the Docker engine does not answer: $(tail -n 3 "$dir/log")"
		sleep 0.1
	done
	echo "unix://$dir/docker.sock"
	;;
stop)
	[ -f "$dir/daemon.json" ] || die 2 "no Docker engine was started in '$dir'"
	dir=$(cd "$dir" && pwd)
	if answers "$dir"; then
		for c in $(docker -H "unix://$dir/docker.sock" ps -aq); do
			docker -H "unix://$dir/docker.sock" rm -f "$c" >/dev/null 2>&1 || true
		done
	fi
	if [ -f "$dir/pid" ]; then
		pid=$(cat "$dir/pid")
		kill "$pid" 2>/dev/null || true
		n=0
		while kill -0 "$pid" 2>/dev/null && [ "$n" -lt 200 ]; do
			n=$((n + 1))
			sleep 0.1
		done
		kill -9 "$pid" 2>/dev/null || true
	fi
	# The shim of a container that could not be killed waits forever.
	for c in $(grep -lsaF "containerd-shim" /proc/[0-9]*/cmdline); do
		grep -qsaF "$dir/exec/containerd/containerd.sock" "$c" && kill -9 "$(basename "$(dirname "$c")")" 2>/dev/null || true
	done
	# Mounts that a killed engine has left prevent the removal of the directory.
	grep -o " $dir/[^ ]*" /proc/self/mountinfo 2>/dev/null | sort -r | while read -r m; do umount -l "$m" 2>/dev/null || true; done
	rm -rf "$dir"
	;;
*)
	sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
