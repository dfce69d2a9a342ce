//! Each instruction of the way through linkage tables, of which linkers make many kinds.

use super::*;
use crate::stops::UnwindThread;

/// How many instructions are stopped at: from the caller's first one through an entry and what
/// all entries share into the dynamic linker.
const STOPS: u64 = 18;

/// Checks that each stop has all callers, whatever linker made the tables.
fn check(linker: &str, more: &[&str]) {
    let Some(witnesses) = Witnesses::find() else { return };
    let tool = if linker == "lld" { "ld.lld" } else { linker };
    if linker != "bfd" && test_support::tool(tool).is_none() {
        return;
    }
    let linker_flag = format!("-fuse-ld={linker}");
    let (mut claims, mut in_tables, mut wrong_by_gdb) = (Claims::default(), 0, 0);
    // Those that are linked elsewhere have the same tables by 64-bit linkers, and what is bound before
    // goes a part of the way.
    let is_short = stops_wanted() < 50;
    let kinds = [
        &["-fPIE", "-pie"][..],
        &["-m32", "-fPIE", "-pie"],
        &["-m32", "-fno-pie", "-no-pie"],
        &["-fno-pie", "-no-pie"],
    ];
    for flags in kinds.into_iter().take(if is_short { 3 } else { 4 }) {
        for bound in ["lazy", "now"].into_iter().take(if is_short { 1 } else { 2 }) {
            let title = [&[linker, bound][..], flags, more].concat().join(" ");
            let folder = scratch(&format!("oracle-{}", title.replace([' ', '='], "")));
            let Some(compiler) = test_support::Compiler::find(flags) else { continue };
            let width = if flags.contains(&"-m32") { "-m32" } else { "-m64" };
            let library = folder.join("libcalled.so");
            let source = program_source("called.c");
            compiler.compile(source.as_ref(), &library, &[width, "-shared", "-fPIC"]);
            let program = folder.join("program");
            let [bound, rpath] =
                [format!("-Wl,-z,{bound}"), format!("-Wl,-rpath,{}", folder.display())];
            let common = ["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fplt"];
            let linked_first = "-Wl,--no-as-needed";
            let linked = [linked_first, &linker_flag, library.to_str().unwrap(), &bound, &rpath];
            let all = [flags, &common, more, &linked].concat();
            compiler.compile(program_source("calls.c").as_ref(), &program, &all);
            let job = json!({
                "program": program.to_str(),
                "methods": ["auto"],
                "from": "inner",
                "stops": STOPS,
                "eu_stack": witnesses.eu_stack.to_str(),
            });
            let stops = stops::run(&witnesses.gdb, &folder, job);
            assert_eq!(u64::try_from(stops.len()).unwrap(), STOPS, "{title}");
            // The library's function may return meanwhile.
            let is_back = |stop: &&Stop| stop.threads[0].frames[0].name.as_deref() == Some("outer");
            for stop in stops.iter().take_while(|stop| !is_back(stop)) {
                let what = format!("{title}, instruction {}", stop.number);
                let [unwind] = &stop.unwind["auto"].threads[..] else { panic!("{what}") };
                let [gdb] = &stop.threads[..] else { panic!("{what}") };
                assert!(unwind.end.complete, "{what}: {}: {unwind:#?}", unwind.end.text);
                assert!(has_callers(unwind), "{what}: {unwind:#?}");
                in_tables += u32::from(is_in_table(unwind, gdb));
                match is_right(gdb) {
                    true => claims.add(&title, "auto", stop, unwind, gdb),
                    false => wrong_by_gdb += 1,
                }
            }
        }
    }
    let text = format!(
        "\nWays through linkage tables, {linker} {more:?}: {in_tables} stops in tables, \
         {wrong_by_gdb} where gdb is lost\n{claims}\n"
    );
    std::io::stderr().write_all(text.as_bytes()).unwrap();
    claims.assert_true();
    assert!(in_tables >= 8, "{in_tables} stops in tables");
}

/// Whether the callers are there, each once.
fn has_callers(unwind: &UnwindThread) -> bool {
    let names = unwind.frames.iter().filter_map(|frame| frame.function.as_deref());
    let names: Vec<_> = names.filter(|name| ["inner", "outer", "main"].contains(name)).collect();
    names == ["inner", "outer", "main"]
}

/// Whether gdb has not lost the stack, as it has in tables without call frame information: it finds
/// the callers, and code alone.
fn is_right(gdb: &GdbThread) -> bool {
    main_frame(gdb).is_some() && gdb.frames.iter().all(|frame| frame.object.is_some())
}

/// Whether the innermost frame is in the program's own code and not in a function of it.
fn is_in_table(unwind: &UnwindThread, gdb: &GdbThread) -> bool {
    let is_own = gdb.frames[0].object.as_deref().is_some_and(|path| path.ends_with("/program"));
    let functions = ["inner", "outer", "main"];
    is_own && !unwind.frames[0].function.as_deref().is_some_and(|name| functions.contains(&name))
}

#[test]
fn u7_each_instruction_of_tables_of_llvms_linker_has_all_callers() {
    check("lld", &[]);
}

#[test]
fn u7_each_instruction_of_tables_of_mold_has_all_callers() {
    check("mold", &[]);
}

#[test]
fn u7_each_instruction_of_tables_of_gnu_ld_has_all_callers() {
    check("bfd", &[]);
}

#[test]
fn u7_each_instruction_of_tables_with_marks_for_indirect_branches_has_all_callers() {
    check("lld", &["-fcf-protection=full", "-Wl,-z,force-ibt"]);
    check("mold", &["-fcf-protection=full", "-Wl,-z,ibtplt"]);
    check("bfd", &["-fcf-protection=full", "-Wl,-z,ibtplt"]);
}
