//! What errors and ends say: each something of its own.
#![cfg(not(loom))]
#![cfg(test)]

use core::convert::Infallible;

use test_support::check_messages;
use unwind_core::deferred::{
    CancelError, ClientId, ClockCookies, Cookie, CounterCookies, PerCpuCookies, Refusal,
    SampleOutcome, ScheduleError, SerialCookies, TaskState, TooManyClients, UnwindCache,
};
use unwind_core::{
    BaseReg, CfaRule, Contended, DwarfReg, End, MapError, ModuleMap, Origin, ReadError, RegRule,
    Row, RowCache, SharedModuleMap, StepError, TableError, TableFault, Trace, VirtAddr,
};

const ADDR: VirtAddr = VirtAddr::new(0x7000);

#[test]
fn a_row_reads_as_dwarf_has_it() {
    let row = Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::SameValue);
    let plain = "CFA = sp+16, RA = [CFA-8], fp = same value";
    let register = BaseReg::Reg(DwarfReg(10));
    let with = |ra, fp| Row::new(CfaRule::AtRegister(register, -8), ra, fp);
    for (row, text) in [
        (row, plain.into()),
        (row.with_signal(), format!("{plain}, of a signal frame")),
        (row.with_signed_ra(), format!("{plain}, RA is signed")),
        (row.with_guess(), format!("{plain}, a guess")),
        (
            Row::other_stack(0x1230, -8, false),
            "CFA = 0x1230, on another stack, RA = [CFA-8], fp = undefined".into(),
        ),
        (
            with(RegRule::Register(register, 0), RegRule::AtRegister(BaseReg::Fp, 4)),
            "CFA = [r10-8], RA = r10+0, fp = [fp+4]".into(),
        ),
        (
            with(RegRule::AtRegister(BaseReg::Sp, 0), RegRule::ValOffset(-16)),
            "CFA = [r10-8], RA = [sp+0], fp = CFA-16".into(),
        ),
        (Row::outermost(), "RA is undefined: the outermost frame".into()),
        (Row::signal_context(), "the registers that the kernel saved for a signal handler".into()),
    ] {
        assert_eq!(row.to_string(), text);
    }
}

#[test]
fn every_end_of_a_walk_says_something_of_its_own() {
    let steps = [
        StepError::Unreadable { addr: ADDR, error: ReadError::NotResident },
        StepError::Unreadable { addr: ADDR, error: ReadError::Invalid },
        StepError::NoProgress { cfa: 0x10, sp: 0x20 },
        StepError::Misaligned { cfa: 0x11 },
        StepError::BeyondStack { cfa: 0x10 },
        StepError::NonCanonical { pc: 1 << 60 },
        StepError::NotCode { pc: ADDR },
        StepError::ReturnProbe { pc: ADDR },
        StepError::ZeroReturnAddress { cfa: 0x10 },
        StepError::ZeroFramePointer,
        StepError::FramePointerBelowStack { fp: 8, sp: 16 },
        StepError::UnknownRegister(BaseReg::Sp),
        StepError::UnknownRegister(BaseReg::Fp),
        StepError::UnknownRegister(BaseReg::Reg(DwarfReg(10))),
        StepError::Overflow,
        StepError::BadRule,
        StepError::UnknownTrampoline,
    ];
    let ends = [
        End::<Infallible>::Outermost,
        End::ZeroReturnAddress,
        End::FrameLimit,
        End::NoRow,
        End::NotWalkable,
    ];
    let mut texts: Vec<String> = steps.map(|error| error.to_string()).to_vec();
    assert!(texts[0].contains("0x7000"), "{}", texts[0]);
    texts.extend(ends.map(|end| end.to_string()));
    texts.push(End::<ReadError>::Table(ReadError::Invalid).to_string());
    check_messages(&texts);
    assert_eq!(End::<Infallible>::Step(steps[3]).to_string(), texts[3]);
    let complete = ends.iter().filter(|end| end.is_outermost()).count();
    assert_eq!(complete, 2);
}

