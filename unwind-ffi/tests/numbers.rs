//! Each variant of the library has its number in the header, and numbers do not change.
#![cfg(test)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use unwind_core::deferred::{Cookie, Refusal, RequestOutcome, SampleOutcome};
use unwind_core::{BaseReg, End, Origin, ReadError, StepError, TableFault, VirtAddr};

/// The numbers of an enum of the header, by their names in the library.
fn in_header(name: &str) -> BTreeMap<String, i32> {
    let header = read("include/unwind_ffi.h");
    let body = header.split_once(&format!("enum {name} {{")).unwrap().1;
    let body = body.split_once("};").unwrap().0;
    let prefix = format!("{}_", name.to_uppercase());
    let lines = body.lines().filter_map(|line| line.trim().strip_suffix(','));
    lines
        .filter_map(|line| line.strip_prefix(&prefix)?.split_once(" = "))
        .map(|(name, number)| (camel(name), number.parse().unwrap()))
        .collect()
}

fn camel(name: &str) -> String {
    let words = name.split('_').map(|word| word[..1].to_owned() + &word[1..].to_lowercase());
    words.collect()
}

/// The variants of an enum of the library, in its source.
fn variants(source: &str, name: &str) -> Vec<String> {
    let source = read(source);
    let body = source.split_once(&format!("pub enum {name}")).unwrap().1;
    let body = body.split_once(" {\n").unwrap().1.split_once("\n}\n").unwrap().0;
    let starts = body.lines().filter_map(|line| line.strip_prefix("    "));
    starts
        .filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()))
        .map(|line| line.split(|end: char| !end.is_ascii_alphanumeric()).next().unwrap().to_owned())
        .collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// That the header has these numbers for these variants, and none for others.
fn check(name: &str, expected: &[(&str, u8)]) {
    let expected = expected.iter().map(|&(name, number)| (name.to_owned(), i32::from(number)));
    assert_eq!(in_header(name), expected.collect(), "{name}");
}

/// That the variants are these.
fn check_variants(source: &str, name: &str, expected: &[&str]) {
    assert_eq!(variants(&format!("../unwind-core/src/{source}"), name), expected, "{name}");
}

const ADDR: VirtAddr = VirtAddr::new(0);

#[test]
fn ends_have_their_numbers() {
    let unreadable = StepError::Unreadable { addr: ADDR, error: ReadError::Invalid };
    let steps = [
        ("Unreadable", unreadable),
        ("NoProgress", StepError::NoProgress { cfa: 0, sp: 0 }),
        ("Misaligned", StepError::Misaligned { cfa: 0 }),
        ("BeyondStack", StepError::BeyondStack { cfa: 0 }),
        ("NonCanonical", StepError::NonCanonical { pc: 0 }),
        ("NotCode", StepError::NotCode { pc: ADDR }),
        ("ZeroReturnAddress", StepError::ZeroReturnAddress { cfa: 0 }),
        ("ZeroFramePointer", StepError::ZeroFramePointer),
        ("FramePointerBelowStack", StepError::FramePointerBelowStack { fp: 0, sp: 0 }),
        ("UnknownRegister", StepError::UnknownRegister(BaseReg::Sp)),
        ("Overflow", StepError::Overflow),
        ("BadRule", StepError::BadRule),
        ("UnknownTrampoline", StepError::UnknownTrampoline),
        ("ReturnProbe", StepError::ReturnProbe { pc: ADDR }),
        ("CallerBesideZero", StepError::CallerBesideZero { cfa: 0, pc: ADDR }),
    ];
    let ends = [
        ("Outermost", End::Outermost),
        ("ZeroReturnAddress", End::ZeroReturnAddress),
        ("FrameLimit", End::FrameLimit),
        ("NoRow", End::NoRow),
        ("Step", End::Step(unreadable)),
        ("Table", End::Table(TableFault::new(Bad, ADDR))),
        ("NotWalkable", End::NotWalkable),
    ];
    check_variants("end.rs", "End", &ends.map(|(name, _)| name));
    check_variants("step_error.rs", "StepError", &steps.map(|(name, _)| name));
    let steps = steps.map(|(name, step)| match name {
        "ZeroReturnAddress" => ("StepZeroReturnAddress", End::<TableFault>::Step(step).code()),
        name => (name, End::<TableFault>::Step(step).code()),
    });
    let ends = ends.map(|(name, end)| (name, end.code()));
    let ends = ends.into_iter().filter(|(name, _)| *name != "Step").chain(steps);
    check("unwind_end", &[("None", 0)].into_iter().chain(ends).collect::<Vec<_>>());
}

