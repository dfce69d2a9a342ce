//! Names and places, archives, several files, standard input.

use super::*;

#[test]
fn d4_names_are_found_and_shown() {
    let program = fixture("v3/x86_64/drap.O2-omit.exe");
    let program = program.to_str().unwrap();
    let dump = done(&["dump", program]);
    assert!(dump.contains("pc = 0x1210, size = 53 bytes <align64_args>\n"), "{dump}");
    assert!(dump.contains("pc = 0x1250, size = 169 bytes <align128_alloca>, attr = \"F\"\n"));
    let named = done(&["find", program, "main+0x10", "align128_alloca", "align128_alloca+21"]);
    let by_address = done(&["find", program, "0x1050", "0x1250", "0x1265"]);
    assert_eq!(named, by_address);
    let absent = sframe(&["find", program, "main", "nonsense", "main+0x1000000"]);
    assert_eq!(absent.status.code(), Some(7));
    let answers = text(&absent.stdout);
    assert!(answers.contains("\nnonsense  no row: no function has this name\n"), "{answers}");
    assert_eq!(stderr(&absent), "unwind: 2 of 3 addresses have no row\n");
    let answer = json(&["find", "--json", program, "main"]);
    assert_eq!(answer["addresses"][0]["symbol"], "main");
    assert_eq!(answer["addresses"][0]["function"]["name"], "main");
}

#[test]
fn d4_a_place_in_an_object_is_an_offset_a_name_or_a_section() {
    let path = object("comdat.v3");
    let found = done(&["find", &path, "twice<4>", ".text+0x4", "_Z5twiceILi3EEii+1"]);
    let start = "function .text._Z5twiceILi4EEii+0x0+0x17 <twice<4>>, row +0x0: CFA=rsp+8";
    assert!(found.contains(start), "{found}");
    assert!(
        found.contains("\n.text+0x4  function .text+0x0+0x23 <shapes::Square::area>"),
        "{found}"
    );
    assert!(found.contains("\n.text._Z5twiceILi3EEii+0x1  function"), "{found}");
    // An offset is looked up in each section.
    assert_eq!(done(&["find", &path, "0x0"]).lines().count(), 4);
    assert_eq!(done(&["find", &path, "0x20"]).lines().count(), 1);
    let absent = sframe(&["find", &path, "0x1000"]);
    assert_eq!(absent.status.code(), Some(7));
    assert!(text(&absent.stdout).contains("no code section is long enough"));
}

#[test]
fn d4_members_of_an_archive_are_each_looked_at() {
    let [recur, comdat] = ["recur.v3", "comdat.v3"].map(|name| fs::read(object(name)).unwrap());
    let data = ElfBuilder::new(ElfBuilder::RELOCATABLE).finish();
    let library = archive(&[("recur.o", &recur), ("data.o", &data), ("comdat.o", &comdat)]);
    let path = file("archive", "lib.a", &library);
    let output = sframe(&["dump", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let dump = text(&output.stdout);
    let expected: String = ["recur", "comdat"]
        .map(|name| {
            let dump = done(&["dump", &object(&format!("{name}.v3"))]);
            format!("\nFile: {path}({name}.o)\n{dump}")
        })
        .concat();
    assert_eq!(dump, expected);
    assert_eq!(stderr(&output), format!("unwind: {path}: 1 members have no tables\n"));
    let check = done(&["check", &path]);
    assert_eq!(check.matches(" 0 differences").count(), 2, "{check}");
    assert_eq!(done(&["stat", &path]).matches("recur.o)").count(), 1);
    let found = done(&["find", &path, "ack", "shapes::Square::area"]);
    assert_eq!(found.matches("\nFile: ").count(), 2, "{found}");
    let missing = sframe(&["find", &path, "ack", "nonsense"]);
    assert_eq!(missing.status.code(), Some(7));
    assert!(text(&missing.stdout).ends_with("nonsense  no row: no member has one\n"));
}

#[test]
fn d4_what_is_wrong_with_a_member_is_its_own() {
    let recur = fs::read(object("recur.v3")).unwrap();
    let members = [("text.o", &b"no object"[..]), ("recur.o", &recur), ("cut.o", &recur[..2000])];
    let path = file("members", "lib.a", &archive(&members));
    let output = sframe(&["check", &path]);
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stdout).contains("(recur.o): its tables"));
    let errors = stderr(&output);
    assert!(errors.contains("lib.a(text.o): not an ELF file\n"), "{errors}");
    assert!(errors.contains("lib.a(cut.o): the section header table"), "{errors}");
    assert!(errors.ends_with("unwind: 2 of 3 files failed\n"), "{errors}");
    // What is cut off is not passed over in silence.
    let whole = archive(&members);
    for len in [20, 68, 100, whole.len() - 100] {
        let path = file("members", "cut.a", &whole[..len]);
        let output = sframe(&["check", &path]);
        assert_eq!(output.status.code(), Some(5), "{len}");
        assert!(stderr(&output).contains("is a damaged archive"), "{len}: {}", stderr(&output));
    }
    let thin = [b"!<thin>\n", &whole[8..68]].concat();
    let error = fails(["sframe", "dump", &file("members", "thin.a", &thin)], 5);
    assert!(error.contains("is a thin archive"), "{error}");
    let none = file("members", "none.a", b"!<arch>\n");
    assert!(fails(["sframe", "dump", &none], 5).contains("no member of"));
}

