# Capstan. `make help` lists what there is. Nothing but Go, git, make and a C compiler is needed: the rest is fetched or
# built from Go modules, pinned in go.mod and under hack/. The tests want PostgreSQL's server and node, which are found or installed.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMG ?= capstan-dev/capstan:$(VERSION)
# The image with the servers of examples/cluster.
EXAMPLES_IMG = $(shell echo '$(IMG)' | sed -E 's|(:[^:/]+)?$$|-examples\1|')
LDFLAGS := -s -w -X main.version=$(VERSION)
# Where `make install`, `deploy` and `undeploy` go: your kubectl and its current context.
KUBECTL ?= kubectl

# The pinned tools, each with a module of its own, so that their dependencies are not ours.
CONTROLLER_GEN := go tool -modfile=hack/tools/dev/go.mod controller-gen
GOLANGCI_LINT := go tool -modfile=hack/tools/lint/go.mod golangci-lint
HELM := go tool -modfile=hack/tools/helm/go.mod helm
# etcd, kube-apiserver and kubectl: asked for only by the targets that use it.
ASSETS = $$(bash hack/controlplane/get.sh)
# PostgreSQL's server for tests, unless CAPSTAN_TEST_POSTGRES is the URL of one.
POSTGRES_BIN = $$([ -n "$${CAPSTAN_TEST_POSTGRES:-}" ] || bash hack/postgres/get.sh)

# The reference MCP server, for tests.
EVERYTHING = $$(bash hack/everything/get.sh)

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
build-bin/fakemodel build-bin/toolserver build-bin/demo build-bin/bench: DIR := hack
.PHONY: $(PROGRAMS:%=build-bin/%)
$(PROGRAMS:%=build-bin/%): build-bin/%:
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/$* ./$(DIR)/$*

.PHONY: assets
assets: ## Get etcd, kube-apiserver and kubectl: downloaded, else built (once, about 7 minutes).
	@bash hack/controlplane/get.sh >/dev/null

.PHONY: postgres
postgres: ## Find PostgreSQL's server, or install Debian's package (with sudo). CAPSTAN_TEST_POSTGRES=postgres://... does without.
	@[ -n "$${CAPSTAN_TEST_POSTGRES:-}" ] || bash hack/postgres/get.sh >/dev/null

.PHONY: everything
everything: ## Get the reference MCP server for the tests: npm's, with Debian's node if there is none (with sudo).
	@bash hack/everything/get.sh >/dev/null

.PHONY: test
test: assets postgres everything ## Run all tests, with the race detector, against real servers. ARGS='-run X' and PKG=./x narrow it.
	KUBEBUILDER_ASSETS="$(ASSETS)" CAPSTAN_POSTGRES_BIN="$(POSTGRES_BIN)" CAPSTAN_MCP_EVERYTHING="$(EVERYTHING)" CGO_ENABLED=1 go test -race -timeout 20m $(ARGS) $(or $(PKG),./...)

.PHONY: fuzz
fuzz: ## Run each fuzz test for 30 s, or as long or as often as FUZZTIME says (5m, 2000x).
	@for f in $$(grep -rl --include=*_test.go '^func Fuzz' .); do \
	  for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$f); do \
	    go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(or $(FUZZTIME),30s) ./$$(dirname $$f); done; done

.PHONY: bench-prepare
bench-prepare: ## Measure the time and the memory that it takes to prepare a prompt, and to replay a journal.
	go test -run '^$$' -bench . -benchmem ./internal/runtime/prepare ./internal/runtime/turn

.PHONY: bench
bench: assets postgres bench-prepare ## Measure a manager beside a bare client, two executors, 1,000 Turns with tools, and 20,000 finished Turns. ARGS='--only floor,executors,tools,finished'; ARGS='--only neighbours' attacks a manager (as root, 10 to 20 minutes).
	@$(MAKE) -s build-bin/manager build-bin/bench
	@KUBEBUILDER_ASSETS="$(ASSETS)" CAPSTAN_POSTGRES_BIN="$(POSTGRES_BIN)" bin/bench --manager bin/manager $(ARGS)

.PHONY: chaos
chaos: assets ## The kill test: managers die at any instant, servers go away, and nothing may be done twice. ARGS='--seed 1'.
	@CGO_ENABLED=0 go build -trimpath -o bin/chaos ./hack/chaos
	@CGO_ENABLED=0 go build -trimpath -o bin/chaos-manager ./hack/chaos/manager
	@KUBEBUILDER_ASSETS="$(ASSETS)" CAPSTAN_POSTGRES_BIN="$$(bash hack/postgres/get.sh)" exec bin/chaos $(ARGS)

.PHONY: chaos-short
chaos-short: ## The kill test in its short form, with SQLite and one death between any two effects: 2 to 3 minutes.
	@$(MAKE) -s chaos ARGS='--turns 40 --kills 6 --outages 1 --points after --executor-turns 16 --store sqlite --timeout 6m $(ARGS)'

