//! `perf_event_attr` from bytes and back, and the rules by which an event may be opened.
//! `event_attr_kernel.rs` holds the rules against a kernel.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, missing_docs, reason = "tests")]

use unwind_perf::Errno;
use unwind_perf::aux_trace::{AuxError, PmuCapabilities, TriggerAction};
use unwind_perf::event_attr::{AttrError, Caller, CheckedEvent, EventAttr, KernelVersion, Pmu};
use unwind_perf::record::{AttrFlags, BranchSampleType, Endian, ReadFormat, SampleType};

const NEWEST: KernelVersion = KernelVersion::new(7, 2, 13);
const OLD: KernelVersion = KernelVersion::new(5, 15, 0);

/// The fields in their order: where each is, and how long.
const FIELDS: [(usize, usize); 25] = [
    (0, 4),
    (4, 4),
    (8, 8),
    (16, 8),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 4),
    (52, 4),
    (56, 8),
    (64, 8),
    (72, 8),
    (80, 8),
    (88, 4),
    (92, 4),
    (96, 8),
    (104, 4),
    (108, 2),
    (110, 2),
    (112, 4),
    (116, 4),
    (120, 8),
    (128, 8),
    (136, 8),
    (144, 0),
];

#[test]
fn g11_every_size_is_decoded_and_encoded_as_it_was() {
    let all: Vec<u8> = (0..144_u8).map(|at| at.wrapping_mul(37) | 1).collect();
    for size in (64..=144_u8).chain([0]) {
        let mut bytes = all.clone();
        bytes[4..8].copy_from_slice(&[size, 0, 0, 0]);
        let attr = EventAttr::decode(&bytes, Endian::Little, NEWEST).unwrap();
        let len = usize::from(size.max(64));
        assert_eq!(attr.size, u32::try_from(len).unwrap());
        let mut out = [0xaa; 200];
        assert_eq!(attr.encode(&mut out, Endian::Little), Some(len));
        bytes[4] = u8::try_from(len).unwrap();
        assert_eq!(out[..len], bytes[..len]);
        assert!(out[len..].iter().all(|&byte| byte == 0xaa));
        // The other byte order: each field turned round, of the flags each bit.
        let mut big = vec![0; len];
        attr.encode(&mut big, Endian::Big).unwrap();
        for (at, field) in FIELDS.into_iter().filter(|(at, field)| at + field <= len) {
            if at != 40 {
                let turned: Vec<u8> = big[at..at + field].iter().rev().copied().collect();
                assert_eq!(turned, bytes[at..at + field], "field at {at}");
            }
        }
        // A cut field keeps its low bytes in one order, its high bytes in the other.
        if FIELDS.iter().any(|&(at, _)| at == len) {
            assert_eq!(EventAttr::decode(&big, Endian::Big, NEWEST), Ok(attr));
        }
        assert_eq!(attr.encode(&mut vec![0; len - 1], Endian::Little), None);
    }
}

#[test]
fn g11_flags_of_a_big_endian_machine_count_from_the_other_end() {
    let mut bytes = [0; 64];
    // disabled; the higher of the two bits of precise_ip; mmap2
    bytes[40] = 0x80;
    bytes[41] = 0x01;
    bytes[42] = 0x01;
    let attr = EventAttr::decode(&bytes, Endian::Big, NEWEST).unwrap();
    assert_eq!(attr.flags.bits(), 1 | 1 << 16 | 1 << 23);
}

#[test]
fn g11_bytes_that_a_kernel_does_not_know_have_to_be_zero() {
    for (kernel, known) in [
        (OLD, 128),
        (KernelVersion::new(6, 3, 0), 136),
        (KernelVersion::new(6, 18, 44), 136),
        (NEWEST, 144),
    ] {
        assert_eq!(kernel.attr_size(), known);
        let mut bytes = [0; 200];
        bytes[4] = 200;
        let fine = EventAttr::decode(&bytes, Endian::Little, kernel).unwrap();
        assert_eq!(fine.size, 200);
        let end = usize::try_from(known).unwrap();
        for at in end..200 {
            bytes[at] = 1;
            let error = EventAttr::decode(&bytes, Endian::Little, kernel).unwrap_err();
            assert_eq!(error, AttrError::NewerFields { known });
            assert_eq!(error.errno(), Errno::TooBig);
            bytes[at] = 0;
        }
    }
    for (size, len) in [(63, 4096), (4097, 5000), (128, 127), (u32::MAX, 4096), (64, 0)] {
        let mut bytes = vec![0; len];
        if let Some(field) = bytes.get_mut(4..8) {
            field.copy_from_slice(&u32::to_le_bytes(size));
        }
        let said = if len == 0 { 64 } else { size };
        let error = AttrError::Size { size: said, known: 144 };
        assert_eq!(EventAttr::decode(&bytes, Endian::Little, NEWEST), Err(error));
    }
}

