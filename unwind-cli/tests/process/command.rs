//! A command that is started to be looked at.

use super::*;

#[test]
fn a_command_is_started_stopped_once_and_left_to_its_end() {
    let Some(program) = compile("command", "echo.c", FRAME_POINTERS) else { return };
    let mut observer = unwind(["stack", "--after", "3000", "--method", "fp", "--json", "--"]);
    let mut observer = observer
        .arg(&program)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The stacks come while the command waits for its input, then it ends.
    let mut input = observer.stdin.take().unwrap();
    let mut stacks = serde_json::Deserializer::from_reader(observer.stdout.take().unwrap())
        .into_iter::<serde_json::Value>();
    let report = stacks.next().unwrap().unwrap();
    assert_eq!(functions_to_main(&report), ECHO_CHAIN);
    assert_eq!(observer.try_wait().unwrap(), None);
    std::io::Write::write_all(&mut input, b"x").unwrap();
    drop(input);
    assert!(observer.wait().unwrap().success());
    let mut messages = String::new();
    observer.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    assert_eq!(messages, "ready\nx", "what the command wrote");
}

#[test]
fn kill_ends_the_command_once_its_stack_is_taken() {
    let output = run(["stack", "--kill", "--after", "20", "--", "sleep", "1000"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("(sleep), 1 thread\n"), "{text}");
}

/// What may not be traced by whoever starts it: a program that a user may run and
/// not read.
#[test]
fn c11_why_a_command_has_no_stack_is_told_before_it_is_waited_for() {
    if !nix::unistd::geteuid().is_root() {
        skip("only root can become another user");
        return;
    }
    let Some(program) = compile("c11_unreadable", "echo.c", FRAME_POINTERS) else { return };
    let directory = public_directory("unreadable");
    let (secret, command) = (directory.join("secret"), directory.join("unwind"));
    copy_program(&program, &secret);
    copy_program(env!("CARGO_BIN_EXE_unwind"), &command);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o711)).unwrap();
    let mut child = Command::new(&command)
        .args(["stack", "--after", "50", "--"])
        .arg(&secret)
        .uid(65534)
        .gid(65534)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program waits for its input to end, which it does not yet.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.find(|line| line.starts_with("unwind: "));
    assert!(told.as_ref().is_some_and(|line| line.contains("not permitted")), "{told:?}");
    assert_eq!(child.try_wait().unwrap(), None, "the command is waited for");
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert_eq!(lines.next(), None, "it is told once");
    fs::remove_dir_all(directory).unwrap();
}
