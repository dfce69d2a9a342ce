//! Stacks of processes whose files are gone, are another user's or say what is not true.

use super::*;

#[test]
fn a_deleted_or_replaced_executable_is_read_all_the_same() {
    let Some(program) = compile("deleted", "echo.c", SFRAME) else { return };
    let target = Target::start(&program, &[]);
    fs::remove_file(&program).unwrap();
    assert_eq!(functions_to_main(&report_of(&target, &["--method", "sframe"])), ECHO_CHAIN);
    fs::copy("/bin/true", &program).unwrap();
    assert_eq!(functions_to_main(&report_of(&target, &["--method", "sframe"])), ECHO_CHAIN);
}

#[test]
fn the_owner_of_a_process_needs_no_privileges() {
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can take another user's place");
    }
    let Some(setpriv) = tool("setpriv") else { return };
    let Some(program) = compile("owner", "echo.c", SFRAME) else { return };
    let directory = public_directory("owner");
    let [public, unwind] = ["program", "unwind"].map(|name| directory.join(name));
    copy_program(&program, &public);
    copy_program(env!("CARGO_BIN_EXE_unwind"), &unwind);
    let as_nobody = |program: &Path| {
        let mut command = Command::new(&setpriv);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
        command
    };
    let target = Target::start_command(&mut as_nobody(&public));
    target.wait_for_state("S");
    // The way by the mapping is closed to users.
    fs::remove_file(&public).unwrap();
    let id = target.id().to_string();
    let arguments = ["stack", "--json", "--method", "sframe", "--pid", &id];
    let output = as_nobody(&unwind).args(arguments).output().unwrap();
    fs::remove_dir_all(&directory).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(functions_to_main(&report), ECHO_CHAIN);
}

#[test]
fn a_process_with_another_root_directory_is_read_all_the_same() {
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can change the root directory");
    }
    let Some(chroot) = tool("chroot") else { return };
    let flags = [SFRAME, &["-static"]].concat();
    let Some(program) = compile("chroot", "echo.c", &flags) else { return };
    let mut command = Command::new(chroot);
    let target = Target::start_command(command.arg(program.parent().unwrap()).arg("/program"));
    target.wait_for_state("S");
    let report = report_of(&target, &["--method", "sframe"]);
    assert_eq!(functions_to_main(&report), ECHO_CHAIN);
}

#[test]
fn names_of_cpp_are_demangled() {
    if tool("c++").is_none() {
        return;
    }
    let Some(program) = compile("names", "names.cpp", FRAME_POINTERS) else { return };
    let target = Target::start(&program, &[]);
    let report = report_of(&target, &["--method", "fp"]);
    let whole = ["long shapes::park<int>(int)", "shapes::Circle::area(int)", "main"];
    assert_eq!(functions_to_main(&report), whole);
    let report = report_of(&target, &["--method", "fp", "--short"]);
    assert_eq!(functions_to_main(&report), ["shapes::park<int>", "shapes::Circle::area", "main"]);
    let mangled = &threads(&report)[0]["frames"][1]["mangled"];
    assert_eq!(mangled, "_ZN6shapes6Circle4areaEi");
}

#[test]
fn lying_section_headers_cost_the_names_and_not_the_frames() {
    let Some(program) = compile("lying", "echo.c", SFRAME) else { return };
    let pcs = |report: &Value| -> Vec<Value> {
        let frames = threads(report)[0]["frames"].as_array().unwrap().iter();
        frames.map(|frame| frame["object_pc"].clone()).collect()
    };
    let honest = report_of(&Target::start(&program, &[]), &["--method", "sframe"]);

    // e_shoff: where the section headers are. Loading a program needs none.
    let mut bytes = fs::read(&program).unwrap();
    bytes[40..48].copy_from_slice(&(u64::MAX - 63).to_le_bytes());
    fs::write(&program, bytes).unwrap();
    let target = Target::start(&program, &[]);
    let lying = report_of(&target, &["--method", "sframe"]);
    assert_eq!(pcs(&lying), pcs(&honest));
    let warnings = lying["warnings"].to_string();
    assert!(warnings.contains("the section header table"), "{warnings}");
    assert_eq!(functions(&threads(&lying)[0])[..2], ["?", "?"]);
}

