//! Counts instructions of the benches' unwinders: see [`unwind_benches::program`].

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    unwind_benches::program::run(&arguments, &[]);
}
