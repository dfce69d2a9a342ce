#!/usr/bin/env bash
# Counts instructions by callgrind: a frame of each unwinder, hot and in time
# order, a walk of stacks of few frames and of many, a lookup, a miss of the cache (with the lookup, the step and keeping the
# row), a sample after a change of what is mapped, a request.
#
#   benches/instructions.sh [--frames] [--own EXAMPLE] [FILE...]      (the committed corpora if none is named)
#
# With --frames only what frames and walks take. With --own a column more, of the unwinder that the
# example of this name adds under its own name. Exits 1 if framehop takes fewer instructions a frame
# than the library does, or a walk of stacks of any of these depths or through any of these numbers of places.
#
# Each figure is the difference of two runs, so that what happens once, such as
# building tables, is not in it.
set -euo pipefail
export RUSTUP_DIST_SERVER=http://127.0.0.1:9
cd "$(dirname "$0")/.."
frames_alone=
if [ "${1-}" = --frames ]; then frames_alone=1; shift; fi
own=() program=(--bin walk) walk=walk
if [ "${1-}" = --own ]; then own=("$2") program=(--example "$2") walk=examples/$2; shift 2; fi
[ $# -gt 0 ] || set -- benches/corpus/*.snap
cargo build --quiet --locked --profile bench --package unwind-benches "${program[@]}"
walk=${CARGO_TARGET_DIR:-target}/release/$walk
command -v valgrind >/dev/null || { echo "valgrind is not installed" >&2; exit 1; }

corpus() { # FILE: its name without the extension
    local name
    name=$(basename "$1")
    printf '%s' "${name%.*}"
}

run() { # MODE NAME ROUNDS COUNT FILE: instructions and frames
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$walk" "$@" 2>&1 |
        awk '/Collected/ { ir = $NF } /^[0-9]+$/ { frames = $1 } END { print ir, frames }'
}

figure() { # MODE NAME FEWER MORE COUNT FILE: instructions a frame
    local ir1 n1 ir2 n2
    read -r ir1 n1 <<<"$(run "$1" "$2" "$3" "$5" "$6")"
    read -r ir2 n2 <<<"$(run "$1" "$2" "$4" "$5" "$6")"
    awk -v ir="$((ir2 - ir1))" -v n="$((n2 - n1))" 'BEGIN { printf " %9.1f", ir / n }'
}

# By `unwind::Unwinder` with 4,096 rows and with 512, of SFrame tables and of call frame information;
# by rivals; by a walker of the benches' own with 512 rows.
ours=(unwind unwind-512 call-frames call-frames-512)
unwinders=("${ours[@]}" framehop simple-frame-rs gimli walker indexed "${own[@]}")
slower=()
check() { # WHAT NAME OURS THEIRS: notes where framehop takes fewer
    awk -v a="$3" -v b="$4" 'BEGIN { exit a + 0 > b + 0 }' || slower+=("$2 on $1")
}
tables=(plain v2 indexed simple-frame-rs gimli)
printf '%-24s' "instructions a frame"
printf ' %9.9s' unwind 512-rows by-cfi cfi-512 framehop simple-fr gimli walker indexed "${own[@]}"
printf '\n'
for file in "$@"; do
    name=$(corpus "$file")
    for mode in "hot 5 25 20" "replay 1 2 200"; do
        read -r how fewer more count <<<"$mode"
        printf '%-24s' "$name, $how"
        taken=()
        for unwinder in "${unwinders[@]}"; do
            taken+=("$(figure "$how" "$unwinder" "$fewer" "$more" "$count" "$file")")
            printf '%s' "${taken[-1]}"
        done
        printf '\n'
        for at in "${!ours[@]}"; do
            # framehop comes after ours.
            check "$name, $how" "${ours[$at]}" "${taken[$at]}" "${taken[${#ours[@]}]}"
        done
    done
done

# The corpora that have stacks of each depth; rows are in the caches.
printf '\n%-24s %9s %9s %9s\n' "instructions a walk" unwind by-cfi framehop
for name in c-allfp c-nofp; do
    for frames in 1 2 5 10 20 100; do
        printf '%-24s' "$name, $frames frames"
        taken=()
        for unwinder in unwind call-frames framehop; do
            taken+=("$(figure depth "$unwinder" 5 25 "$frames" "benches/corpus/$name.snap")")
            printf '%s' "${taken[-1]}"
        done
        printf '\n'
        check "$name, $frames frames" unwind "${taken[0]}" "${taken[2]}"
        check "$name, $frames frames" call-frames "${taken[1]}" "${taken[2]}"
    done
done

# Each place of a made-up program is as frequent as the others, so few rows are of little use.
printf '\n%-24s %9s %9s %9s %9s %9s\n' "instructions a frame" unwind 512-rows by-cfi cfi-512 framehop
for places in 100 300 1000 3000 10000 30000 100000; do
    printf '%-24s' "$places places"
    taken=()
    for unwinder in "${ours[@]}" framehop; do
        taken+=("$(figure replay "$unwinder" 1 2 4096 "places:$places")")
        printf '%s' "${taken[-1]}"
    done
    printf '\n'
    for at in "${!ours[@]}"; do
        check "$places places" "${ours[$at]}" "${taken[$at]}" "${taken[${#ours[@]}]}"
    done
done
finish() {
    [ "${#slower[@]}" -eq 0 ] || { printf 'framehop takes fewer: %s\n' "${slower[@]}" >&2; exit 1; }
    exit 0
}
[ -z "$frames_alone" ] || finish
printf '\n%-24s' "instructions a lookup"
printf ' %9.9s' "${tables[@]}"
printf '\n'
for file in "$@"; do
    printf '%-24s' "$(corpus "$file")"
    for table in "${tables[@]}"; do
        figure lookup "$table" 1 2 20000 "$file"
    done
    printf '\n'
done

# Of SFrame tables, by a walker of the benches' own; of call frame information, by `unwind::Unwinder`.
printf '\n%-24s %9s %9s %9s %9s\n' "instructions a miss" V3 V2 indexed by-cfi
for file in "$@"; do
    printf '%-24s' "$(corpus "$file")"
    for version in V3 V2 indexed call-frames; do
        figure misses "$version" 1 2 200 "$file"
    done
    printf '\n'
done

# One of 1,000 modules is taken out and added again before each sample.
printf '\n%-24s %9s %9s\n' "a sample after a change" by-key framehop
for file in "$@"; do
    printf '%-24s' "$(corpus "$file")"
    for unwinder in unwind framehop; do
        figure changes "$unwinder" 1 3 200 "$file"
    done
    printf '\n'
done

request() { # PART FUNCTION ROUNDS: instructions in the function
    valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        --toggle-collect="unwind_benches::deferral::$2" "$walk" request "$1" "$3" 0 0 2>&1 |
        awk '/Collected/ { print $NF }'
}

printf '\ninstructions of deferred unwinding, its return not counted\n'
for part in "first:ask" "repeated:ask" "return:go_to_user"; do
    what=${part%:*} function=${part#*:}
    fewer=$(request "$what" "$function" 1000)
    more=$(request "$what" "$function" 2000)
    printf '%-24s %9.1f\n' "$what" "$(awk -v ir="$((more - fewer))" 'BEGIN { print ir / 1000 - 1 }')"
done
finish