/// A sampled software event, without the kernel's part.
fn sampled() -> EventAttr {
    let mut attr = EventAttr::default();
    attr.kind = 1;
    attr.sample_period = 1000;
    attr.sample_type = SampleType::IP | SampleType::TID | SampleType::CALLCHAIN;
    attr.flags = AttrFlags::EXCLUDE_KERNEL | AttrFlags::EXCLUDE_CALLCHAIN_KERNEL;
    attr
}

fn check(edit: impl FnOnce(&mut EventAttr)) -> Result<CheckedEvent, AttrError> {
    let mut attr = sampled();
    edit(&mut attr);
    attr.check(NEWEST, Pmu::SOFTWARE, Caller::USER, None)
}

#[test]
fn g11_an_event_that_may_be_opened_is_said_in_terms_of_records_chains_and_branches() {
    let event = check(|attr| attr.flags |= AttrFlags::DEFER_CALLCHAIN).unwrap();
    assert_eq!(event.format.sample_type, sampled().sample_type);
    assert_eq!((event.max_stack, event.branches), (Some(127), None));
    assert!(event.is_sampling && event.defers && !event.wants_deferred);
    let event = check(|attr| {
        attr.sample_type = SampleType::IP;
        attr.sample_max_stack = 500;
        attr.sample_period = 0;
        attr.flags |= AttrFlags::DEFER_OUTPUT;
    });
    let event = event.unwrap();
    assert_eq!((event.max_stack, event.is_sampling, event.wants_deferred), (None, false, true));
    let mut attr = sampled();
    attr.sample_type = SampleType::BRANCH_STACK;
    attr.branch_sample_type = BranchSampleType::CALL_STACK;
    let branches = attr.check(NEWEST, Pmu::CPU, Caller::USER, None);
    // The kernel's part is left out, a hypervisor's is not, which a user may not see.
    assert_eq!(branches, Err(AttrError::KernelNotAllowed));
    attr.flags |= AttrFlags::EXCLUDE_HV;
    let branches = attr.check(NEWEST, Pmu::CPU, Caller::USER, None).unwrap().branches.unwrap();
    assert_eq!(branches, BranchSampleType::CALL_STACK | BranchSampleType::USER);
}