/// Some error of a table.
#[derive(Clone, Copy)]
struct Bad;

impl From<std::convert::Infallible> for Bad {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl unwind_core::TableError for Bad {}

#[test]
fn outcomes_have_their_numbers() {
    let cookie = Cookie::new(1).unwrap();
    let outcomes = [
        ("Queued", RequestOutcome::Queued(cookie)),
        ("AlreadyPending", RequestOutcome::AlreadyPending(cookie)),
        ("AlreadyExecuted", RequestOutcome::AlreadyExecuted(cookie)),
        ("Refused", RequestOutcome::Refused(Refusal::NoCookie)),
    ];
    let refusals = [
        ("KernelThread", Refusal::KernelThread),
        ("UserWorker", Refusal::UserWorker),
        ("Exiting", Refusal::Exiting),
        ("NoUserRegisters", Refusal::NoUserRegisters),
        ("NmiUnsafe", Refusal::NmiUnsafe),
        ("UnknownClient", Refusal::UnknownClient),
        ("ScheduleFailed", Refusal::ScheduleFailed),
        ("NoCookie", Refusal::NoCookie),
    ];
    check_variants("deferred/request.rs", "RequestOutcome", &outcomes.map(|(name, _)| name));
    check_variants("deferred/request.rs", "Refusal", &refusals.map(|(name, _)| name));
    let refusals = refusals
        .map(|(name, refusal)| (format!("Refused{name}"), RequestOutcome::Refused(refusal).code()));
    let mut all = outcomes.map(|(name, outcome)| (name, outcome.code())).to_vec();
    all.pop();
    all.extend(refusals.iter().map(|(name, code)| (name.as_str(), *code)));
    check("unwind_outcome", &all);
}

#[test]
fn samples_and_origins_have_their_numbers() {
    let samples = [
        ("Matched", SampleOutcome::Matched),
        ("Truncated", SampleOutcome::Truncated),
        ("StackLost", SampleOutcome::StackLost),
        ("TaskGone", SampleOutcome::TaskGone),
        ("Exec", SampleOutcome::Exec),
        ("Inline", SampleOutcome::Inline),
    ];
    check_variants("deferred/sample_outcome.rs", "SampleOutcome", &samples.map(|(name, _)| name));
    check("unwind_sample", &samples.map(|(name, sample)| (name, sample.code())));
    let origins = [
        ("Registers", Origin::Registers),
        ("Table", Origin::Table),
        ("CallFrames", Origin::CallFrames),
        ("FramePointer", Origin::FramePointer),
        ("Instructions", Origin::Instructions),
        ("SignalContext", Origin::SignalContext),
        ("BranchRecord", Origin::BranchRecord),
        ("Host", Origin::Host),
    ];
    check_variants("origin.rs", "Origin", &origins.map(|(name, _)| name));
    check("unwind_origin", &origins.map(|(name, origin)| (name, origin.code())));
}

/// The numbers that the library does not know are written down here once more.
#[test]
fn other_numbers_stay_the_same() {
    let numbers = |name, expected: &str| {
        let mut all: Vec<_> = in_header(name).into_iter().collect();
        all.sort_by_key(|(_, number)| number.abs());
        let all: Vec<_> = all.iter().map(|(name, number)| format!("{name} {number}")).collect();
        assert_eq!(all.join(", "), expected, "{name}");
    };
    numbers(
        "unwind_error",
        "Null -1, Misaligned -2, TooSmall -3, Invalid -4, InUse -5, TooManyClients -6, UnknownClient -7, \
         OwnDelivery -8, StillRunning -9, EmptyRange -10, Overlap -11, Full -12, Busy -13",
    );
    numbers(
        "unwind_task_kind",
        "User 0, KernelThread 1, UserWorker 2, Exiting 3, NoUserRegisters 4",
    );
    numbers("unwind_read", "Done 0, Absent 1, Invalid 2");
    numbers(
        "unwind_format",
        "None 0, Sframe 1, EhFrame 2, FramePointers 3, SframeOfCallFrames 4, Awaited 5",
    );
    numbers("unwind_mode", "Long 0, Compat 1, Vm86 2");
    numbers("unwind_recipients", "Requesters 0, AllClients 1");
    numbers("unwind_loss", "TaskGone 0, Exec 1");
    numbers("unwind_return", "Ready 0, Pending 1");
}
