#!/bin/bash -eu
# Builds targets, inputs, dictionaries and options as OSS-Fuzz takes them, from $SRC/unwind to $OUT.
# UNWIND_FUZZ_FEATURES names what is built besides the targets of the libraries.
cd "$SRC/unwind"
. fuzz/common.sh
features=${UNWIND_FUZZ_FEATURES-files command}
# To measure coverage OSS-Fuzz builds the package as it is, without features.
[ "${SANITIZER-}" != coverage ] || features=

cargo fuzz build -O --features "$features"
for target in $(targets $features); do
    cp "$binaries/$target" "$OUT/"
    dictionary=$(dictionary "$target")
    [ -z "$dictionary" ] || cp "$dictionary" "$OUT/$target.dict"
    printf '%s\n' '[libfuzzer]' "${libfuzzer[@]#-}" >"$OUT/$target.options"
    inputs=$(mktemp -d)
    unpack "$target" "$inputs"
    (cd "$inputs" && zip --quiet --recurse-paths "$OUT/${target}_seed_corpus.zip" .)
    rm -r "$inputs"
done
