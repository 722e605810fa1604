# krmcat in a container: one static program, nobody's privileges, nothing else.
#
#   docker build -t krmcat .                       with a Go image to build in
#   make image                                     from bin/krmcat, without one
#   docker run -p 8080:8080 -v krmcat:/data -v ./users.txt:/etc/krmcat/users:ro krmcat
#
# users.txt is who may publish, as htpasswd -B writes it. Give other arguments to change that: serve --read-only, say.
# Build with --format docker to keep the health check if you build with podman.

ARG BUILDER_IMAGE=docker.io/library/golang:1.26

# What both ways to build end with.
FROM scratch AS base
USER 65534:65534
ENV HOME=/data
WORKDIR /data
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=6s --start-period=30s CMD ["/krmcat", "serve", "--healthcheck", "--listen", ":8080"]
ENTRYPOINT ["/krmcat"]
CMD ["serve", "--data", "/data", "--listen", ":8080", "--htpasswd", "/etc/krmcat/users"]
LABEL org.opencontainers.image.title="krmcat" \
      org.opencontainers.image.description="A catalog registry for KRM functions" \
      org.opencontainers.image.source="https://github.com/krmcat/krmcat" \
      org.opencontainers.image.licenses="Apache-2.0"

# From what make image put into bin.
FROM base AS prebuilt
COPY bin/image/ /
COPY --chown=65534:65534 bin/data/ /data/
VOLUME /data

FROM ${BUILDER_IMAGE} AS build
WORKDIR /src
COPY . .
ARG VERSION=devel
# Only what krmcat itself is made of is downloaded, once for all builds.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    mkdir -p /out/image/etc/ssl/certs /out/image/tmp /out/data \
 && chmod 1777 /out/image/tmp \
 && cp /etc/ssl/certs/ca-certificates.crt /out/image/etc/ssl/certs/ \
 && CGO_ENABLED=0 go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X github.com/krmcat/krmcat/internal/version.Version=${VERSION}" \
      -o /out/image/krmcat ./cmd/krmcat

FROM base
COPY --from=build /out/image/ /
COPY --from=build --chown=65534:65534 /out/data/ /data/
VOLUME /data