#[test]
fn g11_each_rule_is_broken_by_one_field() {
    let flag =
        |bit: u32| move |attr: &mut EventAttr| attr.flags |= AttrFlags::from_bits_retain(1 << bit);
    let refused = |bits: u64, edit: fn(&mut EventAttr)| {
        check(|attr| {
            attr.sample_type |= SampleType::from_bits_retain(bits);
            edit(attr);
        })
        .unwrap_err()
    };
    assert_eq!(check(flag(40)), Err(AttrError::Reserved(1 << 40)));
    assert_eq!(check(|attr| attr.aux_action = 8), Err(AttrError::Reserved(8)));
    assert_eq!(refused(1 << 25, |_| {}), AttrError::SampleType(1 << 25));
    assert_eq!(
        check(|attr| attr.read_format = ReadFormat::from_bits_retain(0x21)),
        Err(AttrError::ReadFormat(0x20))
    );
    let branch = |filter| {
        let mut attr = sampled();
        attr.sample_type = SampleType::BRANCH_STACK;
        attr.branch_sample_type = BranchSampleType::from_bits_retain(filter);
        attr.check(NEWEST, Pmu::SOFTWARE, Caller::USER, None).unwrap_err()
    };
    assert_eq!(branch(1 << 20 | 8), AttrError::BranchSampleType(1 << 20));
    assert_eq!(branch(7), AttrError::NoBranches);
    assert_eq!(branch(8 | 2), AttrError::KernelNotAllowed);
    assert_eq!(branch(8 | 1), AttrError::BranchesNotSupported);
    let registers = SampleType::REGS_USER.bits();
    assert_eq!(refused(registers, |_| {}), AttrError::Registers(0));
    assert_eq!(refused(registers, |a| a.sample_regs_user = 1 << 12), AttrError::Registers(1 << 12));
    assert_eq!(refused(1 << 18, |a| a.sample_regs_intr = 1 << 31), AttrError::Registers(1 << 31));
    for size in [0xffff, 0x1_0000, 4] {
        let mut attr = sampled();
        attr.sample_type = SampleType::STACK_USER;
        attr.sample_stack_user = size;
        let error = attr.check(NEWEST, Pmu::SOFTWARE, Caller::USER, None).unwrap_err();
        assert_eq!(error, AttrError::StackSize(size));
    }
    assert_eq!(refused(1 << 14 | 1 << 24, |_| {}), AttrError::TwoWeights);
    assert_eq!(check(flag(35)), Err(AttrError::InheritThread));
    assert_eq!(
        check(|a| a.flags |= AttrFlags::REMOVE_ON_EXEC | AttrFlags::ENABLE_ON_EXEC),
        Err(AttrError::EnableAndRemove)
    );
    assert_eq!(check(flag(37)), Err(AttrError::Signal));
    let mut signal = sampled();
    signal.flags |= AttrFlags::REMOVE_ON_EXEC | AttrFlags::SIGTRAP;
    let of_a_cpu = signal.check(NEWEST, Pmu::SOFTWARE, Caller::USER.without_task(), None);
    assert_eq!(of_a_cpu, Err(AttrError::Signal));
    assert!(signal.check(NEWEST, Pmu::SOFTWARE, Caller::USER, None).is_ok());
    assert_eq!(check(|a| a.flags = AttrFlags::empty()), Err(AttrError::KernelNotAllowed));
    assert_eq!(check(flag(28)), Err(AttrError::NamespacesNotAllowed));
    let often = check(|a| {
        a.flags |= AttrFlags::FREQ;
        a.sample_period = 100_001;
    });
    assert_eq!(often, Err(AttrError::Frequency(100_001)));
    assert_eq!(check(|a| a.sample_period = 1 << 63), Err(AttrError::Period(1 << 63)));
    assert_eq!(refused(1 << 19, |_| {}), AttrError::KernelNotAllowed);
    let inherited = |sample_type, kernel| {
        let mut attr = sampled();
        attr.sample_type = sample_type;
        attr.flags |= AttrFlags::from_bits_retain(1 << 1);
        attr.check(kernel, Pmu::SOFTWARE, Caller::USER, None).map(|_| ())
    };
    assert_eq!(inherited(SampleType::READ, NEWEST), Err(AttrError::ReadInherited));
    assert_eq!(inherited(SampleType::READ | SampleType::TID, NEWEST), Ok(()));
    let old = inherited(SampleType::READ | SampleType::TID, OLD);
    assert_eq!(old, Err(AttrError::ReadInherited));
    let vectors = check(|a| a.sample_regs_intr = 1 << 40);
    assert_eq!(vectors, Err(AttrError::VectorRegistersNotSupported));
    let mut with_vectors = Pmu::SOFTWARE;
    with_vectors.vector_registers = true;
    let mut attr = sampled();
    attr.sample_regs_intr = 1 << 40;
    assert!(attr.check(NEWEST, with_vectors, Caller::USER, None).is_ok());
    let mut all = Pmu::SOFTWARE;
    all.counts_all = true;
    attr = sampled();
    attr.flags = AttrFlags::empty();
    assert!(attr.check(NEWEST, all, Caller::PRIVILEGED, None).is_ok(), "it asks for all modes");
    let mut only_counts = Pmu::SOFTWARE;
    only_counts.samples = false;
    for (pmu, error) in
        [(all, AttrError::ModesNotSupported), (only_counts, AttrError::SamplesNotSupported)]
    {
        assert_eq!(sampled().check(NEWEST, pmu, Caller::USER, None), Err(error));
    }
    assert_eq!(check(|a| a.sample_max_stack = 128), Err(AttrError::MaxStack(128)));
    let clock = |id, pmu| {
        let mut attr = sampled();
        attr.flags |= AttrFlags::from_bits_retain(1 << 25);
        attr.clockid = id;
        attr.check(NEWEST, pmu, Caller::USER, None).map(|_| ())
    };
    for (id, software, cpu) in
        [(1, true, true), (4, true, true), (0, true, false), (3, false, false)]
    {
        for (pmu, is_fine) in [(Pmu::SOFTWARE, software), (Pmu::CPU, cpu)] {
            assert_eq!(clock(id, pmu), if is_fine { Ok(()) } else { Err(AttrError::Clock(id)) });
        }
    }
}

