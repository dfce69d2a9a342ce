//! Compares all unwinders: tables, and a picture. The arguments are files, or none for all corpora.

fn main() {
    unwind_benches::main(&[]);
}
