# vcr and its guests, built from source.
#
#   docker build -t vcr .
#   docker run --rm vcr                              # the main job
#   docker run --rm -v "$PWD:/mine" vcr run /mine/my.rhai

FROM rust:1.95-bookworm AS build
RUN rustup target add wasm32-unknown-unknown
WORKDIR /src
COPY . .
RUN cargo build --release --locked --features full && target/release/vcr guest build

FROM debian:bookworm-slim
# Pulling guests from registries checks certificates.
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home vcr
COPY --from=build /src/target/release/vcr /usr/local/bin/vcr
COPY --from=build /src/scenarios /opt/vcr/scenarios
COPY --from=build /src/guests/dist /opt/vcr/guests/dist
# `--out` writes beside the scenarios.
RUN chown vcr:vcr /opt/vcr
USER vcr
WORKDIR /opt/vcr
ENTRYPOINT ["vcr"]
CMD ["run", "scenarios/pd_burst.rhai"]
