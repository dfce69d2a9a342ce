#!/usr/bin/env bash
# Says how much code a walk adds to a program, of this workspace and of others:
# the programs in src/bin/size, optimised and linked as one, less the one that
# does nothing.
set -euo pipefail
export RUSTUP_DIST_SERVER=http://127.0.0.1:9
export CARGO_PROFILE_BENCH_PANIC=abort CARGO_PROFILE_BENCH_OPT_LEVEL=3
cd "$(dirname "$0")/.."
programs=(nothing unwinder tables remote-tables framehop simple-frame-rs)
cargo build --quiet --locked --profile bench --package unwind-benches "${programs[@]/#/--bin=size-}"

bytes() { # SECTION PROGRAM
    objdump --headers --wide "${CARGO_TARGET_DIR:-target}/release/size-$2" |
        awk -v name="$1" '$2 == name { print "0x" $3 }'
}

printf '%-20s %8s %8s\n' "bytes" ".text" ".rodata"
for program in "${programs[@]:1}"; do
    printf '%-20s' "$program"
    for section in .text .rodata; do
        printf ' %8d' $(($(bytes "$section" "$program") - $(bytes "$section" nothing)))
    done
    printf '\n'
done