#[test]
fn d4_several_files_are_one_call() {
    let paths = ["recur.v3", "recur.v2"].map(object);
    let output = sframe(&["check", &paths[0], "/nonexistent", &paths[1]]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout).matches(" 0 differences").count(), 2);
    let errors = stderr(&output);
    assert!(errors.contains("cannot read /nonexistent"), "{errors}");
    assert!(errors.ends_with("unwind: 1 of 3 files failed\n"), "{errors}");
    let dump = done(&["dump", &paths[0], &paths[1]]);
    assert_eq!(dump.matches("\nFile: ").count(), 2);
    let all = done(&["dump", "--json", &paths[0], &paths[1]]);
    let all: Vec<Value> =
        serde_json::Deserializer::from_str(&all).into_iter().map(Result::unwrap).collect();
    assert_eq!(all.len(), 2);
    assert_eq!(all[1], json(&["dump", "--json", &paths[1]]));
    assert_eq!(done(&["stat", &paths[0], &paths[1]]).matches("recur.v").count(), 2);
}

#[test]
fn d4_standard_input_is_a_file_a_pipe_or_an_archive() {
    let path = object("recur.v3");
    let bytes = fs::read(&path).unwrap();
    let raw = {
        let (at, len) = section(&bytes, ".sframe");
        bytes[at..at + len].to_vec()
    };
    let library = archive(&[("recur.o", &bytes)]);
    let expected = done(&["dump", &path]);
    let with_stdin = |arguments: &[&str], input: Stdio, bytes: &[u8]| {
        let mut command = unwind([&["sframe"], arguments].concat());
        let command = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        if let Some(mut pipe) = child.stdin.take() {
            pipe.write_all(bytes).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        text(&output.stdout)
    };
    assert_eq!(with_stdin(&["dump", "-"], Stdio::piped(), &bytes), expected);
    assert_eq!(with_stdin(&["dump", "-"], fs::File::open(&path).unwrap().into(), &[]), expected);
    let member = with_stdin(&["dump", "-"], Stdio::piped(), &library);
    assert_eq!(member, format!("\nFile: -(recur.o)\n{expected}"));
    let library = fs::File::open(file("stdin", "lib.a", &library)).unwrap();
    assert_eq!(with_stdin(&["dump", "-"], library.into(), &[]), member);
    let dump = with_stdin(&["dump", "--raw", "--vaddr", "0x1000", "-"], Stdio::piped(), &raw);
    assert_eq!(dump.matches("func idx").count(), 6);
    let checked = with_stdin(&["check", "-"], Stdio::piped(), &bytes);
    assert!(checked.starts_with("-: its tables\n"), "{checked}");
    let found = with_stdin(&["find", "-", "ack"], Stdio::piped(), &bytes);
    assert!(found.contains("<ack>"), "{found}");
    let diff = with_stdin(&["diff", "-", &path], Stdio::piped(), &bytes);
    assert_eq!(diff, "0 functions changed, 0 added, 0 removed, 6 equal\n");
}

#[test]
fn d4_a_function_outside_all_code_is_an_error() {
    let rows = || vec![Row::sp(0, &[8])];
    for (start, size, is_code) in [
        (0x1000, 0x20, true),
        (0x1fe0, 0x20, true),
        (0x2000, 0, true),
        (0x1fe0, 0x21, false),
        (0xff0, 0x20, false),
        (0x3000, 0x10, false),
        (0x2001, 0, false),
    ] {
        let function = Function::new(start - 0x8000, size, rows());
        let table = TableBuilder::amd64(2).function(function).build();
        let whole = linked(0x8000, &table);
        // Sections say where code is; without them, segments do.
        let mut without = whole.clone();
        without[0x28..0x30].fill(0);
        without[0x3c..0x40].fill(0);
        let path = file("outside", "program", &whole);
        let output = sframe(&["check", &path]);
        let report = text(&output.stdout);
        assert_eq!(output.status.code(), Some(i32::from(!is_code)), "{start:#x}: {report}");
        let expected = format!("function 0: {start:#x}+{size:#x} is not all code");
        assert_eq!(report.contains(&expected), !is_code, "{report}");
    }
}

#[test]
fn d4_tables_of_programs_are_about_code() {
    for version in ["v1", "v2", "v3"] {
        for name in ["drap", "recur"] {
            let path = fixture(&format!("{version}/x86_64/{name}.O2-omit.exe"));
            // What ld 2.44 says of `.plt.got` is wrong.
            let output = sframe(&["check", "--json", path.to_str().unwrap()]);
            let check: Value = serde_json::from_slice(&output.stdout).unwrap();
            let errors = check["validation"]["first_errors"].to_string();
            assert!(!errors.contains("code"), "{errors}");
        }
    }
}

#[test]
fn d4_who_has_call_frame_information_is_told_what_it_is_good_for() {
    let own = env!("CARGO_BIN_EXE_unwind");
    for command in ["check", "dump"] {
        let error = fails(["sframe", command, own], 5);
        assert!(error.contains("has no .sframe section"), "{error}");
        assert!(error.contains("check --built v3"), "{error}");
        assert!(!error.contains("gsframe"), "{error}");
    }
    let bare = file("hint", "bare", &ElfBuilder::new(ElfBuilder::SHARED).finish());
    assert!(fails(["sframe", "check", &bare], 5).contains("-Wa,--gsframe"));
}
