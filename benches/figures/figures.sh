#!/usr/bin/env bash
# Writes what is made of the files in benches/figures/measured: the list of them in
# benches/figures/README.md, and the tables of figures in README.md and docs/comparisons.md.
#
#   benches/figures/figures.sh                 writes it
#   benches/figures/figures.sh --check         says whether it is what this would write
#   benches/figures/figures.sh measure NAME... measures first: instructions since sizes ratios
#                                              first stack curves record price differences verify
#                                              kinds stops memory calls coverage fuzz
#
# Each file says when and at which revision it was measured, and by which command; what comes
# after that line is what came out. What is not measured here takes hours, other people's programs
# or several machines: its file is replaced by hand, as a whole.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=benches/figures/measured
parts=(instructions since sizes ratios first stack curves record price differences verify
    kinds calls memory stacks oracle stops attrs ring coverage fuzz damage orderings mutants)
pages=(README.md docs/comparisons.md)

measure() { # NAME
    local command
    case $1 in
        instructions) command="benches/instructions.sh" ;;
        since) command="benches/since.sh a40e2584" ;;
        sizes) command="benches/sizes.sh" ;;
        coverage) command="benches/figures/coverage.sh" ;;
        fuzz) command="fuzz/table 300" ;;
        ratios) command="benches/figures/ratios.py" ;;
        record) command="benches/figures/record.py" ;;
        price) command="benches/figures/price.py" ;;
        differences) command="benches/figures/differences.py" ;;
        verify) command="benches/figures/verify.py" ;;
        kinds) command="benches/figures/in_kernel_kinds.py" ;;
        stops) command="benches/figures/live_stops.py" ;;
        memory) command="benches/figures/table_memory.py" ;;
        calls) command="benches/figures/calls_price.py" ;;
        stack) command="benches/figures/stack.py" ;;
        curves) command="cargo bench --quiet --package unwind-benches --bench curves" ;;
        first) command="env UNWIND_CORPUS=target/corpus cargo bench --quiet --package unwind-benches --bench ratios -- first" ;;
        *) echo "no command is known for $1: replace $folder/$1.md" >&2; exit 2 ;;
    esac
    local output title
    output=$($command)
    title=$(sed '/^Measured /,$d' "$folder/$1.md")
    {
        # shellcheck disable=SC2016 # The backticks are for Markdown.
        printf '%s\n\nMeasured %s, revision %s: `%s`.\n\n' \
            "$title" "$(date +%F)" "$(git rev-parse --short=8 HEAD)" "$command"
        # What has a table is Markdown already.
        if [[ $output == *"|---|"* ]]; then
            printf '%s\n' "$output"
        else
            printf '```text\n%s\n```\n' "$output"
        fi
    } >"$folder/$1.md"
}

compose() {
    cat <<'END'
# Figures

What was measured, a file each, with the command that measured it. `benches/figures/figures.sh` makes
this page of the files, and the tables in [README.md](../../README.md) and
[comparisons](../../docs/comparisons.md). Instructions can be repeated to the digit with the same
compiler, times only as ratios of one run. [Limits](limits.md) says what is slower or larger than
was aimed at, why, and what was tried; [coverage](coverage.md) what the tests do not reach.

| what | measured | at revision |
|---|---|---|
END
    local part
    for part in "${parts[@]}"; do
        sed -nE "1s/^# (.*)/| [\1](measured\/$part.md) |/p
            s/^Measured ([0-9-]*), revision ([^:]*):.*/ \1 | \2 |/p" "$folder/$part.md" | paste -sd ''
    done
    printf '\n## What was aimed at\n\n'
    printf 'What the engine was to reach, and what was measured. In bold what it does not reach.\n\n'
    benches/figures/required.py
}

write() {
    compose >benches/figures/README.md
    benches/figures/tables.py "${pages[@]}"
}

case ${1-} in
    "") write ;;
    --check)
        if ! compose | cmp --silent - benches/figures/README.md ||
            ! benches/figures/tables.py --check "${pages[@]}"; then
            echo "a page is not what benches/figures/figures.sh writes: run that" >&2
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
