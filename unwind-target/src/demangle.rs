//! Names of functions as they were in the source.

use std::fmt;

/// The name as it was in the source, where it is a mangled one of Rust or C++.
pub(crate) fn demangle(name: &str, limit: usize) -> Option<String> {
    demangle_with(name, limit, Parameters::LeftOut)
}

/// Whether the names of C++ functions have their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameters {
    Shown,
    LeftOut,
}

/// The name as it was in the source, where it is a mangled one of Rust or C++, with parameters or without.
#[must_use]
pub fn demangle_with(name: &str, limit: usize, parameters: Parameters) -> Option<String> {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return bounded(limit, |out| fmt::Write::write_fmt(out, format_args!("{rust:#}")));
    }
    let is_cpp = name.starts_with("_Z") || name.starts_with("_GLOBAL_");
    let cpp = is_cpp.then(|| cpp_demangle::Symbol::new(name).ok()).flatten()?;
    let options = cpp_demangle::DemangleOptions::new();
    let options = match parameters {
        Parameters::Shown => options,
        // Those of templates are long already.
        Parameters::LeftOut => options.no_params().no_return_type(),
    };
    bounded(limit, |out| cpp.structured_demangle(out, &options))
}

/// What `write` writes, or `None` if it fails or writes too much.
fn bounded(limit: usize, write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Option<String> {
    let mut out = Bounded { text: String::new(), limit };
    write(&mut out).ok()?;
    Some(out.text)
}

/// A string that refuses to grow over a limit, in bytes.
struct Bounded {
    text: String,
    limit: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len().saturating_add(text.len()) > self.limit {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64 << 10;

    #[test]
    fn names_of_rust_and_cpp_are_demangled_and_others_are_left() {
        for (mangled, plain) in [
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                Some("core::fmt::Write::write_fmt"),
            ),
            ("_RNvC6_123foo3bar", Some("123foo::bar")),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                Some("std::vector<int, std::allocator<int> >::push_back"),
            ),
            ("main", None),
            ("_Znonsense", None),
            ("", None),
        ] {
            assert_eq!(demangle(mangled, LIMIT).as_deref(), plain, "{mangled}");
        }
    }

    #[test]
    fn a_name_that_unfolds_without_end_is_given_up() {
        // Each `S_`-style substitution doubles the one before it.
        let mut name = String::from("_Z1fP1a");
        for digit in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".chars() {
            name.push_str(&format!("PFS{digit}_S{digit}_E"));
        }
        assert!(demangle(&name, LIMIT).is_none_or(|plain| plain.len() <= LIMIT));
        assert_eq!(bounded(LIMIT, |out| fmt::Write::write_str(out, &"x".repeat(LIMIT + 1))), None);
    }
}
