# vcr and its guests.
#
#   docker build -t vcr .
#   docker run --rm vcr                              # the main job
#   docker run --rm -v "$PWD:/mine" vcr run /mine/my.rhai
#   docker run --rm -p 8000:8000 vcr serve --host 0.0.0.0
#
# `--build-arg SOURCE=prebuilt` compiles nothing: it takes prebuilt/vcr, a binary for
# Debian 12's glibc, and prebuilt/guests from the build context.
ARG SOURCE=build

FROM rust:1.95-bookworm AS build
RUN rustup target add wasm32-unknown-unknown
WORKDIR /src
COPY . .
RUN cargo build --release --locked --features full && target/release/vcr guest build \
    && mkdir /built && strip -o /built/vcr target/release/vcr && cp -r guests/dist /built/guests

FROM debian:bookworm-slim AS prebuilt
COPY prebuilt /built

FROM ${SOURCE} AS built

FROM debian:bookworm-slim
# Pulling guests from registries checks certificates.
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 vcr
COPY --from=built /built/vcr /usr/local/bin/vcr
COPY --from=built /built/guests /opt/vcr/guests/dist
COPY scenarios /opt/vcr/scenarios
# `--out` writes beside the scenarios.
RUN chown vcr:vcr /opt/vcr
# A number, so that Kubernetes can tell that it is not root.
USER 1000
WORKDIR /opt/vcr
# Of `vcr serve` on its default port.
HEALTHCHECK --start-period=10s --interval=10s --timeout=5s CMD ["vcr", "health"]
ENTRYPOINT ["vcr"]
CMD ["run", "scenarios/pd_burst.rhai"]
