#!/usr/bin/env bash
# Records python3, node, cc1plus and a recursion in C without and with frame
# pointers by `perf record --call-graph dwarf`, and compares 1,000 stacks of each,
# frame by frame, with the reference's, framehop's and those of `perf script`.
#
#   benches/perf-stacks.sh [FOLDER]      (target/perf if none is named)
#
# Takes two minutes and 650 MB. Needs perf, gcc, g++, python3, node and the right to
# sample (root, or kernel.perf_event_paranoid at most 1).
set -euo pipefail
export RUSTUP_DIST_SERVER=http://127.0.0.1:9
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
folder=$(realpath --canonicalize-missing "${1:-$target/perf}")
mkdir -p "$folder/programs"
cargo build --quiet --locked --profile bench --package unwind-benches --bin perf-stacks
programs=$here/programs
# Compilers that are ended leave files where they run.
cd "$folder/programs"

take() { # NAME COMMAND...
    local name=$1
    shift
    [ -e "$folder/$name.data" ] && return
    # Ended after 8 seconds or 120 MB, which is some 1,900 samples.
    timeout --signal INT 8 perf record --quiet --event cpu-clock --freq 999 \
        --call-graph dwarf,65528 --max-size 120M --output "$folder/$name.part" -- "$@" \
        >/dev/null 2>&1 || true
    mv "$folder/$name.part" "$folder/$name.data"
}

common=(-O2 -fno-optimize-sibling-calls -Wall -Wextra)
gcc "${common[@]}" -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -DOWN_WORK \
    -o allfp "$programs/recursion.c"
gcc "${common[@]}" -fomit-frame-pointer -o nofp "$programs/recursion.c"
g++ -std=c++17 -E "$programs/templates.cc" -o templates.ii

# A command of that name may be a script that looks for the program.
take python "$(python3 -c 'import sys; print(sys.executable)')" "$programs/work.py"
take node node "$programs/work.js"
take cc1plus "$(gcc -print-prog-name=cc1plus)" -fpreprocessed -quiet -O2 -std=c++17 \
    templates.ii -o /dev/null
take c-nofp "$PWD/nofp" 1000000
take c-allfp "$PWD/allfp" 1000000
cd "$folder"
"$target/release/perf-stacks" 1000 {python,node,cc1plus,c-nofp,c-allfp}.data
