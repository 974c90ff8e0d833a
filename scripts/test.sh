#!/usr/bin/env bash
# Runs the tests of a tier and prints the ten slowest packages and tests. docs/DEVELOPMENT.md describes the tiers.
#
#   scripts/test.sh check|test|all
#
# The Makefile calls it with RECLUSE_BIN, RECLUSE_ENGINE, RECLUSE_GUEST and GOTESTSUM set.
set -euo pipefail
cd "$(dirname "$0")/.."

tier=${1:?missing tier: check, test or all}
: "${GOTESTSUM:?missing path of the gotestsum program}"
results=$(mktemp -d)
engine=

finish() {
	status=$?
	[ ! -e "$results/failed" ] || status=1
	jobs -p | xargs -r kill 2>/dev/null || true
	[ -z "$engine" ] || scripts/docker-engine.sh stop "$engine" || status=1
	slowest || true
	rm -rf "$results"
	exit "$status"
}

# slowest prints the slowest packages and tests. The result of a package is the JSON event without the name of a test.
slowest() {
	cat "$results"/*.json >"$results/all" 2>/dev/null || return 0
	echo "==> the ten slowest packages"
	grep -E '"Action":"(pass|fail)"' "$results/all" | grep -v '"Test":' |
		sed -E 's/.*"Package":"([^"]*)".*"Elapsed":([0-9.]+).*/\2 \1/' | sort -rn | head -10 | awk '{ printf "    %7.1f s  %s\n", $1, $2 }'
	echo "==> the ten slowest tests"
	grep -E '"Action":"(pass|fail)"' "$results/all" |
		sed -nE 's/.*"Package":"([^"]*)","Test":"([^"\/]*)","Elapsed":([0-9.]+).*/\3 \1 \2/p' | sort -rn | head -10 | awk '{ printf "    %7.1f s  %s %s\n", $1, $2, $3 }'
}

# pass NAME ARGS...: runs go test once. The next pass runs even if this one fails.
pass() {
	local name=$1
	shift
	echo "==> $name"
	# The linters have run vet. Linking eighty test programs without debug information saves two minutes of processor
	# time.
	"$GOTESTSUM" --format pkgname-and-test-fails --hide-summary=skipped --jsonfile "$results/${name// /-}.json" -- \
		-count=1 -vet=off -ldflags='-s -w' "$@" || touch "$results/failed"
}

# docker starts one Docker engine for all packages that need one.
docker() {
	# Without a Docker engine, the tests report what is missing, and fail in CI.
	command -v dockerd >/dev/null && [ "$(id -u)" = 0 ] || return 0
	engine=$(mktemp -d /tmp/recluse-docker-XXXXXX)
	RECLUSE_TEST_DOCKER_HOST=$(scripts/docker-engine.sh start "$engine" "$RECLUSE_ENGINE")
	export RECLUSE_TEST_DOCKER_HOST RECLUSE_TEST_DOCKER_OWNED=true
}

# By default, a program with the race detector sleeps for a second before it exits. Races that show only then are not
# worth a minute of test time.
export GORACE="atexit_sleep_ms=50 ${GORACE:-}"

trap finish EXIT
case $tier in
check)
	# Tests of the feature suite mostly wait, so more of them run at once than there are processors. The longest
	# packages start first.
	pass "unit tests, and the feature suite on local" -race -short -p=4 -parallel=4 ./sandbox/local ./cmd/recluse ./...
	;;
test)
	# The race detector is used for backends, sessions and the unit tests. It doubles the work of tests that use HTTP or
	# start programs, so these use it only in make test-all. Attacks load the whole machine and measure how fast others
	# answer meanwhile, so they run alone.
	programs='/(cmd/recluse|test/install|test/mcp|test/openapi|test/agents)$'
	callers='/(rlm|client|internal/server|internal/mcp)$'
	alone='/(sandbox/docker|sandbox/vm|test/attack)$'
	again='^(TestOnDocker|TestAsOrdinaryUser|TestBackendSuiteAsOrdinaryUser)$'
	longest='./sandbox/gvisor ./session ./sandbox/local' # they start first, so that none runs alone at the end
	mapfile -t most < <({ go list $longest; go list ./...; } | awk '!seen[$0]++' | grep -vE "$programs|$callers|$alone")
	mapfile -t rest < <(go list ./... | grep -E "$programs|$callers|$alone")
	docker
	{ # tests of containers mostly wait for the Docker engine, so they run in parallel with the other passes
		pass "containers" -timeout=20m -p=1 -parallel=4 ./sandbox/docker
		pass "sessions in containers, an ordinary user" -timeout=20m -p=2 -run="$again" ./session ./sandbox/gvisor
		pass "virtual machines" -timeout=20m ./sandbox/vm
	} >"$results/background" 2>&1 &
	pass "gVisor and unit tests" -race -timeout=20m -p=2 -parallel=4 -skip="$again" "${most[@]}"
	pass "unit tests of the rest" -race -short -p=4 -parallel=4 "${rest[@]}"
	pass "HTTP, the command line, and third-party programs" -timeout=20m -p=2 -parallel=4 \
		./cmd/recluse ./rlm ./internal/server ./client ./test/mcp ./internal/mcp ./test/agents ./test/install ./test/openapi
	wait
	cat "$results/background"
	pass "attacks" -timeout=20m -parallel=3 ./test/attack
	;;
all)
	export RECLUSE_TEST_ALL=true
	docker
	alone='/(sandbox/docker|sandbox/vm|test/attack)$'
	mapfile -t most < <({ go list ./session ./cmd/recluse ./sandbox/gvisor; go list ./...; } | awk '!seen[$0]++' | grep -vE "$alone")
	pass "every test on every backend" -race -timeout=60m -p=2 "${most[@]}"
	pass "every test of containers" -race -timeout=60m ./sandbox/docker
	pass "every test of virtual machines" -timeout=60m ./sandbox/vm
	pass "every attack on every backend" -race -timeout=60m ./test/attack
	;;
kvm)
	export RECLUSE_TEST_ALL=true
	if [[ ! -r /dev/kvm || ! -w /dev/kvm ]]; then
		echo "scripts/test.sh: /dev/kvm cannot be opened; these tests need a machine with KVM" >&2
		exit 2
	fi
	found=
	for monitor in qemu firecracker cloud-hypervisor; do
		program=${monitor/#qemu/qemu-system-x86_64}
		if ! command -v "$program" >/dev/null; then
			echo "not run: $program is not on PATH"
			continue
		fi
		found=yes
		RECLUSE_TEST_MONITOR=$monitor pass "every test of virtual machines with KVM on $monitor" -timeout=60m ./sandbox/vm
	done
	[[ $found ]] || exit 2
	;;
*)
	echo "scripts/test.sh: unknown tier '$tier': check, test, all or kvm" >&2
	exit 2
	;;
esac
