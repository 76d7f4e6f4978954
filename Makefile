# Main targets: `make demo` and `make test`. `make help` lists all.
.PHONY: demo help test build run fmt lint layers deny unit soak fresh mutants scale bench generate

# Inside a pod, meshwright refuses to connect to loopback, where the API servers of the tests listen.
unexport KUBERNETES_SERVICE_HOST

# Runs the real operator on simulated clusters in one process, until Ctrl-C.
demo: ## run the real operator on simulated clusters
	@echo 'building meshwright: the first time about 2 minutes on two cores' >&2
	@[ -t 2 ] || quiet=--quiet; cargo run $$quiet --locked --profile demo --package meshwright -- demo

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: fmt lint layers deny unit ## run everything that a change must pass

# Builds the binary for the image: static, because the image has no base image.
build: ## build the static binary for the image
	cargo rustc --locked --release --package meshwright --bin meshwright -- -C target-feature=+crt-static -C strip=symbols

# Runs the operator on the cluster of the current kubeconfig: make run ARGS="--namespace team-a"
run: ARGS ?= --namespace default
run: ## run the operator with ARGS on the current kubeconfig
	cargo run --locked --release --package meshwright -- operator $(ARGS)

fmt: ## check the format
	cargo fmt --all --check

lint: ## run Clippy
	cargo clippy --locked --workspace --all-targets -- --deny warnings

# Dependencies that a crate must not have. Clippy bans clocks, files, the environment
# and unordered maps in the core (crates/mw-core/clippy.toml); this bans crates. Each
# crate is checked alone, because in the workspace it gets the features of other crates.
CLIENTS := kube_client|kube_runtime|tokio|tokio_.*|hyper|hyper_.*|reqwest
BANNED_mw-core := $(CLIENTS)|kube|kube_.*|k8s_openapi|tracing|tracing_.*|log|rand|rand_.*|getrandom|fastrand|chrono|jiff|time|uuid
BANNED_mw-api := $(CLIENTS)
BANNED_mw-sim := mw_core|mw_api|mw_controller|mw_testbed|meshwright|kube|kube_.*|hyper|hyper_.*|reqwest|rand|rand_.*|getrandom|fastrand|chrono|jiff|time|uuid
BANNED_mw-testbed := mw_core|mw_api|mw_controller|mw_sim|meshwright
LAYERS := layer-mw-core layer-mw-api layer-mw-sim layer-mw-testbed
.PHONY: $(LAYERS)
# `cargo tree` lists the declared dependencies. `cargo check` shows that mw-api, and the
# testbed through bench-scenario, compile with the features that they declare themselves.
layers: $(LAYERS) ## check the dependencies that each crate must not have
	cargo check --quiet --locked --package mw-api
	cargo check --quiet --locked --package bench-scenario
$(LAYERS): layer-%:
	@deps=$$(cargo tree --locked --package $* --edges normal --prefix none --format '{lib}' | sort -u) || exit 1; \
	  echo "$$deps" | grep -qx $(subst -,_,$*) || { echo "cargo tree did not list $*" >&2; exit 1; }; \
	  found=$$(echo "$$deps" | grep -xE '$(BANNED_$*)'); \
	  if [ -n "$$found" ]; then echo "$* must not depend on" $$found >&2; exit 1; fi; \
	  echo "$* has no banned dependencies"

# Checks licences, sources and bans (deny.toml). Builds cargo-deny once per machine, in
# about two minutes, into the cache that the tests also use.
CACHE := $(or $(MESHWRIGHT_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/meshwright)
DENY_VERSION := 0.20.2
DENY := $(CACHE)/cargo-deny-$(DENY_VERSION)
$(DENY)/bin/cargo-deny:
	cargo install --quiet --locked --root $(DENY) cargo-deny@$(DENY_VERSION)
# Checks advisories only if their database is already on this machine; fetches nothing.
ADVISORIES := $(or $(CARGO_HOME),$(HOME)/.cargo)/advisory-dbs
deny: $(DENY)/bin/cargo-deny ## check licences, sources and bans of dependencies
	$< --locked check bans licenses sources
	@if [ -n "$$(ls -A $(ADVISORIES) 2>/dev/null)" ]; then \
	    $< --locked --offline check advisories; \
	  else \
	    echo "skipped advisories: no database in $(ADVISORIES); to fetch it, run: $< fetch db"; \
	  fi

# As root, also runs the tests that need namespaces: see docs/packets.md and docs/cilium-testbed.md.
unit: ## run all test suites
	tools/suites

# Runs the simulations with new seeds for SECONDS; see docs/simulation.md. As root, then
# runs SEQUENCES random sequences with packets; see docs/packets.md.
SEQUENCES ?= 50
soak: ## run simulations with new seeds for SECONDS
	SIM_FIRST=$$(date +%s)000 SIM_SECONDS=$(or $(SECONDS),60) cargo test --quiet --locked --package mw-controller --test simulation --test cilium_simulation
	@if [ "$$(id -u)" != 0 ]; then \
	    echo "skipped packets: network namespaces need root; run: sudo -E make soak"; \
	  else \
	    PACKETS_FIRST=$$(date +%s) PACKETS_SEQUENCES=$(SEQUENCES) cargo test --quiet --locked --package meshwright --test packets -- sequences_; \
	  fi

# Runs laws and simulations of both back ends with new seeds for SECONDS, by default five
# minutes in total. Run it before you consider a change done. Prints the command that
# replays a failing seed.
fresh: ## run laws and simulations with new seeds, five minutes
	tools/fresh $(or $(SECONDS),300)

# Checks that the simulation finds known bugs, injected one at a time. Takes long.
mutants: ## check that the simulation finds known bugs
	tools/mutants

# Measures a large fleet: make scale SIZE=100x50
SIZE ?= 100x50
scale: ## measure a fleet of SIZE clusters x nodes
	SIM_SCALE=$(SIZE) cargo test --quiet --locked --package mw-controller --test simulation

# Prints benchmarks; see bench/README.md.
bench: ## run benchmarks
	cargo bench --locked --package mw-core
	cargo build --locked --release --package meshwright
	cargo build --locked --release --package bench-floor
	cargo run --locked --release --package bench-scenario

# Generates everything under config/, the RBAC rules of the chart and the reference pages
# under docs/. Tests fail if they are out of date.
generate: ## update generated files and pages
	cargo run --quiet --package mw-api --example generate
	cargo run --quiet --package meshwright --example render
	cargo run --quiet --package meshwright -- man --markdown > docs/cli.md
