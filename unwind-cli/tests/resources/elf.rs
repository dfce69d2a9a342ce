//! ELF files whose parts are many, or share their bytes.

use std::path::Path;

use testdata::{ElfBuilder, ElfSection};

use crate::support::resources::{Bounds, Run, input_file, stays_linear};

const SHT_PROGBITS: u32 = 1;
const SHT_STRTAB: u32 = 3;

fn size_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap()
}

fn check(path: &Path, file: &ElfBuilder) -> Run {
    Run::of_file(path, &file.finish(), &["sframe", "check", "FILE"])
}

/// The names of sections: each of its own.
#[test]
fn section_headers_with_names_of_their_own() {
    let path = input_file("section_names");
    stays_linear("sframe check", "names of their own", Bounds::USUAL, |times| {
        let mut file = ElfBuilder::new(ElfBuilder::SHARED);
        let mut names = b"\0.shstrtab\0".to_vec();
        for _ in 0..10_000 * times {
            let name = u32::try_from(names.len()).unwrap();
            file.section(ElfSection { name, kind: SHT_PROGBITS, ..ElfSection::default() });
            names.extend(format!(".text.{name}\0").bytes());
        }
        let (offset, size) = (file.put(&names), size_of(&names));
        file.names = file.section(ElfSection {
            name: 1,
            kind: SHT_STRTAB,
            offset,
            size,
            ..ElfSection::default()
        });
        check(&path, &file)
    });
}
