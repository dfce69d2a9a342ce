//! The example `first_row`.
#![cfg(test)]

#[path = "../examples/first_row.rs"]
#[expect(dead_code, reason = "its `main` is not called")]
mod example;

use example::first_row;

#[test]
fn s9_an_example_without_an_argument_says_what_it_needs() {
    assert_eq!(first_row(None).unwrap_err().to_string(), "which file? first_row FILE");
    let missing = first_row(Some("/no/such/file".into())).unwrap_err().to_string();
    assert!(missing.starts_with("/no/such/file: "), "{missing}");
    let found = first_row(Some(std::env::current_exe().unwrap().into())).unwrap();
    assert!(found.contains("Row"), "{found}");
}
