# recluse. Every target installs its own prerequisites (scripts/setup.sh).
#
#   make build     build bin/recluse, one file that contains the engine and the guest
#   make demo      build, and run a demonstration
#   make check     format, linters, unit tests and the feature suite on local: before each commit
#   make test      linters, cross-compilation, and tests of every backend with real sandboxes
#   make test-all  the same with every combination of tests and backends
#   make test-kvm  tests of virtual machines with KVM, on each monitor that is installed
#   make test-live a short test of each cloud backend whose key is in the environment; it costs a few cents
#   make lint      only the linters
#   make generate  generate the Go code of wire.proto and of the protocols of services
#   make notices   generate THIRD_PARTY_NOTICES.txt, the licenses of all linked modules
#   make bench     measure the figures, each next to its baseline
#   make desktop   build bin/recluse-* for macOS and Windows, with the guests, for Docker Desktop
#   make install   install bin/recluse in PREFIX/bin (default /usr/local)
#   make clean     remove everything that was built

SHELL         := /bin/bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

GO     ?= go
PREFIX ?= /usr/local

GOLANGCI_LINT := 2.14.0
GOTESTSUM     := 1.13.0
PROTOC        := 3.21.12
PROTOC_GEN_GO := 1.36.12

# Not -buildvcs, because git fails if the working tree belongs to another user than the one who builds.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)

OUT   := .cache/build
TOOLS := $(CURDIR)/.cache/bin

# The build is reproducible: sandboxes and snapshots record their engine and guest by hash, so the same sources must
# have the same hash.
STATIC := CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath -buildvcs=false -ldflags='-s -w'
STATIC_ENGINE = CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath -buildvcs=false \
	-ldflags="-s -w -X gvisor.dev/gvisor/runsc/version.version=$$($(GO) list -m -f '{{.Version}}' gvisor.dev/gvisor)"

# Tests use these programs, independent of their working directory.
WITH_PROGRAMS := RECLUSE_ENGINE=$(CURDIR)/$(OUT)/recluse-engine RECLUSE_GUEST=$(CURDIR)/$(OUT)/recluse-guest

# scripts/test.sh runs the tests of a tier. docs/DEVELOPMENT.md describes the tiers.
RUN_TESTS = RECLUSE_BIN=$(CURDIR)/bin/recluse $(WITH_PROGRAMS) GOTESTSUM=$(TOOLS)/gotestsum-$(GOTESTSUM) scripts/test.sh

BUNDLE := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -tags bundle -ldflags='-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)'

# Programs that are embedded in recluse: on Linux the engine and the guest, on other systems the guests for all
# architectures of Docker engines.
GUESTS := $(OUT)/amd64/recluse-guest $(OUT)/arm64/recluse-guest
PACKED := $(if $(filter linux,$(shell $(GO) env GOOS)),pack,pack-guests)

.PHONY: build
build: setup-build $(PACKED)
	@echo "==> building bin/recluse"
	@$(BUNDLE) -o bin/recluse ./cmd/recluse
	@ls -l bin/recluse | awk '{ printf "    bin/recluse: %.1f MB\n", $$5 / 1e6 }'

# Programs for macOS and Windows, which use Docker Desktop.
.PHONY: desktop
desktop: setup-build pack-guests
	@for to in darwin/arm64 darwin/amd64 windows/amd64 windows/arm64; do \
		os=$${to%/*} arch=$${to#*/} ext=; [ $$os = windows ] && ext=.exe; \
		echo "==> building bin/recluse-$$os-$$arch$$ext"; \
		GOOS=$$os GOARCH=$$arch $(BUNDLE) -o bin/recluse-$$os-$$arch$$ext ./cmd/recluse; \
	done

.PHONY: pack pack-guests
pack: $(OUT)/recluse-engine $(OUT)/recluse-guest
	@echo "==> packing engine and guest"
	@$(GO) run ./internal/bundle/pack internal/bundle/files $^
pack-guests: $(GUESTS)
	@echo "==> packing guests"
	@$(GO) run ./internal/bundle/pack internal/bundle/guests $^

