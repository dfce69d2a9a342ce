#!/usr/bin/env bash
# Prints the table of benches/figures/measured/coverage.md: how much of the libraries their tests and
# the fuzz corpora reach. With --rest, the lines and sides of branches that nothing reaches.
#
# It takes a quarter of an hour, and needs cargo-llvm-cov and LLVM's tools of the version
# whose profiles the compiler writes; LLVM_COV and LLVM_PROFDATA name others.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! cargo llvm-cov --version >/dev/null 2>&1; then
    echo "cargo-llvm-cov is not installed: cargo install cargo-llvm-cov" >&2
    exit 2
fi
# Without the two tools' names it would fetch a part of the toolchain; branches are a
# feature of the compiler that is not stable.
export LLVM_COV=${LLVM_COV:-llvm-cov-19} LLVM_PROFDATA=${LLVM_PROFDATA:-llvm-profdata-19}
export RUSTC_BOOTSTRAP=1
libraries=(unwind-core sframe unwind-cfi unwind-x86 unwind-perf)
packages=()
for library in "${libraries[@]}" fuzz/targets/libraries; do
    packages+=(--package "$(sed -n 's/^name = "\(.*\)"/\1/p' "$library/Cargo.toml" | head -1)")
done
cargo llvm-cov clean --workspace
cargo llvm-cov --branch --no-report --no-fail-fast --locked "${packages[@]}" \
    --features unwind-sframe/cfi,unwind-perf/alloc >&2
cargo llvm-cov report --branch --lcov --output-path target/coverage.lcov
cargo llvm-cov report --branch --json --output-path target/coverage.json
python3 benches/figures/coverage.py "$@" "${libraries[@]}"
