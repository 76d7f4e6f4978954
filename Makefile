# The two commands: `make demo` and `make test`. The rest serves them.
.PHONY: demo test build run fmt lint layers deny unit soak fresh mutants scale bench generate

# The API servers of the tests are on loopback, which a pod refuses to connect to.
unexport KUBERNETES_SERVICE_HOST

# Simulated clusters in one process and the real operator on them; Ctrl-C ends it.
demo:
	@cargo run --quiet --package meshwright -- demo

test: fmt lint layers deny unit

# The binary that the image holds: static, so that it needs no image to stand on.
build:
	cargo rustc --locked --release --package meshwright --bin meshwright -- -C target-feature=+crt-static -C strip=symbols

# The operator on the cluster of the current kubeconfig: make run ARGS="--namespace team-a"
run:
	cargo run --locked --release --package meshwright -- operator $(ARGS)

fmt:
	cargo fmt --all --check

lint:
	cargo clippy --locked --workspace --all-targets -- --deny warnings

# What a crate must never see. Clippy bans clocks, files, the environment and
# unordered maps in the core (crates/mw-core/clippy.toml); this bans crates. Each
# crate is asked for alone: in the workspace it would get its neighbours' features.
CLIENTS := kube_client|kube_runtime|tokio|tokio_.*|hyper|hyper_.*|reqwest
BANNED_mw-core := $(CLIENTS)|kube|kube_.*|k8s_openapi|tracing|tracing_.*|log|rand|rand_.*|getrandom|fastrand|chrono|jiff|time|uuid
BANNED_mw-api := $(CLIENTS)
BANNED_mw-sim := mw_core|mw_api|mw_operator|mw_testbed|meshwright|kube|kube_.*|hyper|hyper_.*|reqwest|rand|rand_.*|getrandom|fastrand|chrono|jiff|time|uuid
BANNED_mw-testbed := mw_core|mw_api|mw_operator|mw_sim|meshwright
LAYERS := layer-mw-core layer-mw-api layer-mw-sim layer-mw-testbed
.PHONY: $(LAYERS)
# The tree shows what mw-api asks for; the checks, that its code makes do with
# that, and that of the testbed, which the benchmarks build alone.
layers: $(LAYERS)
	cargo check --quiet --locked --package mw-api
	cargo check --quiet --locked --package bench-scenario
$(LAYERS): layer-%:
	@deps=$$(cargo tree --locked --package $* --edges normal --prefix none --format '{lib}' | sort -u) || exit 1; \
	  echo "$$deps" | grep -qx $(subst -,_,$*) || { echo "cargo tree did not list $*" >&2; exit 1; }; \
	  found=$$(echo "$$deps" | grep -xE '$(BANNED_$*)'); \
	  if [ -n "$$found" ]; then echo "$* must not depend on" $$found >&2; exit 1; fi; \
	  echo "$* sees nothing that is banned there"

# Licences, sources and what is banned, as deny.toml says. Built once per machine,
# in about two minutes, beside what the tests build for themselves.
CACHE := $(or $(MESHWRIGHT_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/meshwright)
DENY_VERSION := 0.20.2
DENY := $(CACHE)/cargo-deny-$(DENY_VERSION)
$(DENY)/bin/cargo-deny:
	cargo install --quiet --locked --root $(DENY) cargo-deny@$(DENY_VERSION)
# Advisories are checked where their database is at hand; nothing is fetched.
ADVISORIES := $(or $(CARGO_HOME),$(HOME)/.cargo)/advisory-dbs
deny: $(DENY)/bin/cargo-deny
	$< --locked check bans licenses sources
	@if [ -n "$$(ls -A $(ADVISORIES) 2>/dev/null)" ]; then \
	    $< --locked --offline check advisories; \
	  else \
	    echo "advisories were not checked: there is no database in $(ADVISORIES); to fetch it: $< fetch db"; \
	  fi

# As root also what needs namespaces: see docs/packets.md and docs/cilium-testbed.md.
unit:
	cargo test --locked --workspace --lib --bins --tests

# Fresh seeds for so long; see docs/simulation.md.
SECONDS ?= 60
soak:
	SIM_FIRST=$$(date +%s)000 SIM_SECONDS=$(SECONDS) cargo test --quiet --locked --package mw-operator --test simulation --test cilium_simulation

# Laws and simulations of both back ends on fresh seeds, five minutes in all:
# before an issue is called done. Prints what replays a seed that fails.
fresh: SECONDS := 300
fresh:
	tools/fresh $(SECONDS)

# Whether the simulation finds bugs that are put in on purpose. Takes long.
mutants:
	tools/mutants

# What a large fleet costs: make scale SIZE=100x50
SIZE ?= 100x50
scale:
	SIM_SCALE=$(SIZE) cargo test --quiet --locked --package mw-operator --test simulation

# Ratios inside one run; see bench/README.md.
bench:
	cargo bench --locked --package mw-core
	cargo build --locked --release --package meshwright
	cargo build --locked --release --package bench-floor
	cargo run --locked --release --package bench-scenario

# Everything under config/, the rules of the chart and the references under docs/
# come from here; tests fail when they are out of date.
generate:
	cargo run --quiet --package mw-api --example generate
	cargo run --quiet --package meshwright --example render
	cargo run --quiet --package meshwright -- man --markdown > docs/cli.md
