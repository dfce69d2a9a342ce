//! Names of a program's functions, of files below a folder that have its build id.

use std::fs;

use serde_json::{Value, json};
use testdata::{ElfBuilder, ElfSection, ElfSegment, note};

use crate::{Machine, pcs, vcpu};

/// Where the program's first page is: in guest memory, and for its code.
const PAGE: u64 = 0x1_1000;
const AT: u64 = 0x40_0000;

/// The program: its code is from its second page on. A stripped one has no names.
fn program(build_id: &[u8], function: Option<&str>) -> Vec<u8> {
    let mut file = ElfBuilder::new(ElfBuilder::EXECUTABLE);
    let id = note(b"GNU", 3, build_id);
    let (offset, len) = (file.put(&id), id.len().try_into().unwrap());
    let notes = ElfSegment {
        kind: 4,
        offset,
        addr: AT + offset,
        file_size: len,
        memory_size: len,
        ..Default::default()
    };
    let code = ElfSegment {
        kind: 1,
        flags: 5,
        addr: AT,
        file_size: 0x1000,
        memory_size: 0x3000,
        ..Default::default()
    };
    file.segments = vec![code, notes];
    if let Some(function) = function {
        let names = format!("\0{function}\0").into_bytes();
        let mut symbols = vec![0; 24];
        // The name, a global function, in some section; its address and size.
        symbols.extend(1_u32.to_le_bytes());
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend((AT + 0x1000).to_le_bytes());
        symbols.extend(0x200_u64.to_le_bytes());
        for (kind, bytes, entry_size) in [(2, symbols, 24), (3, names, 0)] {
            let (offset, size) = (file.put(&bytes), bytes.len().try_into().unwrap());
            let link = if kind == 2 { 2 } else { 0 };
            file.section(ElfSection { kind, offset, size, link, entry_size, ..Default::default() });
        }
    }
    let mut bytes = file.finish();
    bytes.resize(bytes.len().max(0x1000), 0);
    bytes
}

/// The frames of a machine whose program has this build id, with these files below `--sysroot`.
fn frames(test: &str, build_id: &[u8], files: &[(&str, Vec<u8>)]) -> Vec<Value> {
    let mut machine = Machine::long(4);
    machine.ram[usize::try_from(PAGE).unwrap()..][..0x1000]
        .copy_from_slice(&program(build_id, None)[..0x1000]);
    // A table of its own for the program's pages.
    machine.write_8(0x1000, 0x2000 | 7);
    machine.write_8(0x2000, 0x3000 | 7);
    machine.write_8(0x3000 + 8 * (AT >> 21), 0x6000 | 7);
    machine.write_8(0x6000, PAGE | 5);
    let played = machine.start(test);
    let sysroot = played.socket.with_file_name("sysroot");
    for (path, bytes) in files {
        let path = sysroot.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let vcpu = vcpu(&played.run(&["--json", "--sysroot", sysroot.to_str().unwrap()]));
    assert_eq!(pcs(&vcpu), ["0x401000", "0x401111", "0x402222"], "{vcpu:#}");
    played.commands();
    vcpu["frames"].as_array().unwrap().clone()
}

#[test]
fn a_file_with_the_build_id_of_a_program_names_its_functions() {
    let files = [
        ("usr/bin/other", program(b"another build", Some("wrong"))),
        ("usr/bin/program", program(b"a build of it", None)),
        ("usr/lib/debug/.build-id/61/6275", program(b"a build of it", Some("is_not_exported"))),
        ("usr/bin/text", b"no ELF file".to_vec()),
    ];
    let frames = frames("sysroot", b"a build of it", &files);
    for (frame, offset) in frames.iter().zip([0, 0x111]) {
        assert_eq!(frame["object"], "/usr/bin/program", "{frame:#}");
        assert_eq!(frame["function"], "is_not_exported", "{frame:#}");
        assert_eq!(frame["function_offset"], offset, "{frame:#}");
    }
    // The function ends before it.
    assert_eq!(
        (&frames[2]["object"], &frames[2]["function"]),
        (&json!("/usr/bin/program"), &Value::Null)
    );
}

#[test]
fn a_file_of_another_build_names_nothing() {
    let files = [("usr/bin/program", program(b"another build", Some("wrong")))];
    for build_id in [b"a build of it".as_slice(), b"another buil", b""] {
        for frame in frames("other-build", build_id, &files) {
            assert_eq!((&frame["object"], &frame["function"]), (&json!("[program]"), &Value::Null));
        }
    }
}
