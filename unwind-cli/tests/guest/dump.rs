//! Dumps of the machine that the test plays: what QEMU writes of it, and what a kernel that has crashed leaves.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testdata::{ElfBuilder, ElfSegment, note};

use crate::support::{fails, run, scratch};
use crate::{
    KERNEL, KERNEL_STACK, MOVED_BY, Machine, ROOT, STACK_64, in_kernel, kernel, pcs, vcpu,
};

/// The dump of a machine's memory, with these notes.
fn dump(test: &str, machine: &Machine, notes: &[Vec<u8>]) -> PathBuf {
    let mut file = ElfBuilder::new(ElfBuilder::CORE);
    let notes = notes.concat();
    let offset = file.put(&notes);
    let file_size = notes.len().try_into().unwrap();
    let note = ElfSegment { kind: 4, offset, file_size, ..Default::default() };
    let offset = file.put(&machine.ram);
    let size = machine.ram.len().try_into().unwrap();
    let ram =
        ElfSegment { kind: 1, offset, file_size: size, memory_size: size, ..Default::default() };
    file.segments = vec![note, ram];
    let path = scratch(&format!("guest-{test}")).join("core");
    fs::write(&path, file.finish()).unwrap();
    path
}

/// QEMU's note of a vCPU of user code with a chain of frame pointers, as [`Machine::long`] is.
fn note_of_qemu(levels: u32) -> Vec<u8> {
    let rsp = STACK_64 + 0x100;
    let mut words = vec![440 << 32 | 1];
    // After rax, rbx, rcx, rdx, rsi and rdi come rsp and rbp; after r8 to r15 rip and the flags.
    words.extend([0, 0, 0, 0, 0, 0, rsp, rsp + 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0x40_1000, 0x246]);
    // cs, ds, es, fs, gs, ss, ldt, tr, gdt, idt: selector and limit, flags, base.
    for (selector, flags) in
        [(0x33, 0x00af_fb00), (0, 0), (0, 0), (0, 0), (0, 0), (0x2b, 0x00cf_f300)]
    {
        words.extend([0xffff_ffff << 32 | selector, flags, 0]);
    }
    words.extend([0; 12]);
    let la57 = if levels == 5 { 1 << 12 } else { 0 };
    words.extend([0x8005_0033, 0, 0, ROOT, 0x6b0 | la57]);
    note(b"QEMU", 0, &bytes(&words))
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The note of a CPU of a kernel that has crashed, as of a thread.
fn note_of_kernel(rip: u64, rsp: u64, rbp: u64) -> Vec<u8> {
    let mut desc = vec![0; 112];
    let mut registers = [0; 27];
    (registers[4], registers[16], registers[17], registers[19], registers[20]) =
        (rbp, rip, 0x10, rsp, 0x18);
    desc.extend(bytes(&registers));
    desc.resize(336, 0);
    note(b"CORE", 1, &desc)
}

/// What that kernel says of itself: its page tables are linked at an address, and it is at another one.
fn vmcoreinfo(levels: u32) -> Vec<u8> {
    const LINKED: u64 = 0x260_1000;
    let root = 0xffff_ffff_8000_0000 + LINKED;
    let phys_base = LINKED - ROOT;
    let five = u32::from(levels == 5);
    let text = format!(
        "OSRELEASE=6.12\nSYMBOL(swapper_pg_dir)={root:x}\nNUMBER(phys_base)=-{phys_base}\n\
         NUMBER(pgtable_l5_enabled)={five}\n"
    );
    note(b"VMCOREINFO", 0, text.as_bytes())
}

/// The CPUs of a dump.
fn cpus(core: &Path, more: &[&str]) -> Vec<Value> {
    let core = core.to_str().unwrap();
    let output = run(["stack", "--core", core, "--json"].iter().chain(more).copied());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["vcpus"].as_array().unwrap().clone()
}

#[test]
fn qemus_dump_of_a_machine_has_the_stacks_of_that_machine() {
    for levels in [4, 5] {
        let core =
            dump("dumped", &Machine::long(levels), &[note_of_qemu(levels), note_of_qemu(levels)]);
        let played = Machine::long(levels).start("to-dump");
        let machine = vcpu(&played.run(&["--json"]));
        played.commands();
        let dumped = cpus(&core, &[]);
        assert_eq!((dumped.len(), &dumped[0]), (2, &machine));
        assert_eq!(dumped[1]["vcpu"], 1);
        assert_eq!(pcs(&dumped[1]), ["0x401000", "0x401111", "0x402222"], "{levels}");
    }
}

#[test]
fn a_crashed_kernel_is_read_by_the_page_tables_that_it_names() {
    let file = scratch("guest-crashed-kernel").join("vmlinux");
    fs::write(&file, kernel()).unwrap();
    let symbols = ["--symbols", file.to_str().unwrap()];
    let cpu = note_of_kernel(KERNEL + MOVED_BY + 0x10, KERNEL_STACK + 0x200, 0);
    let core = dump("crashed", &in_kernel(), &[cpu.clone(), vmcoreinfo(4)]);
    let of_kernel =
        [KERNEL + MOVED_BY + 0x10, KERNEL + MOVED_BY + 0x810].map(|pc| format!("{pc:#x}"));
    let [cpu_0] = &*cpus(&core, &symbols) else { panic!("one CPU") };
    assert_eq!(
        (pcs(cpu_0), &cpu_0["privilege"]),
        (of_kernel.iter().map(|pc| &**pc).collect(), &"kernel".into())
    );
    assert_eq!(pcs(&cpu_0["user"]), ["0x401000", "0x401111", "0x402222"], "{cpu_0:#}");
    assert_eq!(cpu_0["paging"], "4-level");
    // Tables of another shape, or elsewhere, have not the kernel.
    for other in [vmcoreinfo(5), note(b"VMCOREINFO", 0, b"SYMBOL(swapper_pg_dir)=zz\n")] {
        let core = dump("crashed-otherwise", &in_kernel(), &[cpu.clone(), other]);
        let [cpu_0] = &*cpus(&core, &symbols) else { panic!("one CPU") };
        assert_eq!((pcs(cpu_0).len(), &cpu_0["user"]), (1, &Value::Null), "{cpu_0:#}");
    }
}

#[test]
fn what_qemu_says_of_a_cpu_is_taken_before_what_a_note_of_a_thread_says() {
    let notes = [note_of_kernel(1, 2, 3), note_of_qemu(4), vmcoreinfo(4)];
    let core = dump("both-notes", &Machine::long(4), &notes);
    let [cpu] = &*cpus(&core, &[]) else { panic!("one CPU") };
    assert_eq!(pcs(cpu), ["0x401000", "0x401111", "0x402222"], "{cpu:#}");
}

#[test]
fn a_dump_whose_notes_are_cut_has_no_cpus_and_says_so() {
    let whole = note_of_qemu(4);
    // The note's own length is cut with it.
    let cut = |len: usize| note(b"QEMU", 0, &whole[20..20 + len]);
    let all = whole.len() - 20;
    for notes in [vec![cut(0)], vec![cut(all - 8)], vec![vmcoreinfo(4)]] {
        let core = dump("no-cpus", &Machine::long(4), &notes);
        let text = fails(["stack", "--core", core.to_str().unwrap()], 5);
        assert!(text.contains("guest-no-cpus/core"), "{text}");
    }
    assert_eq!(cpus(&dump("all-of-it", &Machine::long(4), &[cut(all)]), &[]).len(), 1);
}
