//! Prints what a Linux guest has loaded, found in the file of its memory: its symbols as `/proc/kallsyms` has them, its
//! modules, and on standard error the task of a CPU.
//!
//! `guest_linux RAM CR3 CR4 GDT`, of a guest whose memory is in one piece, the registers in hexadecimal.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::{env, error, io::Write};

use unwind_core::ReadError;
use unwind_guest::VcpuRegisters;
use unwind_guest::linux::{GuestLinux, cpu_number};
use unwind_guest::paging::{PagedMemory, PhysAddr, PhysicalMemory};

struct Ram(File);

impl PhysicalMemory for Ram {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.0.read_exact_at(buf, addr.get()).map_err(|_| ReadError::Invalid)
    }
}

fn main() -> Result<(), Box<dyn error::Error>> {
    let mut arguments = env::args().skip(1);
    let ram = Ram(File::open(arguments.next().ok_or("no file")?)?);
    let mut number = || {
        u64::from_str_radix(&arguments.next().ok_or("no register")?, 16)
            .map_err(Box::<dyn error::Error>::from)
    };
    let (cr3, cr4, gdt) = (number()?, number()?, number()?);
    let cr3 = cr3 & !(1 << 12);
    let vcpu =
        VcpuRegisters { cr0: 0x8005_0033, cr3, cr4, efer: 0xd01, ..VcpuRegisters::default() };
    let mut memory = PagedMemory::<_, 64>::with_tlb(ram, vcpu.address_space());
    let begun = std::time::Instant::now();
    let linux = GuestLinux::find(&mut memory)?;
    eprintln!("found in {:?}: {:x?}", begun.elapsed(), linux.image());
    let mut out = std::io::BufWriter::new(std::io::stdout());
    for index in 0..linux.symbols().len() {
        if let Some(symbol) = linux.symbols().get(index, &mut memory)? {
            let name = symbol.name.as_bytes().escape_ascii();
            writeln!(out, "{:016x} {} {name}", symbol.start.get(), char::from(symbol.kind))?;
        }
    }
    if let Some(mut modules) = linux.modules() {
        while let Some(module) = modules.next(&mut memory)? {
            let orc = module.orc_table().map_or(0, |table| table.len());
            eprintln!(
                "module {} {:x?}, {orc} entries",
                module.name().escape_ascii(),
                module.text()
            );
        }
    }
    eprintln!("ORC entries: {:?}", linux.orc_table().map(|table| table.len()));
    let cpu = cpu_number(gdt, &mut memory)?;
    let task = linux.task(cpu, &mut memory)?;
    eprintln!("CPU {cpu}: {task:?}");
    Ok(())
}
