# vcr and its guests.
#
#   docker build -t vcr .
#   docker run --rm vcr                              # the main job
#   docker run --rm -v "$PWD:/mine" vcr run /mine/my.rhai
#   docker run --rm -p 8000:8000 vcr serve --host 0.0.0.0
#
# `--build-arg SOURCE=prebuilt` compiles nothing: it takes prebuilt/amd64/vcr or prebuilt/arm64/vcr,
# stripped binaries such as those of releases, and prebuilt/home/guests/dist from the build context.
# So both architectures are made on one machine:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg SOURCE=prebuilt .
ARG SOURCE=build

FROM rust:1.95-bookworm AS build
RUN rustup target add wasm32-unknown-unknown && apt-get update && apt-get install --yes --no-install-recommends libclang-dev
WORKDIR /src
COPY . .
RUN cargo build --release --locked --features full && target/release/vcr guest build \
    && mkdir -p /built/home/guests && strip -o /built/vcr target/release/vcr \
    && cp -r guests/dist /built/home/guests/dist

FROM scratch AS prebuilt
ARG TARGETARCH
COPY prebuilt/${TARGETARCH}/vcr /built/vcr
COPY prebuilt/home /built/home

FROM ${SOURCE} AS built

# C and C++ runtime and root certificates: no shell, no packages to keep up to date.
FROM gcr.io/distroless/cc-debian12
COPY --from=built /built/vcr /usr/local/bin/vcr
# The user's own, since `--out` writes beside the scenarios.
COPY --from=built --chown=1000:1000 /built/home /opt/vcr
COPY --chown=1000:1000 scenarios /opt/vcr/scenarios
COPY LICENSE /opt/vcr/LICENSE
LABEL org.opencontainers.image.title="vcr" \
      org.opencontainers.image.description="A simulator of the vLLM engine with scripted workloads" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, so that Kubernetes can tell that it is not root.
USER 1000
WORKDIR /opt/vcr
# Of `vcr serve` on its default port.
HEALTHCHECK --start-period=10s --interval=10s --timeout=5s CMD ["vcr", "health"]
ENTRYPOINT ["vcr"]
CMD ["run", "scenarios/pd_burst.rhai"]
