# Capstan. `make help` lists what there is. Nothing but Go, git, make and a C compiler is needed: the rest is fetched or
# built from Go modules, pinned in go.mod and under hack/. The tests want PostgreSQL's server, node and promtool, which are found or installed.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Tags of git begin with a v; programs, images and charts have versions without.
override VERSION := $(patsubst v%,%,$(VERSION))
IMG ?= capstan-dev/capstan:$(VERSION)
# The image with the servers of examples/cluster.
EXAMPLES_IMG = $(shell echo '$(IMG)' | sed -E 's|(:[^:/]+)?$$|-examples\1|')
# All that could make two builds of the same commit differ is fixed here. The version and the commit are given, and not read from git
# by the compiler: a build from an archive of the sources gives the same program.
LDFLAGS := -s -w -X main.version=$(VERSION)
GO_BUILD := CGO_ENABLED=0 GOAMD64=v1 GOARM64=v8.0 GOFIPS140=off GOEXPERIMENT= go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
# Where `make install`, `deploy` and `undeploy` go: your kubectl and its current context.
KUBECTL ?= kubectl

# The pinned tools, each with a module of its own, so that their dependencies are not ours.
CONTROLLER_GEN := go tool -modfile=hack/tools/dev/go.mod controller-gen
GOLANGCI_LINT := go tool -modfile=hack/tools/lint/go.mod golangci-lint
GOLANGCI_LINT_PATH := go tool -modfile=hack/tools/lint/go.mod -n golangci-lint
ACTIONLINT := go tool -modfile=hack/tools/dev/go.mod actionlint
HELM := go tool -modfile=hack/tools/helm/go.mod helm
# etcd, kube-apiserver and kubectl: asked for only by the targets that use it.
ASSETS = $$(bash hack/controlplane/get.sh)
# PostgreSQL's server for tests, unless CAPSTAN_TEST_POSTGRES is the URL of one.
POSTGRES_BIN = $$([ -n "$${CAPSTAN_TEST_POSTGRES:-}" ] || bash hack/postgres/get.sh)

# The reference MCP server, for tests.
EVERYTHING = $$(bash hack/everything/get.sh)

# A third-party mock of model APIs, for tests.
AIMOCK = $$(bash hack/aimock/get.sh)

##@ Start here

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-zA-Z0-9_-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: assets ## Two Turns on a real API server, start to end, one with tools. KEEP=1 leaves it running.
	@echo "Building bin/manager, bin/capstan, bin/fakemodel and bin/toolserver" >&2
	@$(MAKE) -s build-bin/manager build-bin/capstan build-bin/fakemodel build-bin/toolserver build-bin/demo
	@KUBEBUILDER_ASSETS="$(ASSETS)" exec bin/demo

.PHONY: demo-stop
demo-stop: ## Stop what `make demo KEEP=1` left running.
	@test -x bin/demo || $(MAKE) -s build-bin/demo
	@bin/demo --stop

##@ Develop

.PHONY: build
build: build-bin/manager build-bin/capstan ## Build bin/manager and bin/capstan.

PROGRAMS := manager capstan fakemodel toolserver demo bench
build-bin/manager build-bin/capstan: DIR := cmd
build-bin/demo build-bin/bench: DIR := hack
build-bin/fakemodel build-bin/toolserver: DIR := test
.PHONY: $(PROGRAMS:%=build-bin/%)
$(PROGRAMS:%=build-bin/%): build-bin/%:
	$(GO_BUILD) -o bin/$* ./$(DIR)/$*

.PHONY: assets
assets: ## Get etcd, kube-apiserver and kubectl: downloaded, else built (once, about 7 minutes).
	@bash hack/controlplane/get.sh >/dev/null

.PHONY: postgres
postgres: ## Find PostgreSQL's server, or install Debian's package (with sudo). CAPSTAN_TEST_POSTGRES=postgres://... does without.
	@[ -n "$${CAPSTAN_TEST_POSTGRES:-}" ] || bash hack/postgres/get.sh >/dev/null

.PHONY: everything
everything: ## Get the reference MCP server for the tests: npm's, with Debian's node if there is none (with sudo).
	@bash hack/everything/get.sh >/dev/null