# What e2e builds: static programs, of which hack/e2e makes images, and those that it runs itself.
E2E := bin/e2e
.PHONY: e2e
e2e: ## Install the chart on a real kubelet on this machine, and disturb it (as root, on Linux; says what is missing). ARGS='--rounds delete,force'.
	@cni=$$(bash hack/e2e/needs.sh) && assets=$$(bash hack/controlplane/get.sh --all) && $(MAKE) -s e2e-programs && \
	  exec $(E2E)/e2e --kubernetes "$$assets" --programs $(E2E) --cni "$$cni" $(ARGS)

.PHONY: e2e-programs
e2e-programs:
	@echo "Building the programs of make e2e" >&2
	@CGO_ENABLED=0 go build -trimpath -tags timetzdata -ldflags '$(LDFLAGS)' -o $(E2E)/ ./cmd/manager ./cmd/capstan ./hack/fakemodel ./hack/toolserver ./hack/exampleservers ./hack/e2e ./hack/e2e/pause ./hack/e2e/wiper
	@cd hack/e2e/coredns && CGO_ENABLED=0 go build -mod=readonly -buildvcs=false -trimpath -ldflags '-s -w' -o ../../../$(E2E)/coredns .
	@go build -modfile=hack/tools/helm/go.mod -o $(E2E)/helm helm.sh/helm/v3/cmd/helm

.PHONY: e2e-down
e2e-down: ## Remove what `make e2e` has left: ARGS=--keep, or a run that was killed.
	@$(MAKE) -s e2e-programs && $(E2E)/e2e --down

.PHONY: lint
lint: ## Run golangci-lint.
	$(GOLANGCI_LINT) run

.PHONY: fmt
fmt: ## Format the code.
	$(GOLANGCI_LINT) fmt

.PHONY: generate
generate: ## Generate deepcopy, CRDs, RBAC and the chart's copies of them; tidy go.mod.
	$(CONTROLLER_GEN) object paths=./api/...
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=config/crd/bases
	go run ./hack/crds config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=capstan-manager paths=./internal/controller/... output:rbac:dir=config/rbac
	go run ./hack/chart
	go mod tidy

.PHONY: verify
verify: ## Fail if anything generated is not current.
	bash hack/verify.sh

##@ Ship

.PHONY: docker-build
docker-build: ## Build the image IMG, and the one of examples/cluster, with the suffix -examples. GO_IMAGE=golang:1.26-bookworm@sha256:... is the image of the compiler.
	@[[ '$(GO_IMAGE)' =~ @sha256:[0-9a-f]{64}$$ ]] || { echo "docker-build: set GO_IMAGE to an image of Go, with its digest, which \`docker buildx imagetools inspect golang:1.26-bookworm\` prints: GO_IMAGE=golang:1.26-bookworm@sha256:..." >&2; exit 1; }
	docker build --build-arg GO_IMAGE=$(GO_IMAGE) --build-arg VERSION=$(VERSION) -t $(IMG) .
	docker build --build-arg GO_IMAGE=$(GO_IMAGE) --target examples -t $(EXAMPLES_IMG) .

.PHONY: sbom
sbom: build ## Write what bin/manager and bin/capstan are made of to dist/*.cdx.json, as CycloneDX.
	@mkdir -p dist
	@for p in manager capstan; do \
	  go tool -modfile=hack/tools/sbom/go.mod cyclonedx-gomod bin -json -std -noserial -notimestamp -version $(VERSION) -output dist/$$p.cdx.json bin/$$p && \
	  echo "dist/$$p.cdx.json"; \
	done

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in the code that is called. VULNDB=URL is another database. Says so if it cannot be reached.
	@bash hack/vulncheck.sh

.PHONY: helm-lint
helm-lint: ## Check the chart.
	$(HELM) lint --strict charts/capstan
	@$(HELM) template capstan charts/capstan --kube-version 1.37.0 --namespace capstan-system >/dev/null

.PHONY: install
install: ## Install the CRDs into the cluster of your kubectl.
	$(KUBECTL) apply --server-side -k config/crd

.PHONY: uninstall
uninstall: ## Remove the CRDs, and with them all Agents, PromptProfiles, ModelProviders and Turns.
	$(KUBECTL) delete --ignore-not-found -k config/crd

.PHONY: deploy
deploy: ## Install CRDs and the manager (image IMG) into the cluster of your kubectl.
	$(KUBECTL) kustomize config/default | sed 's|capstan-dev/capstan:0.1.0|$(IMG)|' | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: ## Remove the manager and the CRDs.
	$(KUBECTL) delete --ignore-not-found -k config/default

.PHONY: clean
clean: ## Remove what was built here. The control plane stays in your cache folder.
	rm -rf bin dist cover.out
