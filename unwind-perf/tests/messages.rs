//! What errors say, and what Linux calls them.
#![cfg(not(loom))]
#![cfg(test)]

use test_support::check_messages;
use unwind_core::deferred::{CancelError, Refusal};
use unwind_perf::Errno;
use unwind_perf::aux_trace::{AuxBuffer, AuxError, AuxGate, OneCpu, Trigger, TriggerAction};
use unwind_perf::event_attr::AttrError;
use unwind_perf::per_cpu::{
    AddError, CpuList, DeliveryPolicy, FixedRegistry, RemoveError, RequestError, SwitchHold,
    TaskEvent,
};
use unwind_perf::record::{BranchFlags, ChainFull, ChainLimits, Error, WriteError};
use unwind_perf::ring::RingError;
use unwind_perf::task_data::{
    AttachError, DataHandle, DataLayout, DetachError, DetachReason, SwitchHook, TaskData,
    TaskDataUsers, UserCount,
};

#[test]
fn every_error_of_a_record_says_something_of_its_own() {
    let errors = [
        Error::Truncated { at: 8, needed: 4 },
        Error::BadSize(3),
        Error::BadCount { at: 8, room: 1, count: 2 },
        Error::Trailing { at: 8, len: 8 },
        Error::WrongType { expected: 9, found: 22 },
        Error::NoUserMarker(7),
        Error::BadAttrSize(3),
        Error::UnsupportedFields(0x400),
        Error::MissingFields(0x2),
        Error::TooLong { len: 0x1_0000 },
        Error::NoCommonId,
    ];
    let mut texts: Vec<String> = errors.map(|error| error.to_string()).to_vec();
    texts.push(WriteError::NoRoom.to_string());
    let full = [ChainFull::Contexts, ChainFull::Stack, ChainFull::Buffer, ChainFull::Closed];
    texts.extend(full.map(|error| error.to_string()));
    check_messages(&texts);
    assert_eq!(WriteError::Encode(errors[1]).to_string(), texts[1]);
}

#[test]
fn every_error_of_an_event_says_something_of_its_own_and_which_errno_it_is() {
    let add = [
        (AddError::NoCpu, Errno::InvalidArgument),
        (AddError::NoParent, Errno::InvalidArgument),
        (AddError::TaskAndGroup, Errno::InvalidArgument),
        (AddError::CpuOutOfRange { cpu: 9 }, Errno::InvalidArgument),
        (AddError::NoMemory, Errno::NoMemory),
        (AddError::Busy, Errno::Busy),
        (AddError::Exhausted, Errno::Busy),
    ];
    let attach = [
        (AttachError::NoLayout, Errno::NoMemory),
        (AttachError::NoMemory, Errno::NoMemory),
        (AttachError::Exiting, Errno::NoSuchProcess),
        (AttachError::TooManyUsers, Errno::Busy),
    ];
    let aux = [
        (AuxError::ReservedBits(0x10), Errno::InvalidArgument),
        (AuxError::KernelCounter, Errno::InvalidArgument),
        (AuxError::OutputNotSupported, Errno::NotSupported),
        (AuxError::OutputWithTrigger, Errno::NotSupported),
        (AuxError::PauseAndResume, Errno::InvalidArgument),
        (AuxError::StartPausedNotSupported, Errno::NotSupported),
        (AuxError::NoAuxLeader, Errno::InvalidArgument),
        (AuxError::OutputAndSamples, Errno::InvalidArgument),
        (AuxError::SnapshotNotSupported, Errno::InvalidArgument),
    ];
    let request = [
        RequestError::NotUser,
        RequestError::Removed,
        RequestError::OtherTask,
        RequestError::Queueing,
        RequestError::Refused(Refusal::KernelThread),
    ];
    for (found, expected) in add
        .map(|(error, errno)| (error.errno(), errno))
        .into_iter()
        .chain(attach.map(|(error, errno)| (error.errno(), errno)))
        .chain(aux.map(|(error, errno)| (error.errno(), errno)))
    {
        assert_eq!(found, expected);
    }
    assert_eq!(RemoveError::OwnDelivery.errno(), Errno::WouldDeadlock);
    let mut texts: Vec<String> = add.map(|(error, _)| error.to_string()).to_vec();
    texts.extend(attach.map(|(error, _)| error.to_string()));
    texts.extend(request.map(|error| error.to_string()));
    texts.push(RemoveError::OwnDelivery.to_string());
    assert_eq!(RemoveError::Removed.to_string(), RequestError::Removed.to_string());
    assert_eq!(RemoveError::StillRunning { client: None }.errno(), Errno::Busy);
    texts.push(RemoveError::StillRunning { client: None }.to_string());
    texts.push(RemoveError::NotCancelled(CancelError::UnknownClient).to_string());
    for reason in [DetachReason::OtherTask, DetachReason::OtherUsers] {
        let text = DetachError { reason, attachment: () }.to_string();
        assert_eq!(text, reason.to_string());
        texts.push(text);
    }
    texts.extend([UserCount::TooMany, UserCount::None].map(|error| error.to_string()));
    texts.extend(aux.map(|(error, _)| error.to_string()));
    check_messages(&texts);
}

