# The two commands: `make demo` and `make test`. The rest serves them.
.PHONY: demo test fmt lint layers unit bench generate

EXAMPLE := examples/three-clusters

# Plans an example fleet. Changes are pending there, so the plan answers with 1.
demo:
	@cargo run --quiet --package meshwright -- plan --filename $(EXAMPLE)/mesh.yaml \
	  --cluster berlin=$(EXAMPLE)/berlin.yaml --cluster oslo=$(EXAMPLE)/oslo.yaml --cluster lab=$(EXAMPLE)/lab.yaml \
	  || test $$? -eq 1

test: fmt lint layers unit

fmt:
	cargo fmt --all --check

lint:
	cargo clippy --locked --workspace --all-targets -- --deny warnings

# What the core must never see. Clippy bans clocks, files, the environment and
# unordered maps there (crates/mw-core/clippy.toml); this bans crates.
BANNED := kube|kube_.*|k8s_openapi|tokio|tokio_.*|tracing|tracing_.*|log|hyper|hyper_.*|reqwest|rand|rand_.*|getrandom|fastrand|chrono|jiff|time|uuid
layers:
	@deps=$$(cargo tree --locked --package mw-core --edges normal --prefix none --format '{lib}' | sort -u) || exit 1; \
	  echo "$$deps" | grep -qx mw_core || { echo "cargo tree did not list mw-core" >&2; exit 1; }; \
	  found=$$(echo "$$deps" | grep -xE '$(BANNED)'); \
	  if [ -n "$$found" ]; then echo "mw-core must not depend on" $$found >&2; exit 1; fi; \
	  echo "mw-core sees no client, runtime, log, clock or randomness"

unit:
	cargo test --locked --workspace --lib --bins --tests

# Ratios inside one run; see bench/README.md.
bench:
	cargo bench --locked --package mw-core

# Everything under config/ comes from here; a test fails when it is out of date.
generate:
	cargo run --quiet --package mw-api --example generate
