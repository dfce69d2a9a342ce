# What the scripts of this folder share. They run at the top of the repository.
# shellcheck shell=bash
export RUSTUP_DIST_SERVER=http://127.0.0.1:9
# Longer inputs make a run slow and find no more.
libfuzzer=(-max_len=4096 -timeout=20 -rss_limit_mb=2048)

# The feature of fuzz/Cargo.toml that a target needs, or nothing.
feature() { # TARGET
    awk -v name="name = \"$1\"" '
        /^\[\[bin\]\]/ { here = 0 }
        $0 == name { here = 1; found = 1 }
        here && /^required-features/ { split($0, part, "\""); print part[2] }
        END { if (!found) exit 1 }' fuzz/Cargo.toml ||
        { echo "there is no fuzz target $1" >&2; return 1; }
}

# Every target that needs no more than these features.
targets() { # [FEATURE...]
    awk -v features=" $* " '
        function told() { if (name != "" && (need == "" || index(features, " " need " "))) print name }
        /^\[\[bin\]\]/ { told(); name = need = "" }
        /^name = / && !/unwind-fuzz/ { split($0, part, "\""); name = part[2] }
        /^required-features/ { split($0, part, "\""); need = part[2] }
        END { told() }' fuzz/Cargo.toml
}

# The dictionary of a target, or nothing.
dictionary() { # TARGET
    case $1 in
        sframe_structure) ;;
        sframe_* | walk_x86_64 | walk_cached) echo fuzz/dictionaries/sframe.dict ;;
        walk_ia32 | instruction_analysis | proven_frames) echo fuzz/dictionaries/x86.dict ;;
        perf_* | explain_sample) echo fuzz/dictionaries/perf.dict ;;
        cfi | cfi_lookup | compact_build) echo fuzz/dictionaries/cfi.dict ;;
    esac
}

# Writes the committed inputs of a target to a folder: its archive, and its seeds.
unpack() { # TARGET FOLDER
    mkdir -p "$2"
    [ ! -f "fuzz/corpora/$1.tar.gz" ] || tar -xzf "fuzz/corpora/$1.tar.gz" -C "$2"
    [ ! -d "fuzz/seeds/$1" ] || cp "fuzz/seeds/$1"/* "$2"
}

# Makes the archive of the inputs in a folder, less the seeds. The same inputs make the same archive.
pack() { # TARGET FOLDER
    local seeds files
    seeds=$(cat <(sha1sum "fuzz/seeds/$1"/* 2>/dev/null | cut -d' ' -f1) <(echo none))
    files=$(cd "$2" && sha1sum -- * | grep -vF "$seeds" | cut -d' ' -f3-)
    [ -n "$files" ] || { echo "$2 has no inputs of $1 but the seeds" >&2; return 1; }
    tar --create --format=ustar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner \
        --mode=644 --directory="$2" --verbatim-files-from --files-from=<(sort <<<"$files") |
        gzip -9n >"fuzz/corpora/$1.tar.gz"
}

# Where cargo fuzz puts what it builds.
# shellcheck disable=SC2034 # It is for others.
binaries=${CARGO_TARGET_DIR:-fuzz/target}/x86_64-unknown-linux-gnu/release

# cargo fuzz without a sanitizer, with the feature that a target needs.
cargo_fuzz() { # COMMAND TARGET [ARGUMENT...]
    local command=$1 target=$2 needs
    shift 2
    needs=$(feature "$target")
    cargo fuzz "$command" --sanitizer none ${needs:+--features "$needs"} "$target" "$@"
}
