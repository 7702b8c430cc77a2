# The image of the manager: one static binary, the roots of trust, and nothing to break out with.
#
#   docker build --build-arg GO_IMAGE=golang:1.26-bookworm@sha256:... --build-arg VERSION=0.1.0 -t capstan-dev/capstan:0.1.0 .
#
# GO_IMAGE is the image of the compiler, with its digest: a tag can be moved to another image. There is no default. This prints the digest:
#
#   docker buildx imagetools inspect golang:1.26-bookworm
ARG GO_IMAGE

# The compiler runs on the builder's own platform and cross-compiles: no emulation.
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG GO_IMAGE
RUN case "$GO_IMAGE" in *@sha256:*) ;; *) echo "GO_IMAGE=$GO_IMAGE has no digest: take NAME:TAG@sha256:..." >&2; exit 1 ;; esac
WORKDIR /src
# A module mirror of your own: --build-arg GOPROXY=https://...
ARG GOPROXY
# Modules in a layer of their own: a change of code does not fetch them again.
COPY go.mod go.sum ./
RUN go mod download
COPY api/ api/
COPY cmd/ cmd/
COPY internal/ internal/
COPY hack/ hack/
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
# timetzdata embeds the time zones; without cgo the binary needs no C library.
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath -tags timetzdata \
      -ldflags "-s -w -X main.version=${VERSION}" -o /out/manager ./cmd/manager \
 && mkdir -p /out/data

# The servers of examples/cluster, in an image of their own: --target examples.
FROM build AS build-examples
ARG TARGETOS
ARG TARGETARCH
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} go build -trimpath -ldflags '-s -w' -o /out/exampleservers ./hack/exampleservers

FROM scratch AS examples
COPY --from=build-examples /out/exampleservers /exampleservers
USER 65532:65532
ENTRYPOINT ["/exampleservers"]

FROM scratch
ARG VERSION=dev
LABEL org.opencontainers.image.title="Capstan" \
      org.opencontainers.image.description="Runs LLM agents on Kubernetes, one Turn at a time" \
      org.opencontainers.image.source="https://github.com/capstan-dev/capstan" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# A data folder the user below can write to, for runs without a volume.
COPY --from=build --chown=65532:65532 /out/data /var/lib/capstan
COPY --from=build /out/manager /manager
# By number: Kubernetes can check runAsNonRoot only so.
USER 65532:65532
ENTRYPOINT ["/manager"]
