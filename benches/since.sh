#!/usr/bin/env bash
# Compares a walk of this revision with one of an earlier revision: instructions a frame, counted by
# callgrind, of the large corpora in time order, with the misses of a cache of 512 rows; and what is
# left of them with 4,096 rows.
#
#   benches/since.sh REVISION [FILE...]      (cc1plus, node, python, rustc if none is named)
#
# Builds the earlier one in a tree of its own, which it removes.
set -euo pipefail
export RUSTUP_DIST_SERVER=http://127.0.0.1:9
cd "$(dirname "$0")/.."
revision=$1
shift
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
folder=$(mktemp -d)
trap 'git worktree remove --force "$folder/tree"; rm -r "$folder"' EXIT
git worktree add --quiet --detach "$folder/tree" "$revision"
(cd "$folder/tree" && CARGO_TARGET_DIR="$target/since" \
    cargo build --quiet --locked --profile bench --package unwind-benches --bin walk)
cargo build --quiet --locked --profile bench --package unwind-benches --bin walk --bin large-replay --bin cut-corpus
if [ $# -eq 0 ]; then
    benches/capture.sh >&2
    # In the form that both read: all stacks, and of the tables the functions on them.
    for name in cc1plus node python rustc; do
        "$target/release/cut-corpus" 1000 "$folder" "$target/corpus/$name.data" >&2
    done
    set -- "$folder"/*.snap
fi

run() { # WALK...: instructions and frames
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 |
        awk '/Collected/ { ir = $NF } /^[0-9]+$/ { frames = $1 } END { print ir, frames }'
}

figure() { # FILE COUNT WALK...: instructions a frame
    local ir1 n1 ir2 n2 file=$1 count=$2
    shift 2
    # shellcheck disable=SC2086 # No count is no argument.
    read -r ir1 n1 <<<"$(run "$@" 1 $count "$file")"
    # shellcheck disable=SC2086
    read -r ir2 n2 <<<"$(run "$@" 2 $count "$file")"
    awk -v ir="$((ir2 - ir1))" -v n="$((n2 - n1))" 'BEGIN { printf "%.1f", ir / n }'
}

printf '%-24s %9s %9s %9s %9s %9s\n' "replay, large corpora" "$revision" now ratio "4096 rows" ratio
for file in "$@"; do
    then=$(figure "$file" 1000 "$target/since/release/walk" replay unwind)
    now=$(figure "$file" 1000 "$target/release/walk" replay walker)
    large=$(figure "$file" "" "$target/release/large-replay")
    name=$(basename "$file")
    awk -v name="${name%.*}" -v then="$then" -v now="$now" -v large="$large" 'BEGIN {
        printf "%-24s %9.1f %9.1f %9.2f %9.1f %9.2f\n", name, then, now, now / then, large, large / then
    }'
done
