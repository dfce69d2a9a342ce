//! The byte order and the bytes of a `.gnu_debuglink`: its name leads to no other folder, and is
//! in the section with the checksum after it.

pub(crate) fn run(data: &[u8]) {
    let Some((&order, section)) = data.split_first() else { return };
    let Some(name) = unwind_cli::read_debug_link(section, order & 1 == 1) else { return };
    assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
    assert!(name != b"." && name != b"..", "{name:?}");
    assert!(section.starts_with(&name), "{name:?}");
    assert!(section.len() >= (name.len() + 1).next_multiple_of(4) + 4, "{name:?}");
}
