//! The search among symbols.

use super::*;

fn symbols(list: &[(u64, u64, Rank)]) -> Symbols {
    let symbols = list.iter().zip(1..).map(|(&(start, end, rank), name)| Symbol {
        start,
        end,
        furthest_end: 0,
        name,
        rank,
    });
    let symbols = sorted(symbols.collect());
    Symbols { symbols, debug_file: None }
}

/// The number, from 1, of the symbol that is found.
fn find(symbols: &Symbols, addr: u64) -> Option<u64> {
    symbols.find_symbol(addr).map(|symbol| symbol.name)
}

#[test]
fn a_pc_past_a_sized_symbol_is_not_inside_it() {
    let two = symbols(&[(0x10, 0x20, Rank::Global), (0x30, 0x40, Rank::Local)]);
    for (addr, found) in [
        (0x0f, None),
        (0x10, Some(1)),
        (0x1f, Some(1)),
        (0x20, None),
        (0x2f, None),
        (0x30, Some(2)),
        (0x40, None),
    ] {
        assert_eq!(find(&two, addr), found, "{addr:#x}");
    }
}

#[test]
fn a_label_reaches_to_the_next_symbol_but_hides_no_sized_one() {
    let mixed = symbols(&[
        (0x10, 0x30, Rank::Global),
        (0x18, 0x100, Rank::Label),
        (0x40, 0x100, Rank::Label),
        (0x50, 0x60, Rank::Local),
        (0x70, 0x100, Rank::Label),
    ]);
    for (addr, found) in
        [(0x1c, Some(1)), (0x34, Some(2)), (0x4f, Some(3)), (0x60, None), (0xff, Some(5))]
    {
        assert_eq!(find(&mixed, addr), found, "{addr:#x}");
    }
    assert_eq!(find(&mixed, 0x100), None);
}

#[test]
fn the_innermost_of_nested_functions_is_found_and_a_global_name_preferred() {
    let nested = symbols(&[
        (0x10, 0x100, Rank::Local),
        (0x20, 0x30, Rank::Global),
        (0x40, 0x50, Rank::Weak),
        (0x40, 0x50, Rank::Global),
        (0x40, 0x50, Rank::Local),
    ]);
    for (addr, found) in [(0x18, 1), (0x20, 2), (0x30, 1), (0x48, 4), (0x50, 1), (0xff, 1)] {
        assert_eq!(find(&nested, addr), Some(found), "{addr:#x}");
    }
}

#[test]
fn the_version_of_an_exported_symbol_is_no_part_of_its_name() {
    for (name, plain) in [
        (&b"read@@GLIBC_2.2.5"[..], &b"read"[..]),
        (b"memcpy@GLIBC_2.2.5", b"memcpy"),
        (b"main", b"main"),
        (b"@odd", b"@odd"),
    ] {
        assert_eq!(without_version(name), plain);
    }
}