# The engine contains only gVisor and a few files of ours, so it is rebuilt only if these or go.mod change.
$(OUT)/recluse-engine: go.mod go.sum $(wildcard cmd/recluse-engine/*.go)
	@echo "==> building the engine (gVisor; one to three minutes the first time)"
	@mkdir -p $(OUT)
	@$(STATIC_ENGINE) -o $@ ./cmd/recluse-engine

.PHONY: $(OUT)/recluse-guest $(GUESTS)
$(OUT)/recluse-guest:
	@echo "==> building the guest"
	@mkdir -p $(OUT)
	@$(STATIC) -o $@ ./cmd/recluse-guest
$(GUESTS): $(OUT)/%/recluse-guest:
	@echo "==> building the guest for $*"
	@mkdir -p $(@D)
	@GOARCH=$* $(STATIC) -o $@ ./cmd/recluse-guest

.PHONY: demo
demo: build
	@bin/recluse demo

.PHONY: check test test-all test-kvm test-live
check: lint $(OUT)/recluse-engine $(OUT)/recluse-guest $(TOOLS)/gotestsum-$(GOTESTSUM)
	@$(RUN_TESTS) check

test: setup-test lint cross build $(TOOLS)/gotestsum-$(GOTESTSUM)
	@$(RUN_TESTS) test

test-all: setup-test lint cross build $(TOOLS)/gotestsum-$(GOTESTSUM)
	@$(RUN_TESTS) all

test-kvm: setup-test build $(TOOLS)/gotestsum-$(GOTESTSUM)
	@$(RUN_TESTS) kvm

test-live: setup-test build
	@$(WITH_PROGRAMS) RECLUSE_TEST_LIVE=true $(GO) test -v -count=1 -timeout=30m -run '^TestLive$$' \
		./sandbox/e2b ./sandbox/modal ./sandbox/prime

.PHONY: lint
lint: setup-build $(TOOLS)/golangci-lint-$(GOLANGCI_LINT)
	@echo "==> vet and linters"
	@$(GO) vet ./...
	@$(TOOLS)/golangci-lint-$(GOLANGCI_LINT) run ./...

# Cross-compilation: all packages for other systems, with the embedded guests and without them, as users of the library
# build it; and our programs for the other processor. A Mac is arm64, a PC usually amd64. go list compiles without
# linking, which saves a minute; make desktop also links.
COMPILE := CGO_ENABLED=0 $(GO) list -export -f '{{if .Error}}{{.Error}}{{end}}'
.PHONY: cross
cross: setup-build pack-guests
	@for to in darwin/arm64 windows/amd64; do \
		echo "==> compiling for $$to"; \
		export GOOS=$${to%/*} GOARCH=$${to#*/}; \
		$(COMPILE) -tags bundle ./...; \
		$(COMPILE) ./...; \
	done
	@echo "==> compiling for linux/arm64"
	@GOOS=linux GOARCH=arm64 $(COMPILE) ./cmd/...

.PHONY: bench
bench: setup-test $(OUT)/recluse-engine $(OUT)/recluse-guest
	@$(WITH_PROGRAMS) $(GO) run ./bench $(BENCHFLAGS)

.PHONY: install
install: build
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 0755 bin/recluse $(DESTDIR)$(PREFIX)/bin/recluse

.PHONY: clean
clean:
	rm -rf bin $(OUT) internal/bundle/{files,guests}/{*.zst,manifest.json}

.PHONY: setup-build setup-test
setup-build:
	@scripts/setup.sh build
setup-test:
	@scripts/setup.sh test

# The file name of a tool contains its version, so that a new version is a new file.
$(TOOLS)/golangci-lint-$(GOLANGCI_LINT):
	@echo "==> installing golangci-lint $(GOLANGCI_LINT) (a few minutes, once)"
	@GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT)
	@mv $(TOOLS)/golangci-lint $@

$(TOOLS)/gotestsum-$(GOTESTSUM):
	@echo "==> installing gotestsum $(GOTESTSUM)"
	@GOBIN=$(TOOLS) $(GO) install gotest.tools/gotestsum@v$(GOTESTSUM)
	@mv $(TOOLS)/gotestsum $@

# protoc comes from Debian. Another version would change the header of the generated file.
.PHONY: generate
generate: $(TOOLS)/protoc-gen-go-$(PROTOC_GEN_GO)
	@command -v protoc >/dev/null || apt-get install -y protobuf-compiler
	@test "$$(protoc --version)" = "libprotoc $(PROTOC)" || { echo "protoc $(PROTOC) is required, but this is $$(protoc --version)" >&2; exit 1; }
	@protoc -I internal/guest/wire --plugin=protoc-gen-go=$< --go_out=internal/guest/wire --go_opt=paths=source_relative wire.proto
	@protoc -I internal/e2b/wire --plugin=protoc-gen-go=$< --go_out=internal/e2b/wire --go_opt=paths=source_relative process.proto filesystem.proto
	@protoc -I sandbox/prime/wire --plugin=protoc-gen-go=$< --go_out=sandbox/prime/wire --go_opt=paths=source_relative command_session.proto

$(TOOLS)/protoc-gen-go-$(PROTOC_GEN_GO):
	@echo "==> installing protoc-gen-go $(PROTOC_GEN_GO)"
	@GOBIN=$(TOOLS) $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@v$(PROTOC_GEN_GO)
	@mv $(TOOLS)/protoc-gen-go $@

.PHONY: notices
notices: setup-build
	@$(GO) run ./scripts/notices THIRD_PARTY_NOTICES.txt
