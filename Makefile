# Capstan. `make help` lists the targets. All of them need Go, git, make and a C compiler. The tools are pinned in go.mod and
# under hack/, and are downloaded or built from Go modules. The tests also need a PostgreSQL server, Node.js and promtool. If
# they are missing on Debian, the first two are installed, and promtool is extracted from its package.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Git tags begin with a v; the versions of programs, images and charts do not.
override VERSION := $(patsubst v%,%,$(VERSION))
IMG ?= capstan-dev/capstan:$(VERSION)
# The image with the servers of examples/cluster.
EXAMPLES_IMG = $(shell echo '$(IMG)' | sed -E 's|(:[^:/]+)?$$|-examples\1|')
# These flags and variables make two builds of the same commit identical. The version and the commit are passed in, because the
# compiler cannot read them from git in a build from a source archive.
LDFLAGS := -s -w -X main.version=$(VERSION)
GO_BUILD := CGO_ENABLED=0 GOAMD64=v1 GOARM64=v8.0 GOFIPS140=off GOEXPERIMENT= go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
# The kubectl that `make install`, `deploy` and `undeploy` use, with its current context.
KUBECTL ?= kubectl

# The pinned tools. They have their own modules, so that their dependencies are not dependencies of Capstan.
CONTROLLER_GEN := go tool -modfile=hack/tools/dev/go.mod controller-gen
GOLANGCI_LINT := go tool -modfile=hack/tools/lint/go.mod golangci-lint
GOLANGCI_LINT_PATH := go tool -modfile=hack/tools/lint/go.mod -n golangci-lint
ACTIONLINT := go tool -modfile=hack/tools/dev/go.mod actionlint
HELM := go tool -modfile=hack/tools/helm/go.mod helm
# The directory of etcd, kube-apiserver and kubectl. Only the targets that use them get them.
ASSETS = $$(bash hack/controlplane/get.sh)
# The directory of the PostgreSQL server for tests. It is empty if CAPSTAN_TEST_POSTGRES is the URL of an existing server.
POSTGRES_BIN = $$([ -n "$${CAPSTAN_TEST_POSTGRES:-}" ] || bash hack/postgres/get.sh)

# The reference MCP server, for tests.
EVERYTHING = $$(bash hack/everything/get.sh)

# A third-party mock of model APIs, for tests.
AIMOCK = $$(bash hack/aimock/get.sh)

##@ Start here

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-zA-Z0-9_-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: assets ## Run two Turns on a real API server, one of them with tools. KEEP=1 keeps the servers running.
	@echo "Building bin/manager, bin/capstan, bin/fakemodel and bin/toolserver" >&2
	@$(MAKE) -s build-bin/manager build-bin/capstan build-bin/fakemodel build-bin/toolserver build-bin/demo
	@KUBEBUILDER_ASSETS="$(ASSETS)" exec bin/demo

.PHONY: demo-stop
demo-stop: ## Stop the servers that `make demo KEEP=1` keeps running.
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
assets: ## Get etcd, kube-apiserver and kubectl: download them, or else build them (once, about 7 minutes).
	@bash hack/controlplane/get.sh >/dev/null

.PHONY: postgres
postgres: ## Find a PostgreSQL server, or install Debian's package with sudo. To use an existing server, set CAPSTAN_TEST_POSTGRES=postgres://...
	@[ -n "$${CAPSTAN_TEST_POSTGRES:-}" ] || bash hack/postgres/get.sh >/dev/null

.PHONY: everything
everything: ## Get the reference MCP server for the tests from npm; installs Debian's nodejs with sudo if Node.js is missing.
	@bash hack/everything/get.sh >/dev/null

.PHONY: aimock
aimock: ## Get aimock, a third-party mock of model APIs, for the tests from npm; installs Debian's nodejs with sudo if Node.js is missing.
	@bash hack/aimock/get.sh >/dev/null

