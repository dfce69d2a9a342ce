#!/usr/bin/env bash
# Captures the large corpus that the benches measure on: stacks of python3,
# node, cc1plus, rustc and of three recursions in C.
#
#   benches/capture.sh [FOLDER]      (target/corpus if none is named)
#
# Takes a minute and about 400 MB. Needs gcc, g++, python3, node and the
# right to sample (root, or kernel.perf_event_paranoid at most 1).
set -euo pipefail
export RUSTUP_DIST_SERVER=http://127.0.0.1:9
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
folder=$(realpath --canonicalize-missing "${1:-$target/corpus}")
mkdir -p "$folder/programs"
cargo build --quiet --locked --package unwind-cli
unwind=$target/debug/unwind
programs=$here/programs
# Compilers that are ended leave files where they run.
cd "$folder/programs"

take() { # NAME OPTIONS... -- COMMAND...
    local name=$1
    shift
    [ -e "$folder/$name.snap" ] && return
    printf '%s: ' "$name"
    "$unwind" snapshot --kill --output "$folder/$name.part" "$@" 2>&1 >/dev/null | tail -1
    mv "$folder/$name.part" "$folder/$name.snap"
}

common=(-O2 -fno-optimize-sibling-calls -Wall -Wextra)
frame_pointers=(-fno-omit-frame-pointer -mno-omit-leaf-frame-pointer)
gcc "${common[@]}" "${frame_pointers[@]}" -DOWN_WORK \
    -o "$folder/programs/allfp" "$programs/recursion.c"
gcc "${common[@]}" "${frame_pointers[@]}" -o "$folder/programs/fp" "$programs/recursion.c"
gcc "${common[@]}" -fomit-frame-pointer -o "$folder/programs/nofp" "$programs/recursion.c"
g++ -std=c++17 -E "$programs/templates.cc" -o "$folder/programs/templates.ii"
compiler=$(gcc -print-prog-name=cc1plus)

for kind in allfp fp nofp; do
    take "c-$kind" --rate 4999 --count 1000 -- "$folder/programs/$kind" 1000000
done
take python --rate 997 --count 1000 -- python3 "$programs/work.py"
take node --rate 997 --count 1000 -- node "$programs/work.js"
take cc1plus --rate 997 --count 1000 -- \
    "$compiler" -fpreprocessed -quiet -O2 -std=c++17 "$folder/programs/templates.ii" -o /dev/null
rustc=(rustc --edition 2024 --crate-type lib --emit obj=/dev/null -C opt-level=3)
take rustc --rate 997 --count 1000 -- "${rustc[@]}" "$programs/generic.rs"
take rustc-whole --whole --rate 200 --count 400 -- \
    "$(rustc --print sysroot)/bin/rustc" "${rustc[@]:1}" "$programs/generic.rs"