#[test]
fn tables_that_cannot_be_used_are_named_and_gone_past() {
    let Some(program) = compile("bad_table", "echo.c", SFRAME_AND_FRAME_POINTERS) else { return };
    let bytes = fs::read(&program).unwrap();
    let magic = [0xe2, 0xde];
    let at = bytes.windows(2).position(|window| window == magic).unwrap();

    // A version that does not exist: the whole section is out of use.
    let mut damaged = bytes.clone();
    damaged[at + 2] = 0x63;
    fs::write(&program, &damaged).unwrap();
    let report = report_of(&Target::start(&program, &[]), &[]);
    assert_eq!(functions_to_main(&report), ECHO_CHAIN);
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains(".sframe is not used"), "{warnings}");
    // A table made of .eh_frame takes its place.
    assert_eq!(threads(&report)[0]["frames"][2]["found_by"], "cfi");

    // Rows that all start 7 bytes into their function, so they are out of order.
    let mut damaged = bytes;
    let word = |at: usize| u32::from_le_bytes(*damaged[at..].first_chunk().unwrap());
    let (rows_len, rows_at) = (word(at + 16), word(at + 24));
    let start = at + 28 + usize::try_from(rows_at).unwrap();
    damaged[start..start + usize::try_from(rows_len).unwrap()].fill(7);
    fs::write(&program, &damaged).unwrap();
    let report = report_of(&Target::start(&program, &[]), &[]);
    assert_eq!(functions_to_main(&report), ECHO_CHAIN);
    let frame = &threads(&report)[0]["frames"][2];
    assert_eq!((&frame["found_by"], &frame["after_failure"]), (&"fp".into(), &true.into()));
    let alone = report_of(&Target::start(&program, &[]), &["--method", "sframe"]);
    assert_eq!(threads(&alone)[0]["end"]["reason"], "table");
}

#[test]
fn a_call_right_before_a_function_is_not_that_functions() {
    let Some(program) = compile("last_call", "last_call.c", SFRAME) else { return };
    let target = Target::start(&program, &[]);
    target.wait_for_state("S");
    let report = report_of(&target, &["--method", "cfi"]);
    let frames = threads(&report)[0]["frames"].as_array().unwrap();
    let functions: Vec<_> = frames.iter().map(|frame| frame["function"].as_str()).collect();
    let at = functions.iter().position(|function| *function == Some("sleeps")).unwrap();
    assert_eq!(functions[at..at + 4], [Some("sleeps"), None, Some("enters"), Some("main")]);
}

#[test]
fn a_program_whose_pages_are_all_executable_has_names_and_tables() {
    let flags = ["-m32", "-static", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let Some(program) = compile("all_executable", "echo.c", &flags) else { return };
    // Where no header says what its stack is, a 32-bit program may execute whatever it may read.
    let mut bytes = fs::read(&program).unwrap();
    let half = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (first, size, count) = (half(0x1c), half(0x2a), half(0x2c));
    let mut headers = (0..count).map(|number| first + number * size);
    let of_stack = headers.find(|&at| bytes[at..].starts_with(&0x6474_e551_u32.to_le_bytes()));
    bytes[of_stack.unwrap()..][..4].fill(0);
    fs::write(&program, bytes).unwrap();
    let target = Target::start(&program, &[]);
    target.wait_for_state("S");
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.id())).unwrap();
    let first = maps.lines().find(|line| line.ends_with("/program")).unwrap();
    if !first.contains(" r-xp 00000000 ") {
        return skip("this kernel gives such a program no executable data");
    }
    assert_eq!(functions_to_main(&report_of(&target, &["--method", "cfi"])), ECHO_CHAIN);
}