#[test]
fn g14_every_error_of_a_ring_says_something_of_its_own() {
    let errors = [
        RingError::ShortPage { words: 9 },
        RingError::BadLength { words: 9 },
        RingError::Overrun { head: 0x20, tail: 0x10 },
        RingError::BadRecord { at: 0x10, size: 9 },
        RingError::ShortBuffer { needed: 9 },
        RingError::Overwritten { head: 0x20, now: 0x10 },
        RingError::NotInAux { at: 0x10 },
    ];
    check_messages(&errors.map(|error| error.to_string()));
}

#[test]
fn g11_every_error_of_an_attr_says_something_of_its_own() {
    let errors = [
        AttrError::Size { size: 10, known: 136 },
        AttrError::NewerFields { known: 136 },
        AttrError::Reserved(0x10),
        AttrError::SampleType(0x10),
        AttrError::ReadFormat(0x10),
        AttrError::BranchSampleType(0x10),
        AttrError::NoBranches,
        AttrError::Registers(0x10),
        AttrError::StackSize(9),
        AttrError::TwoWeights,
        AttrError::InheritThread,
        AttrError::EnableAndRemove,
        AttrError::Signal,
        AttrError::KernelNotAllowed,
        AttrError::NamespacesNotAllowed,
        AttrError::Frequency(9),
        AttrError::Period(9),
        AttrError::ReadInherited,
        AttrError::BranchesNotSupported,
        AttrError::VectorRegistersNotSupported,
        AttrError::ModesNotSupported,
        AttrError::SamplesNotSupported,
        AttrError::Aux(AuxError::NoAuxLeader),
        AttrError::MaxStack(9),
        AttrError::Clock(9),
    ];
    check_messages(&errors.map(|error| error.to_string()));
}

#[test]
fn errnos_have_linuxs_numbers_and_names() {
    for (errno, number, name) in [
        (Errno::TooBig, libc_number("E2BIG"), "E2BIG"),
        (Errno::AccessDenied, libc_number("EACCES"), "EACCES"),
        (Errno::Overflow, libc_number("EOVERFLOW"), "EOVERFLOW"),
        (Errno::NoSuchProcess, libc_number("ESRCH"), "ESRCH"),
        (Errno::NoMemory, libc_number("ENOMEM"), "ENOMEM"),
        (Errno::Busy, libc_number("EBUSY"), "EBUSY"),
        (Errno::InvalidArgument, libc_number("EINVAL"), "EINVAL"),
        (Errno::WouldDeadlock, libc_number("EDEADLK"), "EDEADLK"),
        (Errno::NotSupported, libc_number("EOPNOTSUPP"), "EOPNOTSUPP"),
    ] {
        assert_eq!((errno.number(), errno.name()), (number, name));
        assert_eq!(errno.to_string(), name);
    }
}

/// By the standard library's table of what the numbers mean.
fn libc_number(name: &str) -> i32 {
    let text = match name {
        "ESRCH" => "No such process",
        "ENOMEM" => "Cannot allocate memory",
        "EBUSY" => "Device or resource busy",
        "EINVAL" => "Invalid argument",
        "EDEADLK" => "Resource deadlock avoided",
        "E2BIG" => "Argument list too long",
        "EACCES" => "Permission denied",
        "EOVERFLOW" => "Value too large for defined data type",
        _ => "Operation not supported",
    };
    let says = |number: &i32| std::io::Error::from_raw_os_error(*number).to_string().contains(text);
    (1..134).find(says).unwrap()
}

#[test]
fn what_a_kernel_prints_for_debugging_is_short_and_starts_with_its_name() {
    let texts = [
        ("PerCpuRegistry", format!("{:?}", FixedRegistry::<2, 2>::new(DeliveryPolicy::Broadcast))),
        ("CpuList", format!("{:?}", CpuList::<2>::default())),
        ("TaskEvent", format!("{:?}", TaskEvent::default())),
        ("SwitchHold", format!("{:?}", SwitchHold::default())),
        ("TaskDataUsers", format!("{:?}", TaskDataUsers::new(DataLayout::new(8, 8)))),
        ("TaskData", format!("{:?}", TaskData::default())),
        ("DataHandle(5#2)", format!("{:?}", DataHandle::new(5, 2).unwrap())),
        ("SwitchHook", format!("{:?}", SwitchHook::default())),
        ("AuxGate", format!("{:?}", AuxGate::<OneCpu>::new(true))),
        ("AuxBuffer", format!("{:?}", AuxBuffer::<OneCpu>::default())),
        ("Trigger", format!("{:?}", Trigger::new(TriggerAction::Pause))),
        ("ChainLimits", format!("{:?}", ChainLimits::default())),
        ("0x5", format!("{:?}", BranchFlags(5))),
    ];
    for (name, text) in texts {
        assert!(text.starts_with(name), "{text}");
        assert!(text.len() < 2000, "{} bytes of {name}", text.len());
    }
}
