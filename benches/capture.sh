#!/usr/bin/env bash
# Captures the large corpus that the benches measure on: stacks of python3,
# node (at mixed work, and in compiled code alone), cc1plus, rustc and of three recursions in C.
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
cargo build --quiet --locked --package unwind-snapshot
snapshot=$target/debug/snapshot
programs=$here/programs
# Compilers that are ended leave files where they run.
cd "$folder/programs"

# Samples are a perf.data; whole stacks, which may be longer than 64 KiB, are not.
take() { # FILE OPTIONS... -- COMMAND...
    local file=$1
    shift
    [ -e "$folder/$file" ] && return
    printf '%s: ' "$file"
    "$snapshot" --kill --output "$folder/$file.part" "$@" 2>&1 >/dev/null | tail -1
    mv "$folder/$file.part" "$folder/$file"
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
    take "c-$kind.data" --rate 4999 --count 1000 -- "$folder/programs/$kind" 1000000
done
take python.data --rate 997 --count 1000 -- python3 "$programs/work.py"
take node.data --rate 997 --count 1000 -- node "$programs/work.js"
take node-jit.data --rate 997 --count 1000 -- node "$programs/hot.js"
take cc1plus.data --rate 997 --count 1000 -- \
    "$compiler" -fpreprocessed -quiet -O2 -std=c++17 "$folder/programs/templates.ii" -o /dev/null
rustc=(rustc --edition 2024 --crate-type lib --emit obj=/dev/null -C opt-level=3)
take rustc.data --rate 997 --count 1000 -- "${rustc[@]}" "$programs/generic.rs"
take rustc-whole.snap --whole --rate 200 --count 400 -- \
    "$(rustc --print sysroot)/bin/rustc" "${rustc[@]:1}" "$programs/generic.rs"
