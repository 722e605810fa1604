# What people do with this repository. `make help` lists it.

GO       ?= go
BIN      := bin/krmcat
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS  := -s -w -X github.com/krmcat/krmcat/internal/version.Version=$(VERSION)
BUILD    := CGO_ENABLED=0 $(GO) build -trimpath

# The example functions in Go, and what they are built for.
FUNCTIONS          := set-labels require-limits
FUNCTION_PLATFORMS := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64

# The release matrix.
PLATFORMS := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64

.PHONY: help
help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: build
build: ## Build bin/krmcat
	@mkdir -p bin
	$(BUILD) -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/krmcat

.PHONY: examples
examples: build ## Build the example functions: executables and container images
	@set -e; for fn in $(FUNCTIONS); do \
	  dist=examples/$$fn/dist; rm -rf $$dist; mkdir -p $$dist; \
	  for p in $(FUNCTION_PLATFORMS); do \
	    echo "building $$dist/$$fn-$$p"; \
	    GOOS=$${p%-*} GOARCH=$${p#*-} $(BUILD) -buildvcs=false -ldflags '-s -w' -o $$dist/$$fn-$$p ./examples/$$fn; \
	  done; \
	  $(BIN) image --output $$dist/image --name $$fn \
	    --platform linux/amd64=$$dist/$$fn-linux-amd64 --platform linux/arm64=$$dist/$$fn-linux-arm64; \
	done

.PHONY: demo
demo: examples ## Publish, verify and run functions on a server of your own; DEMO_EXIT=1 ends by itself
	@sh examples/demo.sh

.PHONY: tools
tools: ## Install what the tests need (Debian, as root or with sudo)
	@sh .ci/tools

.PHONY: lint
lint: ## Check formatting, go vet and go.mod
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) mod tidy -diff

# The example functions are built first: tests publish and run them. The scripts
# of the commands start hundreds of processes, which take most of the time with
# the race detector: only those of servers, where much happens at once, have it.
.PHONY: test
test: tools lint examples ## Install what the tests need, and run them all
	KRMCAT_TEST_REQUIRE=all $(GO) test -race -timeout 30m $$($(GO) list ./... | grep -v '/cmd/krmcat$$')
	KRMCAT_TEST_REQUIRE=all $(GO) test -race -timeout 30m -run 'TestScript/(serve.*|admin)$$' ./cmd/krmcat
	KRMCAT_TEST_REQUIRE=all $(GO) test -timeout 30m ./cmd/krmcat

.PHONY: vuln
vuln: ## Look for known vulnerabilities (asks vuln.go.dev)
	@sh .ci/vuln

.PHONY: dist
dist: ## Build the release: dist/ with an archive for each platform and checksums
	@set -e; rm -rf dist; mkdir -p dist; \
	for p in $(PLATFORMS); do \
	  os=$${p%-*}; arch=$${p#*-}; ext=; [ $$os = windows ] && ext=.exe; \
	  dir=dist/krmcat-$(VERSION)-$$p; mkdir $$dir; echo "building $$dir"; \
	  GOOS=$$os GOARCH=$$arch $(BUILD) -ldflags '$(LDFLAGS)' -o $$dir/krmcat$$ext ./cmd/krmcat; \
	  cp LICENSE README.md $$dir/; \
	  tar -C dist --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$${SOURCE_DATE_EPOCH:-0} -czf $$dir.tar.gz krmcat-$(VERSION)-$$p; \
	  rm -r $$dir; \
	done; \
	cd dist; sha256sum *.tar.gz > SHA256SUMS; cat SHA256SUMS

.PHONY: image-files
image-files: build
	@rm -rf bin/image bin/data; mkdir -p bin/image/etc/ssl/certs bin/image/tmp bin/data; chmod 1777 bin/image/tmp
	@cp /etc/ssl/certs/ca-certificates.crt bin/image/etc/ssl/certs/
	@cp $(BIN) bin/image/krmcat

.PHONY: image
image: image-files ## Build the container image of krmcat from bin/krmcat, with podman or docker
	@if command -v podman >/dev/null; then podman build --format docker --target prebuilt -t krmcat:$(VERSION) .; \
	elif command -v docker >/dev/null; then docker build --target prebuilt -t krmcat:$(VERSION) .; \
	else echo "no podman or docker on the PATH" >&2; exit 1; fi

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf bin dist examples/*/dist
