//! What faults say: each something of its own, with where.
#![cfg(test)]

use sframe::{Error, RemoteError, TableOffset};
use test_support::check_messages;
use unwind_core::{Contended, ReadError, TableError as _, VirtAddr};
use unwind_x86::lbr::{Branch, BranchInfo, LbrSample, LbrState, Stitcher};
use unwind_x86::paging::{Fault, Level, PhysAddr};
use unwind_x86::{Ia32, RemoteSframeError, StackSwitchError, X86_64};

#[test]
fn every_fault_of_a_page_walk_says_something_of_its_own() {
    let at = PhysAddr::new(0x4008);
    let mut faults = vec![
        Fault::NotLinear(VirtAddr::new(1 << 60)),
        Fault::Page { at, error: ReadError::Invalid },
    ];
    for level in [Level::Pt, Level::Pd, Level::Pdpt, Level::Pml4, Level::Pml5] {
        faults.extend([
            Fault::NotPresent { level, at },
            Fault::Reserved { level, at, bits: 0x80 },
            Fault::Supervisor { level, at },
            Fault::Table { level, at, error: ReadError::NotResident },
        ]);
    }
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(texts[1..].iter().all(|text| text.contains("0x4008")), "{texts:#?}");
    check_messages(&texts);
    for fault in faults {
        let may_come = matches!(fault, Fault::NotPresent { .. } | Fault::Table { .. });
        assert_eq!(fault.read_error() == ReadError::NotResident, may_come, "{fault}");
    }
}

#[test]
fn an_error_of_a_table_in_memory_says_what_the_table_says() {
    let error = RemoteError::Table(Error::Truncated(TableOffset(0x1c)));
    assert_eq!(RemoteSframeError::Table(error).to_string(), error.to_string());
    assert_eq!(RemoteSframeError::Contended.to_string(), Contended.to_string());
    let codes = [RemoteSframeError::Table(error), RemoteSframeError::Contended];
    assert_eq!(codes.map(|error| error.code()), [1, 512]);
}

#[test]
fn why_the_stack_before_is_not_known_is_said_and_the_error_of_a_table_stays_its_own() {
    type Switch = StackSwitchError<RemoteSframeError>;
    let own = RemoteSframeError::Contended;
    let errors = [Switch::Source(own), Switch::Absent, Switch::NoWayBack];
    check_messages(&errors.map(|error| error.to_string()));
    assert_eq!(errors[0].to_string(), own.to_string());
    assert_eq!(errors.map(|error| error.code()), [512, 0xfffe, 0xffff]);
    let may_come = errors.map(|error| error.is_not_resident());
    assert_eq!(may_come, [own.is_not_resident(), true, false]);
}

#[test]
fn what_a_kernel_prints_for_debugging_is_short_and_starts_with_its_name() {
    let branch = Branch { from: 0x40_1000, to: 0x40_2000, info: BranchInfo::from_bits(7) };
    let sample = LbrSample::from_branches(&[branch], 8, Some(0)).unwrap();
    let texts = [
        ("LbrState", format!("{:?}", LbrState::default())),
        ("Stitcher", format!("{:?}", Stitcher::<(), 96>::default())),
        ("LbrSample", format!("{sample:?}")),
        ("0x401000 -> 0x402000", format!("{branch:?}")),
        ("X86_64", format!("{:?}", X86_64::default())),
        ("Ia32", format!("{:?}", Ia32::default())),
    ];
    for (name, text) in texts {
        assert!(text.starts_with(name), "{text}");
        assert!(text.len() < 300, "{} bytes of {name}", text.len());
    }
    assert_eq!(X86_64::default(), X86_64::FOUR_LEVEL);
    assert_eq!(Ia32::default(), Ia32::FLAT);
    assert_eq!(format!("{:?}", PhysAddr::new(0x4000)), "0x4000");
}