# The environment of the tests. `make test` passes ARGS='-run X' and PKG=./x to go test.
TEST_ENV = KUBEBUILDER_ASSETS="$(ASSETS)" CAPSTAN_POSTGRES_BIN="$(POSTGRES_BIN)" CAPSTAN_MCP_EVERYTHING="$(EVERYTHING)" CAPSTAN_AIMOCK="$(AIMOCK)" CGO_ENABLED=1
# The race detector watches all code but SQLite, which modernc.org has translated from C: with it, the tests of internal/store/sqlite
# need three times the CPU time. Reads and writes of the memory that SQLite shares with no other code are all that is not watched.
NO_RACE = -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc/...=-race=false
.PHONY: test
test: assets postgres everything aimock ## Run all tests with the race detector, against real servers. ARGS='-run X' and PKG=./x select tests.
ifeq ($(ARGS)$(PKG),)
	@$(MAKE) build
	@CAPSTAN_PROGRAMS="$(CURDIR)/bin" $(MAKE) -j3 test-controller test-modules test-packages
else
	$(TEST_ENV) go test -race $(NO_RACE) -timeout 60m $(ARGS) $(or $(PKG),./...)
	@[ -n '$(PKG)' ] || $(MAKE) test-modules
endif

# The specs of test/controller mostly wait. So they run in three processes with one control plane, at the same time as all other
# packages. Their output is shown at the end.
.PHONY: test-controller
test-controller:
	@out=$$(mktemp); trap 'rm -f "$$out"' EXIT; status=0; \
	  $(TEST_ENV) GOFLAGS="$${GOFLAGS:-} $(NO_RACE)" go tool ginkgo run --no-color --succinct --race --vet=off --procs=3 --timeout=60m --output-interceptor-mode=none ./test/controller >"$$out" 2>&1 || status=$$?; \
	  cat "$$out"; exit $$status

# The tests that do without the race detector, and the tests of the other modules, which mostly wait. -count=1 disables Go's test
# cache for test/gitops, because the cache does not notice changes of the programs and manifests of the main module.
.PHONY: test-modules
test-modules:
	go test $(ARGS) ./internal/redact
	go test -C hack/release -timeout 30m $(ARGS) ./...
	KUBEBUILDER_ASSETS="$(ASSETS)" go test -C test/gitops -count=1 -timeout 30m $(ARGS) ./...

# Many packages mostly wait, too. So twice as many packages as processors are tested at the same time. The packages that take
# longest begin first, so that none of them runs alone at the end. -vet=off, here and above: govet of make lint has all these
# checks and more.
LONGEST = ./internal/runtime/turn ./charts ./hack/bench ./internal/store/... ./internal/executor ./test/... ./internal/cli ./internal/redact ./internal/mcp
.PHONY: test-packages
test-packages:
	$(TEST_ENV) go test -race $(NO_RACE) -vet=off -timeout 60m -p $$((2 * $$(getconf _NPROCESSORS_ONLN))) $$(go list $(LONGEST) ./... | grep -v '/test/controller$$')

.PHONY: fuzz
fuzz: ## Run each fuzz test for 30 s, or for FUZZTIME, which is a duration or a number of runs (5m, 2000x).
	@grep -ro --include=*_test.go '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |' | \
	  xargs -P "$$(getconf _NPROCESSORS_ONLN)" -n 2 bash -euo pipefail -c \
	  'go test -run "^$$" -fuzz "^$$1$$" -fuzztime $(or $(FUZZTIME),30s) "$$0" 2>&1 | sed "s/^/$$1: /"'

.PHONY: bench-prepare
bench-prepare: ## Measure how much time and memory it takes to prepare a prompt and to replay a journal.
	go test -run '^$$' -bench . -benchmem ./internal/runtime/prepare ./internal/runtime/turn

.PHONY: bench
bench: assets postgres bench-prepare ## Measure how fast and with how much memory managers run Turns. ARGS='--only PHASE': floor, executors, tools, finished (default), evaluations, scale, neighbours (last two: as root, up to 25 minutes).
	@$(MAKE) -s build-bin/manager build-bin/bench
	@KUBEBUILDER_ASSETS="$(ASSETS)" CAPSTAN_POSTGRES_BIN="$(POSTGRES_BIN)" bin/bench --manager bin/manager $(ARGS)

