//! The byte order and the bytes of a `.gnu_debuglink`: its name leads to no other folder, and is
//! in the section with the checksum after it.

use unwind_target::files::debug_files::name_of_link;

pub(crate) fn run(data: &[u8]) {
    let Some((&order, section)) = data.split_first() else { return };
    let Some(name) = name_of_link(section, order & 1 == 1) else { return };
    assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
    assert!(name != b"." && name != b"..", "{name:?}");
    assert!(section.starts_with(&name), "{name:?}");
    assert!(section.len() >= (name.len() + 1).next_multiple_of(4) + 4, "{name:?}");
}
