//! How much code the parts of the unwinder add to a program.

use std::error::Error;
use std::fs;
use std::path::Path;

use object::{Object, ObjectSection, SectionKind};

/// The programs in the order in which each has more than the one before.
const PROGRAMS: &[(&str, &str)] = &[
    ("nothing", "nothing"),
    ("request", "a request and a return to user mode"),
    ("frame_pointers", "and deliveries, walks by frame pointers"),
    ("sframe", "and SFrame tables in user memory, a cache of rows"),
];

/// Prints the bytes of code and constants of the programs in `folder`, less
/// those of the program that does nothing.
pub(crate) fn print(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut base = None;
    for (name, what) in PROGRAMS {
        let len = code_len(&folder.join(name))?;
        match base {
            None => base = Some(len),
            Some(base) => println!("code: {:6} bytes: {what}", len.saturating_sub(base)),
        }
    }
    Ok(())
}

/// Bytes of code and of constants. Tables that describe the code are neither.
fn code_len(path: &Path) -> Result<u64, Box<dyn Error>> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file = object::File::parse(&*bytes)?;
    let is_table = |name: &str| name.starts_with(".eh_frame") || name == ".sframe";
    Ok(file
        .sections()
        .filter(|section| {
            matches!(
                section.kind(),
                SectionKind::Text | SectionKind::ReadOnlyData | SectionKind::ReadOnlyString
            )
        })
        .filter(|section| !section.name().is_ok_and(is_table))
        .map(|section| section.size())
        .sum())
}