.PHONY: chaos
chaos: assets ## Run the kill test: kill managers at any moment, stop servers, and check that nothing is done twice. ARGS='--seed 1' uses the kills and plans of the run with this seed again.
	@CGO_ENABLED=0 go build -trimpath -o bin/chaos ./hack/chaos
	@CGO_ENABLED=0 go build -trimpath -o bin/chaos-manager ./hack/chaos/manager
	@KUBEBUILDER_ASSETS="$(ASSETS)" CAPSTAN_POSTGRES_BIN="$$(bash hack/postgres/get.sh)" exec bin/chaos $(ARGS)

.PHONY: chaos-short
chaos-short: ## Run a short kill test (2 to 3 minutes) with SQLite and one kill at each crash point.
	@$(MAKE) -s chaos ARGS='--turns 40 --kills 6 --outages 1 --points after --executor-turns 16 --follow-ups=false --store sqlite --timeout 6m $(ARGS)'

# The directory of the programs and images that e2e builds. IMAGE is an archive that `make image` or `make release` has written,
# for the image name of the chart. If IMAGE is empty, the image is built as for a release.
E2E := bin/e2e
GOARCH = $(shell go env GOARCH)
CHART_IMAGE = capstan-dev/capstan:$(shell sed -n 's/^appVersion: *"\(.*\)"/\1/p' charts/capstan/Chart.yaml)
.PHONY: e2e
e2e: ## Install the chart on a real kubelet on this machine, and cause failures (as root, on Linux; lists missing programs). ARGS='--rounds delete,force' selects rounds; IMAGE=dist/capstan_0.1.0_image.tar selects the image.
	@cni=$$(bash hack/e2e/needs.sh) && assets=$$(bash hack/controlplane/get.sh --all) && postgres=$$(bash hack/postgres/get.sh) && \
	  $(MAKE) -s e2e-programs e2e-images && exec $(E2E)/e2e --kubernetes "$$assets" --postgres "$$postgres" --programs $(E2E) --image '$(or $(IMAGE),$(E2E)/images/capstan_$(VERSION)_image.tar)' --cni "$$cni" $(ARGS)

.PHONY: e2e-packages
e2e-packages: ## Install the packages of Debian or Ubuntu that make e2e needs, with sudo.
	@sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; $$sudo apt-get update -q && $$sudo apt-get install -qy --no-install-recommends \
	  containerd runc containernetworking-plugins nftables iproute2

.PHONY: e2e-programs
e2e-programs:
	@echo "Building the programs of make e2e" >&2
	@$(GO_BUILD) -o $(E2E)/ ./cmd/capstan ./test/fakemodel ./test/toolserver ./test/exampleservers ./hack/e2e ./hack/e2e/pause ./hack/e2e/wiper ./hack/e2e/scrape
	@cd hack/e2e/coredns && CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath -ldflags '-s -w' -o ../../../$(E2E)/coredns .
	@go build -modfile=hack/tools/helm/go.mod -o $(E2E)/helm helm.sh/helm/v3/cmd/helm
	@bash hack/e2e/previous.sh $(E2E)/previous $(GOARCH)

.PHONY: e2e-images
e2e-images: build-bin/release-tool
	@rm -rf $(E2E)/images
	@for p in fakemodel toolserver wiper scrape pause coredns; do \
	  user=65532:65532; [ $$p != coredns ] || user=0:0; \
	  bin/release-tool image -plain -version 1 -epoch 1 -dist $(E2E)/images -name $$p -reference e2e.local/$$p:1 -user $$user \
	    -program linux/$(GOARCH)=$(E2E)/$$p >/dev/null; done
	@bin/release-tool image -plain -version 1 -epoch 1 -dist $(E2E)/images -name previous -reference e2e.local/previous:v1 -user 65532:65532 \
	  -program linux/$(GOARCH)=$(E2E)/previous/manager >/dev/null
	@[ -n '$(IMAGE)' ] || $(MAKE) -s image IMG=$(CHART_IMAGE) DIST=$(E2E)/images IMAGE_PLATFORMS=linux/$(GOARCH) >/dev/null

.PHONY: e2e-results
e2e-results: ## Make the results of make e2e in .e2e readable for your user, with sudo: the test writes them as root.
	sudo chown -R "$$(id -u)" .e2e

.PHONY: e2e-down
e2e-down: ## Remove the cluster of `make e2e ARGS=--keep`, or of a run that was killed.
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
verify: ## Fail if a generated file is not current.
	bash hack/verify.sh