#[test]
fn g11_newer_kernels_guard_their_code_and_their_part_of_chains() {
    let is_refused = |flags: AttrFlags, major, minor, patch| {
        let mut attr = sampled();
        attr.flags = AttrFlags::EXCLUDE_KERNEL | flags;
        let kernel = KernelVersion::new(major, minor, patch);
        assert!(attr.check(kernel, Pmu::SOFTWARE, Caller::PRIVILEGED, None).is_ok());
        let verdict = attr.check(kernel, Pmu::SOFTWARE, Caller::USER, None);
        verdict.map(|_| ()) == Err(AttrError::KernelNotAllowed)
    };
    let user_part = AttrFlags::EXCLUDE_CALLCHAIN_KERNEL;
    for (major, minor, patch, text_pokes, chains) in [
        (5, 15, 0, false, false),
        (6, 1, 191, false, false),
        (6, 1, 192, true, false),
        (6, 12, 107, false, false),
        (6, 18, 44, false, false),
        (7, 2, 13, true, true),
    ] {
        assert_eq!(is_refused(AttrFlags::empty(), major, minor, patch), chains, "{major}.{minor}");
        assert!(!is_refused(user_part, major, minor, patch), "{major}.{minor}");
        let pokes = is_refused(user_part | AttrFlags::TEXT_POKE, major, minor, patch);
        assert_eq!(pokes, text_pokes, "{major}.{minor}.{patch}");
    }
}

#[test]
fn g11_each_kernel_knows_the_branch_types_of_its_time() {
    let verdict = |branch_type: u64, major, minor| {
        let mut attr = sampled();
        attr.sample_type |= SampleType::BRANCH_STACK;
        attr.branch_sample_type = BranchSampleType::from_bits_retain(branch_type | 1);
        let kernel = KernelVersion::new(major, minor, 0);
        attr.check(kernel, Pmu::CPU, Caller::PRIVILEGED, None).map(|_| ())
    };
    let newest = [(5, 15, 17), (6, 1, 18), (6, 7, 18), (6, 8, 19), (6, 18, 19)];
    for (major, minor, bit) in newest {
        let is_reserved = |bit| {
            matches!(verdict(1_u64 << bit, major, minor), Err(AttrError::BranchSampleType(_)))
        };
        assert!(!is_reserved(bit) && is_reserved(bit + 1), "{major}.{minor}");
    }
}

#[test]
fn g9_what_an_event_asks_of_aux_tracing_needs_a_leader_that_can_do_it() {
    let trace = |capabilities| {
        let mut pmu = Pmu::CPU;
        pmu.aux = capabilities;
        pmu
    };
    let plain = trace(PmuCapabilities::AUX_OUTPUT);
    let leads = trace(PmuCapabilities::AUX_PAUSE | PmuCapabilities::AUX_SNAPSHOT);
    let aux = |output: bool, sample_size, action, leader| {
        let mut attr = sampled();
        attr.flags |= if output { AttrFlags::AUX_OUTPUT } else { AttrFlags::empty() };
        attr.aux_sample_size = sample_size;
        attr.aux_action = action;
        attr.check(NEWEST, plain, Caller::USER, leader)
    };
    let refused = |error| Err(AttrError::Aux(error));
    assert_eq!(aux(true, 0, 0, None), refused(AuxError::NoAuxLeader));
    assert_eq!(aux(false, 64, 0, None), refused(AuxError::NoAuxLeader));
    assert_eq!(aux(false, 0, 2, None), refused(AuxError::NoAuxLeader));
    assert_eq!(aux(true, 64, 0, Some(leads)), refused(AuxError::OutputAndSamples));
    assert_eq!(aux(false, 64, 0, Some(plain)), refused(AuxError::SnapshotNotSupported));
    assert_eq!(aux(false, 0, 4, Some(plain)), refused(AuxError::NoAuxLeader));
    assert!(aux(true, 0, 0, Some(leads)).is_ok() && aux(false, 64, 0, Some(leads)).is_ok());
    let resumes = aux(false, 0, 4, Some(leads)).unwrap();
    assert_eq!(resumes.role.trigger, Some(TriggerAction::Resume));
}

#[test]
fn s3_g11_actions_on_aux_traces_are_reserved_bits_to_kernels_before_they_had_them() {
    let mut leader = Pmu::CPU;
    leader.aux = PmuCapabilities::AUX_PAUSE | PmuCapabilities::AUX_SNAPSHOT;
    let (before, since) = (KernelVersion::new(6, 11, 99), KernelVersion::new(6, 12, 0));
    for action in [1, 2, 4] {
        let mut attr = sampled();
        attr.aux_action = action;
        let opened = |kernel| attr.check(kernel, Pmu::CPU, Caller::USER, Some(leader));
        assert_eq!(opened(before), Err(AttrError::Reserved(action.into())), "{action}");
        assert_eq!(opened(OLD), Err(AttrError::Reserved(action.into())), "{action}");
        assert!(!matches!(opened(since), Err(AttrError::Reserved(_))), "{action}");
    }
    let attr = sampled();
    assert!(attr.check(before, Pmu::CPU, Caller::USER, Some(leader)).is_ok());
}
