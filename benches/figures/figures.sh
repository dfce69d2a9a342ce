#!/usr/bin/env bash
# Writes benches/figures/README.md, and the table of figures in README.md, from the files in
# benches/figures/measured.
#
#   benches/figures/figures.sh                 writes it
#   benches/figures/figures.sh --check         says whether it is what this would write
#   benches/figures/figures.sh measure NAME... measures first: instructions since sizes ratios first
#                                   stack curves record price differences verify
#                                   coverage
#
# The first line of each file says when and at which revision it was measured, and by
# which command; the rest is what came out. What is not measured here takes hours, other
# people's programs or several machines: its file is replaced by hand, as a whole.
set -euo pipefail
cd "$(dirname "$0")/../.."

# File, heading, and a sentence.
sections=(
    "required|What was aimed at|What the engine was to reach beside what the parts below measured. In bold what it does not: [limits](limits.md) says why."
    "instructions|Instructions|Instructions counted by callgrind on the committed corpora: a frame of a walk, hot (the same stacks again and again) and in replay (all stacks in time order), by \`unwind::Unwinder\` as README.md sets it up (4,096 rows, and 512; of SFrame tables, and of call frame information), by rivals, and by a walker of the benches with 512 rows and no source that looks at code; a lookup of a row; a miss of the row cache; a sample after one of 1,000 modules was taken out and added again; a request."
    "since|Instructions since an earlier revision|Instructions a frame in replay of the large corpora, with the misses of a cache of 512 rows."
    "sizes|Code size|Code that a walk adds to a program that is optimised and linked as one, in bytes: with SFrame tables in memory, frame pointers and 512 cached rows; the same with tables in the target's memory; framehop with \`.eh_frame\`, its cache and frame pointers; simple-frame-rs, which reads tables and has no walk."
    "ratios|Time beside other unwinders|Times as ratios, unwind / rival, of one run on one machine."
    "first|The first stack|From nothing to a complete stack: module files mapped, no table made, no row cached. Once with what the CPU's caches have of the files, and once with the caches swept before each."
    "stack|\`unwind stack\` beside eu-stack|"
    "curves|Cost against size|"
    "record|Recordings beside perf's|"
    "price|What recorders take of a program|Four processes of one program share a CPU, each with another recorder or none."
    "differences|Differences of recordings|What \`unwind report --diff\` says of recordings of one program, made in turn, and of recordings of which one function does ten percent more."
    "verify|Stacks beside other unwinders|Stacks of recordings of \`perf record --call-graph dwarf\`, as \`unwind verify\` compares them with perf's: 6.1 walks by libunwind, newer ones by elfutils' libdw. Then with libdw itself, and with the kernel."
    "stacks|Stacks of samples|"
    "oracle|Stops beside gdb and eu-stack|"
    "attrs|Attrs beside perf_event_open|"
    "ring|A ring beside its reader|"
    "coverage|Coverage|Lines and sides of branches that tests and fuzz corpora reach."
    "fuzz|Fuzzing|"
    "damage|Damaged tables|"
    "orderings|Faulty atomic accesses|Each atomic access made faulty, one at a time, and whether a model fails."
    "mutants|Mutants|Changes of one expression by cargo-mutants, and whether a test fails."
)

measure() { # NAME
    local command
    case $1 in
        instructions) command="benches/instructions.sh" ;;
        since) command="benches/since.sh a40e2584" ;;
        sizes) command="benches/sizes.sh" ;;
        coverage) command="benches/figures/coverage.sh" ;;
        ratios) command="benches/figures/ratios.py" ;;
        record) command="benches/figures/record.py" ;;
        price) command="benches/figures/price.py" ;;
        differences) command="benches/figures/differences.py" ;;
        verify) command="benches/figures/verify.py" ;;
        stack) command="benches/figures/stack.py" ;;
        curves) command="cargo bench --quiet --package unwind-benches --bench curves" ;;
        first) command="env UNWIND_CORPUS=target/corpus cargo bench --quiet --package unwind-benches --bench ratios -- first" ;;
        *) echo "no command is known for $1: replace benches/figures/measured/$1.md" >&2; exit 2 ;;
    esac
    local output
    output=$($command)
    {
        # shellcheck disable=SC2016 # The backticks are for Markdown.
        printf '%s | %s | `%s`\n' "$(date +%F)" "$(git rev-parse --short=8 HEAD)" "$command"
        # What has a table is Markdown already.
        if [[ $output == *"|---|"* ]]; then
            printf '%s\n' "$output"
        else
            printf '```text\n%s\n```\n' "$output"
        fi
    } >"benches/figures/measured/$1.md"
}

compose() {
    echo "# Figures"
    echo
    echo "Made by \`benches/figures/figures.sh\` of what was measured. Each part says when, at which revision"
    echo "and by which command; nothing here is written by hand elsewhere. Instructions can be"
    echo "repeated to the digit with the same compiler, times only as ratios of one run."
    local section file heading sentence date revision command
    for section in "${sections[@]}"; do
        IFS='|' read -r file heading sentence <<<"$section"
        if [ "$file" = required ]; then # Of the other files.
            printf '\n## %s\n\n%s\n\n' "$heading" "$sentence"
            benches/figures/required.py || exit 1
            continue
        fi
        [ -f "benches/figures/measured/$file.md" ] || continue # Not measured yet.
        IFS='|' read -r date revision command <"benches/figures/measured/$file.md"
        printf '\n## %s\n\n' "$heading"
        if [ -n "$sentence" ]; then printf '%s\n\n' "$sentence"; fi
        printf 'Measured %s, revision%s: %s.\n\n' "${date% }" "${revision% }" "${command# }"
        tail -n +2 "benches/figures/measured/$file.md"
    done
}

# README.md with the table made anew: what a frame costs in replay.
readme() {
    local table
    table=$(awk '$2 == "replay" && NF == 11 {
        sub(",", "", $1)
        printf "| %s | %s | %s | %s | %s | %s |\n", $1, $3, $5, $7, $8, $9
    }' benches/figures/measured/instructions.md)
    TABLE=$table awk '
        /^<!-- figures begin/ { print; skip = 1
            print "| instructions a frame | unwind, SFrame | unwind, `.eh_frame` | framehop 0.16 | simple-frame-rs 0.3 | gimli 0.34 |"
            print "|---|--:|--:|--:|--:|--:|"
            print ENVIRON["TABLE"] }
        /^<!-- figures end/ { skip = 0 }
        !skip' README.md
}

write() {
    compose >benches/figures/README.md
    local text
    text=$(readme)
    printf '%s\n' "$text" >README.md
}

case ${1-} in
    "") write ;;
    --check)
        if ! compose | cmp --silent - benches/figures/README.md || ! readme | cmp --silent - README.md; then
            echo "benches/figures/README.md or README.md is not what benches/figures/figures.sh writes: run that" >&2
            exit 1
        fi
        ;;
    measure)
        shift
        for name in "$@"; do measure "$name"; done
        write
        ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
esac
