# recluse: every target does its own set-up.
#
#   make build     one file, bin/recluse, with the engine and the guest in it
#   make demo      set-up, build, and a visible first result
#   make check     format, linters, unit tests and the feature suite on local: before each commit
#   make test      set-up, linters, cross-compilation, and tests of every backend on the real thing
#   make test-all  the same with every combination of tests and backends
#   make lint      the linters alone
#   make generate  Go code of the wire protocol, from wire.proto
#   make notices   THIRD_PARTY_NOTICES.txt, the licenses of what the programs link
#   make bench     the figures, each beside its baseline
#   make desktop   bin/recluse-* for macOS and Windows, with the guests in them, for Docker Desktop
#   make install   bin/recluse into PREFIX/bin (default /usr/local)
#   make clean     remove what was built

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

# The tree may belong to another user than the one who builds, and then git refuses to speak: so not -buildvcs.
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)

OUT   := .cache/build
TOOLS := $(CURDIR)/.cache/bin

# Reproducible: the same sources give the same hash, by which sandboxes and snapshots remember their engine and guest.
STATIC := CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath -buildvcs=false -ldflags='-s -w'
STATIC_ENGINE = CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath -buildvcs=false \
	-ldflags="-s -w -X gvisor.dev/gvisor/runsc/version.version=$$($(GO) list -m -f '{{.Version}}' gvisor.dev/gvisor)"

# Tests use the programs that were just built, wherever the tests run from.
WITH_PROGRAMS := RECLUSE_ENGINE=$(CURDIR)/$(OUT)/recluse-engine RECLUSE_GUEST=$(CURDIR)/$(OUT)/recluse-guest

# scripts/test.sh runs a tier; docs/DEVELOPMENT.md says what is in each.
RUN_TESTS = RECLUSE_BIN=$(CURDIR)/bin/recluse $(WITH_PROGRAMS) GOTESTSUM=$(TOOLS)/gotestsum-$(GOTESTSUM) scripts/test.sh

BUNDLE := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -tags bundle -ldflags='-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)'

# What is packed into recluse: on Linux the engine and the guest, elsewhere the guests for the machines that an engine's containers may be on.
GUESTS := $(OUT)/amd64/recluse-guest $(OUT)/arm64/recluse-guest
PACKED := $(if $(filter linux,$(shell $(GO) env GOOS)),pack,pack-guests)

.PHONY: build
build: setup-build $(PACKED)
	@echo "==> building bin/recluse"
	@$(BUNDLE) -o bin/recluse ./cmd/recluse
	@ls -l bin/recluse | awk '{ printf "    bin/recluse: %.1f MB\n", $$5 / 1e6 }'

# The programs for macOS and Windows, which drive Docker Desktop.
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

# Only gVisor and a few lines of ours are in the engine, so it changes with go.mod alone.
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

.PHONY: check test test-all
check: lint $(OUT)/recluse-engine $(OUT)/recluse-guest $(TOOLS)/gotestsum-$(GOTESTSUM)
	@$(RUN_TESTS) check

test: setup-test lint cross build $(TOOLS)/gotestsum-$(GOTESTSUM)
	@$(RUN_TESTS) test

test-all: setup-test lint cross build $(TOOLS)/gotestsum-$(GOTESTSUM)
	@$(RUN_TESTS) all

.PHONY: lint
lint: setup-build $(TOOLS)/golangci-lint-$(GOLANGCI_LINT)
	@echo "==> vet and linters"
	@$(GO) vet ./...
	@$(TOOLS)/golangci-lint-$(GOLANGCI_LINT) run ./...

# What must compile elsewhere: everything on other systems, with the guests in it and, as users of the library build it, without; and our programs on
# the other processor. A Mac is an arm64, and a PC is not. go list compiles without linking, which takes a minute less; make desktop links.
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

# Tools are named by their version, so that another version is another file.
$(TOOLS)/golangci-lint-$(GOLANGCI_LINT):
	@echo "==> installing golangci-lint $(GOLANGCI_LINT) (a few minutes, once)"
	@GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT)
	@mv $(TOOLS)/golangci-lint $@

$(TOOLS)/gotestsum-$(GOTESTSUM):
	@echo "==> installing gotestsum $(GOTESTSUM)"
	@GOBIN=$(TOOLS) $(GO) install gotest.tools/gotestsum@v$(GOTESTSUM)
	@mv $(TOOLS)/gotestsum $@

# protoc is Debian's; another version would change the generated file's header.
.PHONY: generate
generate: $(TOOLS)/protoc-gen-go-$(PROTOC_GEN_GO)
	@command -v protoc >/dev/null || apt-get install -y protobuf-compiler
	@test "$$(protoc --version)" = "libprotoc $(PROTOC)" || { echo "protoc $(PROTOC) is needed, this is $$(protoc --version)" >&2; exit 1; }
	@protoc -I internal/guest/wire --plugin=protoc-gen-go=$< --go_out=internal/guest/wire --go_opt=paths=source_relative wire.proto

$(TOOLS)/protoc-gen-go-$(PROTOC_GEN_GO):
	@echo "==> installing protoc-gen-go $(PROTOC_GEN_GO)"
	@GOBIN=$(TOOLS) $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@v$(PROTOC_GEN_GO)
	@mv $(TOOLS)/protoc-gen-go $@

.PHONY: notices
notices: setup-build
	@$(GO) run ./scripts/notices THIRD_PARTY_NOTICES.txt