#[test]
fn an_error_of_a_table_without_a_number_is_number_0() {
    #[derive(Clone, Copy, Debug)]
    struct Unnumbered;
    impl core::fmt::Display for Unnumbered {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            f.write_str("something is wrong")
        }
    }
    impl core::error::Error for Unnumbered {}
    impl TableError for Unnumbered {}
    impl From<Infallible> for Unnumbered {
        fn from(never: Infallible) -> Self {
            match never {}
        }
    }
    let fault = TableFault::new(Unnumbered, ADDR);
    assert_eq!((fault.addr, fault.code, fault.is_not_resident), (ADDR, 0, false));
    assert_eq!(fault.to_string(), "error 0 at the lookup of 0x7000");
    let mut absent = fault;
    absent.is_not_resident = true;
    check_messages(&[fault.to_string(), absent.to_string()]);
    assert!(absent.to_string().contains("not resident"), "{absent}");
}

#[test]
fn every_refusal_and_every_other_error_says_something_of_its_own() {
    let refusals = [
        Refusal::KernelThread,
        Refusal::UserWorker,
        Refusal::Exiting,
        Refusal::NoUserRegisters,
        Refusal::NmiUnsafe,
        Refusal::UnknownClient,
        Refusal::ScheduleFailed,
        Refusal::NoCookie,
    ];
    let ends = [
        SampleOutcome::Matched,
        SampleOutcome::Truncated,
        SampleOutcome::StackLost,
        SampleOutcome::TaskGone,
        SampleOutcome::Exec,
        SampleOutcome::Inline,
    ];
    let maps = [MapError::EmptyRange, MapError::Overlap(ADDR), MapError::Full, MapError::Busy];
    let mut texts: Vec<String> = refusals.map(|refusal| refusal.to_string()).to_vec();
    texts.extend(ends.map(|end| end.to_string()));
    texts.extend(maps.map(|error| error.to_string()));
    texts.extend([ReadError::NotResident, ReadError::Invalid].map(|error| error.to_string()));
    texts.push(TooManyClients.to_string());
    texts.push(Contended.to_string());
    texts.push(CancelError::OwnDelivery.to_string());
    check_messages(&texts);
    // The same fact has the same words.
    assert_eq!(ScheduleError.to_string(), Refusal::ScheduleFailed.to_string());
    let cancels = [CancelError::UnknownClient, CancelError::StillRunning];
    check_messages(&cancels.map(|error| error.to_string()));
}

#[test]
fn every_origin_of_a_frame_has_a_name_and_values_are_hexadecimal() {
    let origins = [
        Origin::Registers,
        Origin::Table,
        Origin::CallFrames,
        Origin::FramePointer,
        Origin::Instructions,
        Origin::SignalContext,
        Origin::BranchRecord,
        Origin::Host,
    ];
    check_messages(&origins.map(|origin| origin.to_string()));
    assert_eq!(format!("{ADDR}, {ADDR:?}, {}", DwarfReg(3)), "0x7000, 0x7000, r3");
    assert_eq!(format!("{:?}", Cookie::new(0x3_0000_0001).unwrap()), "Cookie(0x300000001)");
}

#[test]
fn what_a_kernel_prints_for_debugging_is_short_and_starts_with_its_name() {
    let row = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
    let texts = [
        ("RowCache", format!("{:?}", RowCache::<64>::default())),
        ("Trace", format!("{:?}", Trace::<[_; 510]>::default())),
        ("UnwindCache", format!("{:?}", UnwindCache::<[_; 510]>::default())),
        ("SharedModuleMap", format!("{:?}", SharedModuleMap::<64>::default())),
        ("ModuleMap", format!("{:?}", ModuleMap::<u8, 64>::default())),
        ("TaskState", format!("{:?}", TaskState::default())),
        ("SerialCookies", format!("{:?}", SerialCookies::default())),
        ("CounterCookies", format!("{:?}", CounterCookies::default())),
        ("ClockCookies", format!("{:?}", ClockCookies::default())),
        ("PerCpuCookies", format!("{:?}", PerCpuCookies::<2>::default())),
        ("ClientId", format!("{:?}", ClientId::from_bits(1 << 5 | 3))),
        ("ClientId(none)", format!("{:?}", ClientId::NONE)),
        ("Row", format!("{row:?}")),
    ];
    for (name, text) in texts {
        assert!(text.starts_with(name), "{text}");
        assert!(text.len() < 300, "{} bytes of {name}", text.len());
    }
    let table = format!("{:?}", Row::outermost().with_origin(Origin::Table));
    assert!(table.contains("origin: Table"), "{table}");
}