##@ Ship

# The directory of the results, and the platforms for which they are built.
DIST ?= dist
IMAGE_PLATFORMS ?= linux/amd64 linux/arm64
CLI_PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
# The URL from which krew downloads the files of dist, and the builder that the provenance names.
RELEASE_URL ?= https://github.com/capstan-dev/capstan/releases/download/v$(VERSION)
BUILDER ?=
CYCLONEDX := go tool -modfile=hack/tools/sbom/go.mod cyclonedx-gomod bin -json -std -noserial -notimestamp -version $(VERSION)
RELEASED = -version $(VERSION) -revision '$(REVISION)' -epoch '$(SOURCE_DATE_EPOCH)' -dist $(DIST)
# $(call programs,NAME,PLATFORMS) are the paths of a program. $(call given,NAME,PLATFORMS) are the same paths as arguments of
# bin/release-tool.
programs = $(foreach p,$2,bin/release/$(subst /,_,$p)/$1)
given = $(foreach p,$2,-program $p=bin/release/$(subst /,_,$p)/$1)

# bin/release/OS_ARCHITECTURE/NAME is the program cmd/NAME or test/NAME for a platform. Its SBOM is NAME.cdx.json next to it.
words_of = $(subst _, ,$(subst /, ,$*))
.PHONY: FORCE
bin/release/%: FORCE
	GOOS=$(word 1,$(words_of)) GOARCH=$(word 2,$(words_of)) $(GO_BUILD) -o $@ ./$(if $(wildcard cmd/$(word 3,$(words_of))),cmd,test)/$(word 3,$(words_of))
	@$(CYCLONEDX) -output $@.cdx.json $@

.PHONY: build-bin/release-tool
build-bin/release-tool:
	@go build -C hack/release -o ../../bin/release-tool .

.PHONY: image
image: $(call programs,manager,$(IMAGE_PLATFORMS)) $(call programs,exampleservers,$(IMAGE_PLATFORMS)) build-bin/release-tool ## Build the image IMG and the examples image, and write them to dist/ with SBOM and provenance, each as an OCI archive and one docker-load archive per platform.
	@bin/release-tool image $(RELEASED) -reference $(IMG) $(if $(BUILDER),-builder '$(BUILDER)') $(call given,manager,$(IMAGE_PLATFORMS))
	@bin/release-tool image $(RELEASED) -name capstan-examples -reference $(EXAMPLES_IMG) -title 'Capstan examples' -description 'The servers of examples/cluster' \
	  $(if $(BUILDER),-builder '$(BUILDER)') $(call given,exampleservers,$(IMAGE_PLATFORMS))

.PHONY: push
push: build-bin/release-tool ## Push the images of `make image` to the registry in IMG, with your docker login. ARGS=-insecure is for a registry without TLS.
	@bin/release-tool push -archive $(DIST)/capstan_$(VERSION)_image.tar -reference $(IMG) $(ARGS)
	@bin/release-tool push -archive $(DIST)/capstan-examples_$(VERSION)_image.tar -reference $(EXAMPLES_IMG) $(ARGS)

.PHONY: archives
archives: $(call programs,capstan,$(CLI_PLATFORMS)) build-bin/capstan build-bin/release-tool ## Write archives of the command line for CLI_PLATFORMS and the krew manifest to dist/.
	@mkdir -p bin/completions && cd bin/completions && \
	  ../capstan completion bash >capstan.bash && ../capstan completion zsh >_capstan && \
	  ../capstan completion fish >capstan.fish && ../capstan completion powershell >capstan.ps1
	@bin/release-tool archives $(RELEASED) -completions bin/completions -url $(RELEASE_URL) $(call given,capstan,$(CLI_PLATFORMS))

.PHONY: release
release: ## Write the release VERSION=v0.1.0 to dist/ and verify it: image, archives, krew manifest, chart, SBOMs, provenance, checksums. See docs/releases.md.
	@bash hack/release/check.sh $(VERSION)
	@rm -rf $(DIST)
	@$(MAKE) image archives IMG=capstan-dev/capstan:$(VERSION)
	@$(HELM) package charts/capstan --destination $(DIST) >/dev/null
	@bin/release-tool finish $(RELEASED) $(if $(BUILDER),-builder '$(BUILDER)')
	@$(MAKE) release-verify