.PHONY: aimock
aimock: ## Get aimock, a third-party mock of model APIs, for the tests: npm's, with Debian's node if there is none (with sudo).
	@bash hack/aimock/get.sh >/dev/null

# What the tests need to know. Of test, ARGS='-run X' and PKG=./x are for go test.
TEST_ENV = KUBEBUILDER_ASSETS="$(ASSETS)" CAPSTAN_POSTGRES_BIN="$(POSTGRES_BIN)" CAPSTAN_MCP_EVERYTHING="$(EVERYTHING)" CAPSTAN_AIMOCK="$(AIMOCK)" CGO_ENABLED=1
.PHONY: test
test: assets postgres everything aimock ## Run all tests, with the race detector, against real servers. ARGS='-run X' and PKG=./x narrow it.
ifeq ($(ARGS)$(PKG),)
	@$(MAKE) build
	@CAPSTAN_PROGRAMS="$(CURDIR)/bin" $(MAKE) -j3 test-controller test-modules test-packages
else
	$(TEST_ENV) go test -race -timeout 60m $(ARGS) $(or $(PKG),./...)
	@[ -n '$(PKG)' ] || $(MAKE) test-modules
endif

# The specs of test/controller mostly wait. So they run in three processes with one control plane, beside all other packages, and their
# output is shown at the end.
.PHONY: test-controller
test-controller:
	@out=$$(mktemp); trap 'rm -f "$$out"' EXIT; status=0; \
	  $(TEST_ENV) go tool ginkgo run --no-color --succinct --race --procs=3 --timeout=60m --output-interceptor-mode=none ./test/controller >"$$out" 2>&1 || status=$$?; \
	  cat "$$out"; exit $$status

# The tests of the modules beside the main one, which mostly wait. Go's cache does not know the programs and manifests
# of the main module, which test/gitops uses.
.PHONY: test-modules
test-modules:
	go test -C hack/release -timeout 30m $(ARGS) ./...
	KUBEBUILDER_ASSETS="$(ASSETS)" go test -C test/gitops -count=1 -timeout 30m $(ARGS) ./...

# Many packages mostly wait, too. So twice as many run at once as there are processors. Those that take longest begin first, so that the
# last ones do not run alone.
LONGEST = ./internal/runtime/turn ./charts ./hack/bench ./internal/store/... ./internal/executor ./test/... ./internal/cli ./internal/mcp
.PHONY: test-packages
test-packages:
	$(TEST_ENV) go test -race -timeout 60m -p $$((2 * $$(getconf _NPROCESSORS_ONLN))) $$(go list $(LONGEST) ./... | grep -v '/test/controller$$')

.PHONY: fuzz
fuzz: ## Run each fuzz test for 30 s, or as long or as often as FUZZTIME says (5m, 2000x).
	@grep -ro --include=*_test.go '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |' | \
	  xargs -P "$$(getconf _NPROCESSORS_ONLN)" -n 2 bash -euo pipefail -c \
	  'go test -run "^$$" -fuzz "^$$1$$" -fuzztime $(or $(FUZZTIME),30s) "$$0" 2>&1 | sed "s/^/$$1: /"'

.PHONY: bench-prepare
bench-prepare: ## Measure the time and the memory that it takes to prepare a prompt, and to replay a journal.
	go test -run '^$$' -bench . -benchmem ./internal/runtime/prepare ./internal/runtime/turn

.PHONY: bench
bench: assets postgres bench-prepare ## Measure a manager beside a bare client, two executors, 1,000 Turns with tools, and 20,000 finished Turns. ARGS='--only floor,executors,tools,finished'; ARGS='--only scale' shows the limits of one manager, ARGS='--only neighbours' attacks it (each as root, 10 to 20 minutes).
	@$(MAKE) -s build-bin/manager build-bin/bench
	@KUBEBUILDER_ASSETS="$(ASSETS)" CAPSTAN_POSTGRES_BIN="$(POSTGRES_BIN)" bin/bench --manager bin/manager $(ARGS)

