//! Code that a process has made itself, and told of in a map.

use super::*;

/// The functions that are shown of a process, once it executes the code that its map names.
fn functions_once_told(process: u32) -> Vec<String> {
    for _ in 0..20 {
        let report = report(&["--pid", &process.to_string()]);
        let names = functions(&threads(&report)[0]);
        if names.contains(&"named_by_map") {
            return names.into_iter().map(str::to_owned).collect();
        }
    }
    panic!("the code that is told of is not shown");
}

#[test]
fn k8_code_of_a_compiler_has_the_names_of_its_map() {
    let Some(program) = compile("k8_stack", "compiled.c", FRAME_POINTERS) else { return };
    let mut command = Command::new(&program);
    let target = Target::start_command(command.current_dir(scratch("k8_folder")));
    let names = functions_once_told(target.id());
    assert_eq!(names.first().map(String::as_str), Some("named_by_map"), "{names:?}");
    assert!(names.iter().any(|name| name == "main"), "{names:?}");
    fs::remove_file(format!("/tmp/perf-{}.map", target.id())).unwrap();
}

#[test]
fn k7_the_map_of_a_process_in_a_container_is_found_there() {
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can make a container");
    }
    let Some(unshare) = tool("unshare") else { return };
    let Some(program) = compile("k7_container", "compiled.c", FRAME_POINTERS) else { return };
    let mut command = Command::new(unshare);
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]);
    // It is process 1 there, and has a /tmp of its own, which may hide its file.
    let script = "exec 9< \"$0\" && mount -t tmpfs none /tmp && cd /tmp && exec /proc/self/fd/9";
    command.args([script]).arg(&program);
    let target = Target::start_command(&mut command);
    let id = target.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let process: u32 = children.trim().parse().unwrap();
    assert!(!Path::new(&format!("/tmp/perf-{process}.map")).exists());
    let names = functions_once_told(process);
    assert!(names.iter().any(|name| name == "main"), "{names:?}");
}

#[test]
fn m1_objects_that_a_compiler_registers_have_rows_names_and_lines() {
    let (Some(clang), Some(executor)) = (tool("clang-19"), tool("lli-19")) else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/registered.c");
    let program = scratch("m1_registered").join("registered.bc");
    let mut command = Command::new(clang);
    command.args(["-O1", "-g", "-fomit-frame-pointer", "-emit-llvm", "-c", "-o"]);
    assert!(command.args([&program, &source]).status().unwrap().success());
    // Both register what they make, the one before and the other after it is placed in memory.
    for kind in ["mcjit", "orc"] {
        let mut command = Command::new(&executor);
        let target = Target::start_command(command.arg(format!("--jit-kind={kind}")).arg(&program));
        for arguments in [&[][..], &["--live"]] {
            let mut command = unwind(["stack", "--json", "--pid", &target.id().to_string()]);
            let output = command.args(arguments).output().unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let thread = &threads(&report)[0];
            assert_eq!(thread["end"]["complete"], true, "{kind}: {thread}");
            let frames = thread["frames"].as_array().unwrap();
            let compiled = frames.iter().filter(|frame| frame["object"] == "[jit]");
            let names: Vec<_> = compiled.clone().map(|frame| frame["function"].as_str()).collect();
            let recursive = ["recursive"; 4].map(Some);
            // `main` jumps to it.
            let expected = [&["compare", "sorted"].map(Some)[..], &recursive].concat();
            assert_eq!(names, expected, "{kind}: {thread}");
            assert!(compiled.clone().all(|frame| frame["found_by"] == "cfi"), "{thread}");
            let lines: Vec<_> = compiled.map(|frame| frame["line"].as_u64()).collect();
            assert_eq!(lines, [8, 13, 18, 18, 18, 18].map(Some), "{kind}: {thread}");
        }
    }
}