.PHONY: release-verify
release-verify: build-bin/release-tool ## Verify the release VERSION in dist/: unpack each archive, run the programs for this machine, check all checksums.
	@bin/release-tool verify -version $(VERSION) -revision '$(REVISION)' -dist $(DIST) -examples capstan-dev/capstan-examples -platforms '$(IMAGE_PLATFORMS)' -cli-platforms '$(CLI_PLATFORMS)'

.PHONY: reproduce
reproduce: ## Build the release VERSION again in another directory, and fail if a file differs from the file in dist/.
	@IMAGE_PLATFORMS='$(IMAGE_PLATFORMS)' CLI_PLATFORMS='$(CLI_PLATFORMS)' BUILDER='$(BUILDER)' bash hack/release/reproduce.sh $(VERSION) $(DIST)

.PHONY: sbom
sbom: build ## Write SBOMs (CycloneDX) of bin/manager and bin/capstan to dist/*.cdx.json.
	@mkdir -p $(DIST)
	@for p in manager capstan; do $(CYCLONEDX) -output $(DIST)/$$p.cdx.json bin/$$p && echo "$(DIST)/$$p.cdx.json"; done

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in the code that is called. VULNDB=URL selects another database.
	@bash hack/vulncheck.sh

.PHONY: helm-lint
helm-lint: ## Check the chart.
	@bash hack/chart/version.sh check
	$(HELM) lint --strict charts/capstan
	@$(HELM) template capstan charts/capstan --kube-version 1.37.0 --namespace capstan-system >/dev/null

.PHONY: chart-version
chart-version: ## Raise the chart's version. Each change of the chart requires this.
	@bash hack/chart/version.sh bump

.PHONY: install
install: ## Install the CRDs into the cluster of your kubectl.
	$(KUBECTL) apply --server-side -k config/crd

.PHONY: uninstall
uninstall: ## Delete the CRDs, and with them all objects of capstan.dev in all namespaces: Agents, PromptProfiles, ModelProviders, ToolServers, Budgets, Turns, Sessions and ToolApprovals.
	$(KUBECTL) delete --ignore-not-found -k config/crd

.PHONY: deploy
deploy: ## Install CRDs and the manager (image IMG) into the cluster of your kubectl.
	$(KUBECTL) kustomize config/default | sed 's|image: capstan-dev/capstan:.*|image: $(IMG)|' | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: ## Stop the manager, then delete it with its ServiceAccount, Services and NetworkPolicy, and all roles, also those of people. Keep the CRDs, Turns and the journal, and the policies of config/policy, config/requester and config/usepolicy. ALL=1 also deletes the CRDs, all objects of capstan.dev, these policies, the journal and the namespace capstan-system.
	@# The manager hands its Turns back while it still has its permissions, which kubectl delete would remove first.
	$(KUBECTL) -n capstan-system get deployment/capstan-manager --ignore-not-found -o name | xargs -r $(KUBECTL) -n capstan-system scale --replicas=0
	$(KUBECTL) -n capstan-system wait pods -l app.kubernetes.io/name=capstan,app.kubernetes.io/component=manager --for=delete --timeout=5m
	$(KUBECTL) kustomize config/default | $(if $(filter 1,$(ALL)),cat,awk -f hack/undeploy.awk) | $(KUBECTL) delete --ignore-not-found -f -
ifeq ($(ALL),1)
	$(KUBECTL) delete --ignore-not-found -k config/usepolicy
	@# By name, because kubectl refuses a manifest of a kind that the API server does not serve, and by any served version.
	if $(KUBECTL) api-resources --api-group=admissionregistration.k8s.io -o name | grep '^mutatingadmissionpolicies[.]' >/dev/null; then \
	  $(KUBECTL) delete --ignore-not-found mutatingadmissionpolicies,mutatingadmissionpolicybindings capstan-requesters; fi
endif

.PHONY: clean
clean: ## Remove bin, dist and cover.out. The control plane stays in your cache directory.
	rm -rf bin dist cover.out