.PHONY: chaos
chaos: assets ## The kill test: managers die at any instant, servers go away, and nothing may be done twice. ARGS='--seed 1'.
	@CGO_ENABLED=0 go build -trimpath -o bin/chaos ./hack/chaos
	@CGO_ENABLED=0 go build -trimpath -o bin/chaos-manager ./hack/chaos/manager
	@KUBEBUILDER_ASSETS="$(ASSETS)" CAPSTAN_POSTGRES_BIN="$$(bash hack/postgres/get.sh)" exec bin/chaos $(ARGS)

.PHONY: chaos-short
chaos-short: ## The kill test in its short form, with SQLite and one death between any two effects: 2 to 3 minutes.
	@$(MAKE) -s chaos ARGS='--turns 40 --kills 6 --outages 1 --points after --executor-turns 16 --follow-ups=false --store sqlite --timeout 6m $(ARGS)'

# What e2e builds: the programs that it runs itself, and static ones for images of the test. IMAGE is an archive that make image or make
# release has written, with the name that the chart gives the image; without it, it is built as for a release.
E2E := bin/e2e
GOARCH = $(shell go env GOARCH)
CHART_IMAGE = capstan-dev/capstan:$(shell sed -n 's/^appVersion: *"\(.*\)"/\1/p' charts/capstan/Chart.yaml)
.PHONY: e2e
e2e: ## Install the chart on a real kubelet on this machine, and disturb it (as root, on Linux; says what is missing). ARGS='--rounds delete,force'; IMAGE=dist/capstan_0.1.0_image.tar tests that very image.
	@cni=$$(bash hack/e2e/needs.sh) && assets=$$(bash hack/controlplane/get.sh --all) && postgres=$$(bash hack/postgres/get.sh) && \
	  $(MAKE) -s e2e-programs e2e-images && exec $(E2E)/e2e --kubernetes "$$assets" --postgres "$$postgres" --programs $(E2E) --image '$(or $(IMAGE),$(E2E)/images/capstan_$(VERSION)_image.tar)' --cni "$$cni" $(ARGS)

.PHONY: e2e-programs
e2e-programs:
	@echo "Building the programs of make e2e" >&2
	@$(GO_BUILD) -o $(E2E)/ ./cmd/capstan ./test/fakemodel ./test/toolserver ./test/exampleservers ./hack/e2e ./hack/e2e/pause ./hack/e2e/wiper
	@cd hack/e2e/coredns && CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath -ldflags '-s -w' -o ../../../$(E2E)/coredns .
	@go build -modfile=hack/tools/helm/go.mod -o $(E2E)/helm helm.sh/helm/v3/cmd/helm
	@bash hack/e2e/previous.sh $(E2E)/previous $(GOARCH)

.PHONY: e2e-images
e2e-images: build-bin/release-tool
	@rm -rf $(E2E)/images
	@for p in fakemodel toolserver wiper pause coredns; do \
	  user=65532:65532; [ $$p != coredns ] || user=0:0; \
	  bin/release-tool image -plain -version 1 -epoch 1 -dist $(E2E)/images -name $$p -reference e2e.local/$$p:1 -user $$user \
	    -program linux/$(GOARCH)=$(E2E)/$$p >/dev/null; done
	@bin/release-tool image -plain -version 1 -epoch 1 -dist $(E2E)/images -name previous -reference e2e.local/previous:v1 -user 65532:65532 \
	  -program linux/$(GOARCH)=$(E2E)/previous/manager >/dev/null
	@[ -n '$(IMAGE)' ] || $(MAKE) -s image IMG=$(CHART_IMAGE) DIST=$(E2E)/images IMAGE_PLATFORMS=linux/$(GOARCH) >/dev/null

.PHONY: e2e-down
e2e-down: ## Remove what `make e2e` has left: ARGS=--keep, or a run that was killed.
	@$(MAKE) -s e2e-programs && $(E2E)/e2e --down

