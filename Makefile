# The commands for newcomers and CI. `make demo` shows a team at work; `make test` checks what a change can break on one machine;
# `make test-all` checks everything.

CARGO ?= cargo

# The first builds write no data for incremental ones, which takes less time and a third of the disk. A `cargo build` of your own
# writes such data and compiles the crates of the workspace once more for it. From then on these commands use the data as well.
ifeq ($(wildcard target/debug/incremental/*),)
export CARGO_INCREMENTAL ?= 0
endif

BENCH_CALL = repeat '{"text":"a","times":3}'

.PHONY: demo test test-all lint bench compare regress fuzz judges chart try docs tools

# The build is the one of the tests, so `make test` does not repeat it.
demo:
	@python3 tools/install demo
	PATH="$(CURDIR)/.tools/bin:$$PATH" $(CARGO) run --locked --bin planck -- demo

test:
	@python3 tools/install test
	./tools/check

test-all: test tools
	./tools/check rest

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- --deny warnings
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny --all-features check; \
	else echo "WARNING: cargo-deny is not installed: licences and advisories were NOT checked (cargo install --locked cargo-deny)" >&2; fi

bench: tools
	PATH="$(CURDIR)/.tools/bin:$$PATH" $(CARGO) build --locked --profile dist -p planck-bench -p planck-sidecar --features planck-bench/jemalloc --bin planck-bench --example text-rust
	PATH="$(CURDIR)/.tools/bin:$$PATH" target/dist/planck-bench --bare --with-nats
	$(CARGO) bench --locked -p planck-bench --bench agent --bench llm --bench store
	PATH="$(CURDIR)/.tools/bin:$$PATH" target/dist/planck-bench sidecar text-rust $(BENCH_CALL) --instances 3 -- target/dist/examples/text-rust
	PATH="$(CURDIR)/.tools/bin:$$PATH" PYTHONPATH=.tools/python:sidecar-sdk/python target/dist/planck-bench \
		sidecar text-python $(BENCH_CALL) --instances 3 -- python3 examples/sidecars/python/text.py

# Compares Planck with other runtimes on this machine: what turns cost, and what a kill loses or doubles. It fetches and builds them,
# which takes minutes. `make compare WITH=--write` also writes docs/comparison.md.
compare:
	@python3 tools/install demo
	./tools/compare $(WITH)

# Compares the CPU time per turn with that of an earlier commit: `make regress BASE=main~5`. Both are built, which takes minutes.
regress:
	./tools/regress $(BASE)

# Fetches everything that tests, judges and benchmarks use and the machine lacks.
tools:
	@python3 tools/install

# Tests agents with llama.cpp's server and LiteLLM's proxy. The first run builds and fetches them (tests/judges/README.md).
judges:
	$(CARGO) build --locked -p planck-cli -p planck-scripted-model --bins
	python3 tests/judges/servers/judge.py target/debug/planck target/debug/scripted-model

# Checks the Helm chart with Helm's engine and the types of Kubernetes, and the dashboard with those of Grafana. The first run
# compiles them, which takes minutes. go.sum pins every module by its hash.
chart:
	mkdir -p .tools/bin
	cd tests/chart && go build -trimpath -o ../../.tools/bin/planck-chart .
	.tools/bin/planck-chart deploy/helm/planck
	.tools/bin/planck-chart deploy/grafana/planck.json

# Tests the compose file on this machine's Docker engine: `make try WITH="--binaries target/release"`.
try:
	./deploy/try $(WITH)

# Runs libFuzzer on every decoder of outside bytes: `make fuzz SECONDS=600`.
fuzz:
	./tools/fuzz $(SECONDS)

# Builds the pages under docs/ as a book in target/book, and checks its links. The first run compiles mdbook, which takes minutes.
docs:
	python3 tools/docs
