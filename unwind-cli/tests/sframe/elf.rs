//! ELF files of all kinds, good and bad.

use super::*;

/// An ELF file with the sections `.sframe`, of `kind`, and `.shstrtab`.
pub(crate) fn elf(is_64: bool, big: bool, name: &str, kind: u32, sframe: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 1 + u8::from(is_64), 1 + u8::from(big), 1];
    bytes.resize(16, 0);
    let put = |bytes: &mut Vec<u8>, size: usize, value: u64| {
        let value = value.to_be_bytes();
        let mut field = value[8 - size..].to_vec();
        if !big {
            field.reverse();
        }
        bytes.extend(field);
    };
    let word = if is_64 { 8 } else { 4 };
    let (header, entry) = if is_64 { (64, 64) } else { (52, 40) };
    let names = format!("\0{name}\0.shstrtab\0");
    let sframe_at = header;
    let names_at = sframe_at + sframe.len();
    let headers_at = (names_at + names.len()).next_multiple_of(8);
    let as_u64 = |value: usize| u64::try_from(value).unwrap();

    put(&mut bytes, 2, 3); // e_type: a shared object
    put(&mut bytes, 2, 62); // e_machine
    put(&mut bytes, 4, 1); // e_version
    put(&mut bytes, word, 0); // e_entry
    put(&mut bytes, word, 0); // e_phoff
    put(&mut bytes, word, as_u64(headers_at)); // e_shoff
    put(&mut bytes, 4, 0); // e_flags
    for half in [header, 0, 0, entry, 3, 2] {
        put(&mut bytes, 2, as_u64(half)); // sizes and counts of headers, e_shstrndx
    }
    bytes.extend(sframe);
    bytes.extend(names.as_bytes());
    bytes.resize(headers_at, 0);
    for (name_at, kind, addr, at, len) in [
        (0, 0, 0, 0, 0),
        (1, kind, 0x4000, sframe_at, sframe.len()),
        (2 + name.len(), 3, 0, names_at, names.len()),
    ] {
        put(&mut bytes, 4, as_u64(name_at));
        put(&mut bytes, 4, kind.into());
        put(&mut bytes, word, 0); // flags
        put(&mut bytes, word, addr);
        put(&mut bytes, word, as_u64(at));
        put(&mut bytes, word, as_u64(len));
        put(&mut bytes, 4, 0); // link
        put(&mut bytes, 4, 0); // info
        put(&mut bytes, word, 8); // alignment
        put(&mut bytes, word, 0); // entry size
    }
    bytes
}

pub(crate) const PROGBITS: u32 = 1;
pub(crate) const GNU_SFRAME: u32 = 0x6fff_fff4;

#[test]
fn elf_files_of_every_class_and_byte_order_are_read() {
    let little = TableBuilder::aarch64(2, false);
    let big = TableBuilder::s390x(3);
    for is_64 in [false, true] {
        for (builder, is_big) in [(&little, false), (&big, true)] {
            let function = Function::new(-0x1000, 0x20, vec![Row::sp(0, &[16])]);
            let section = builder.clone().function(function).build();
            // By name, and by type whatever the name.
            for (name, kind) in [(".sframe", PROGBITS), (".sframe", GNU_SFRAME), (".x", GNU_SFRAME)]
            {
                let file = elf(is_64, is_big, name, kind, &section);
                let path = scratch(&format!("elf-{is_64}-{is_big}-{name}-{kind}"), &file);
                let dump = done(&["dump", path.to_str().unwrap()]);
                assert!(dump.contains("pc = 0x3000, size = 32 bytes"), "{dump}");
            }
        }
    }
}

#[test]
fn an_elf_file_that_lies_about_its_section_is_an_error() {
    let section = TableBuilder::amd64(2)
        .function(Function::new(-0x1000, 0x20, vec![Row::sp(0, &[8])]))
        .build();
    let good = elf(true, false, ".sframe", GNU_SFRAME, &section);
    let headers_at = good.len() - 3 * 64;
    // Offset and size of .sframe and of the names, offset and count of the
    // section headers.
    for (at, len) in [
        (headers_at + 64 + 0x18, 8),
        (headers_at + 64 + 0x20, 8),
        (headers_at + 2 * 64 + 0x18, 8),
        (headers_at + 2 * 64 + 0x20, 8),
        (0x28, 8),
        (0x3c, 2),
    ] {
        let mut file = good.clone();
        file[at..][..len].fill(0xff);
        let path = scratch(&format!("lie-{at}"), &file);
        let (code, error) = failed(&["dump", path.to_str().unwrap()]);
        assert_eq!(code, 5, "{at:#x}: {error}");
    }
}

#[test]
fn a_file_cut_at_any_length_is_an_error() {
    let section = TableBuilder::amd64(3)
        .function(Function::new(-0x1000, 0x20, vec![Row::sp(0, &[8])]))
        .build();
    let good = elf(true, false, ".sframe", GNU_SFRAME, &section);
    done(&["dump", scratch("whole", &good).to_str().unwrap()]);
    for len in 0..good.len() {
        let path = scratch("cut", &good[..len]);
        let (code, error) = failed(&["dump", path.to_str().unwrap()]);
        assert_eq!(code, 5, "{len}: {error}");
    }
    for len in 0..section.len() {
        let path = scratch("cut-raw", &section[..len]);
        let (code, error) = failed(&["dump", "--raw", path.to_str().unwrap()]);
        assert_eq!(code, 5, "{len}: {error}");
    }
}