.PHONY: lint
lint: ## Run golangci-lint, and actionlint on the workflows.
	@lint=$$($(GOLANGCI_LINT_PATH)); for module in . hack/release test/collector test/gitops; do (cd $$module && "$$lint" run); done
	@$(ACTIONLINT) -shellcheck= -pyflakes= .github/workflows/*.yml

.PHONY: fmt
fmt: ## Format the code.
	$(GOLANGCI_LINT) fmt

.PHONY: generate
generate: ## Generate deepcopy, CRDs, RBAC and the chart's copies of them; tidy go.mod.
	$(CONTROLLER_GEN) object paths=./api/...
	rm -rf bin/api bin/controller && mkdir -p bin/api bin/controller
	go run ./hack/crds markers api/v1alpha1 bin/api
	$(CONTROLLER_GEN) crd paths=./bin/api output:crd:dir=config/crd/bases
	go run ./hack/crds descriptions config/crd/bases
	go run ./hack/crds markers internal/controller bin/controller
	$(CONTROLLER_GEN) rbac:roleName=capstan-manager paths=./bin/controller output:rbac:dir=config/rbac
	rm -rf bin/api bin/controller
	go run ./hack/chart
	go mod tidy
	cd test/collector && go mod tidy
	cd test/gitops && go mod tidy

.PHONY: verify
verify: ## Fail if anything generated is not current.
	bash hack/verify.sh

##@ Ship

# Where the results are, and for which platforms they are built.
DIST ?= dist
IMAGE_PLATFORMS ?= linux/amd64 linux/arm64
CLI_PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
# Where the files of dist will be downloaded from, for krew, and the builder that answers for them, for the provenance.
RELEASE_URL ?= https://github.com/capstan-dev/capstan/releases/download/v$(VERSION)
BUILDER ?=
CYCLONEDX := go tool -modfile=hack/tools/sbom/go.mod cyclonedx-gomod bin -json -std -noserial -notimestamp -version $(VERSION)
RELEASED = -version $(VERSION) -revision '$(REVISION)' -epoch '$(SOURCE_DATE_EPOCH)' -dist $(DIST)
# programs NAME,PLATFORMS: the paths of a program; given NAME,PLATFORMS: the same as arguments of bin/release-tool.
programs = $(foreach p,$2,bin/release/$(subst /,_,$p)/$1)
given = $(foreach p,$2,-program $p=bin/release/$(subst /,_,$p)/$1)

# bin/release/OS_ARCHITECTURE/NAME is cmd/NAME, or test/NAME, for another platform, with its SBOM beside it.
words_of = $(subst _, ,$(subst /, ,$*))
.PHONY: FORCE
bin/release/%: FORCE
	GOOS=$(word 1,$(words_of)) GOARCH=$(word 2,$(words_of)) $(GO_BUILD) -o $@ ./$(if $(wildcard cmd/$(word 3,$(words_of))),cmd,test)/$(word 3,$(words_of))
	@$(CYCLONEDX) -output $@.cdx.json $@

.PHONY: build-bin/release-tool
build-bin/release-tool:
	@go build -C hack/release -o ../../bin/release-tool .

.PHONY: image
image: $(call programs,manager,$(IMAGE_PLATFORMS)) $(call programs,exampleservers,$(IMAGE_PLATFORMS)) build-bin/release-tool ## Write the image IMG, and the one of examples/cluster (-examples), for IMAGE_PLATFORMS to dist/, with SBOM and provenance: an OCI archive, and one for docker load for each platform.
	@bin/release-tool image $(RELEASED) -reference $(IMG) $(if $(BUILDER),-builder '$(BUILDER)') $(call given,manager,$(IMAGE_PLATFORMS))
	@bin/release-tool image $(RELEASED) -name capstan-examples -reference $(EXAMPLES_IMG) -title 'Capstan examples' -description 'The servers of examples/cluster' \
	  $(if $(BUILDER),-builder '$(BUILDER)') $(call given,exampleservers,$(IMAGE_PLATFORMS))

.PHONY: push
push: build-bin/release-tool ## Push what make image has written to the registry in IMG, with your docker login. ARGS=-insecure is for one without TLS.
	@bin/release-tool push -archive $(DIST)/capstan_$(VERSION)_image.tar -reference $(IMG) $(ARGS)
	@bin/release-tool push -archive $(DIST)/capstan-examples_$(VERSION)_image.tar -reference $(EXAMPLES_IMG) $(ARGS)

.PHONY: archives
archives: $(call programs,capstan,$(CLI_PLATFORMS)) build-bin/capstan build-bin/release-tool ## Write archives of the command line for CLI_PLATFORMS to dist/, and the manifest for krew.
	@mkdir -p bin/completions && cd bin/completions && \
	  ../capstan completion bash >capstan.bash && ../capstan completion zsh >_capstan && \
	  ../capstan completion fish >capstan.fish && ../capstan completion powershell >capstan.ps1
	@bin/release-tool archives $(RELEASED) -completions bin/completions -url $(RELEASE_URL) $(call given,capstan,$(CLI_PLATFORMS))

.PHONY: release
release: ## Write the release VERSION=v0.1.0 to dist/ and verify it: image, archives, krew manifest, chart, SBOMs, provenance, checksums. docs/releases.md
	@bash hack/release/check.sh $(VERSION)
	@rm -rf $(DIST)
	@$(MAKE) image archives IMG=capstan-dev/capstan:$(VERSION)
	@$(HELM) package charts/capstan --destination $(DIST) >/dev/null
	@bin/release-tool finish $(RELEASED) $(if $(BUILDER),-builder '$(BUILDER)')
	@$(MAKE) release-verify

.PHONY: release-verify
release-verify: build-bin/release-tool ## Verify the release VERSION in dist/: unpack each archive, run those for this machine, check all sums.
	@bin/release-tool verify -version $(VERSION) -revision '$(REVISION)' -dist $(DIST) -examples capstan-dev/capstan-examples -platforms '$(IMAGE_PLATFORMS)' -cli-platforms '$(CLI_PLATFORMS)'

.PHONY: reproduce
reproduce: ## Build the release VERSION once more in another folder: fails if a file differs from the one in dist/.
	@IMAGE_PLATFORMS='$(IMAGE_PLATFORMS)' CLI_PLATFORMS='$(CLI_PLATFORMS)' BUILDER='$(BUILDER)' bash hack/release/reproduce.sh $(VERSION) $(DIST)

.PHONY: sbom
sbom: build ## Write what bin/manager and bin/capstan are made of to dist/*.cdx.json, as CycloneDX.
	@mkdir -p $(DIST)
	@for p in manager capstan; do $(CYCLONEDX) -output $(DIST)/$$p.cdx.json bin/$$p && echo "$(DIST)/$$p.cdx.json"; done

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in the code that is called. VULNDB=URL is another database. Says so if it cannot be reached.
	@bash hack/vulncheck.sh

.PHONY: helm-lint
helm-lint: ## Check the chart.
	@bash hack/chart/version.sh check
	$(HELM) lint --strict charts/capstan
	@$(HELM) template capstan charts/capstan --kube-version 1.37.0 --namespace capstan-system >/dev/null

.PHONY: chart-version
chart-version: ## Raise the chart's version, as each change of the chart must.
	@bash hack/chart/version.sh bump

.PHONY: install
install: ## Install the CRDs into the cluster of your kubectl.
	$(KUBECTL) apply --server-side -k config/crd

.PHONY: uninstall
uninstall: ## Delete the CRDs, and with them all objects of capstan.dev in all namespaces: Agents, PromptProfiles, ModelProviders, ToolServers, Turns, Sessions and ToolApprovals.
	$(KUBECTL) delete --ignore-not-found -k config/crd

.PHONY: deploy
deploy: ## Install CRDs and the manager (image IMG) into the cluster of your kubectl.
	$(KUBECTL) kustomize config/default | sed 's|image: capstan-dev/capstan:.*|image: $(IMG)|' | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: ## Delete the manager, its roles and policies. CRDs, Turns and the journal stay. ALL=1 also deletes the CRDs, all objects of capstan.dev, the journal and the namespace capstan-system.
	$(KUBECTL) kustomize config/default | $(if $(filter 1,$(ALL)),cat,awk -f hack/undeploy.awk) | $(KUBECTL) delete --ignore-not-found -f -

.PHONY: clean
clean: ## Remove what was built here. The control plane stays in your cache folder.
	rm -rf bin dist cover.out
