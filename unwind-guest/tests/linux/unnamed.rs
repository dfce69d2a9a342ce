//! Kernels that do not name all that is looked for, as those of micro-VMs.

use unwind_guest::linux::LinuxRows;
use unwind_guest::orc::OrcKind;

use super::kernel::{END, EXCEPTIONS, HEADER};
use super::*;

/// Has a symbol another name, of the same length.
fn rename(image: &mut Image, name: &str) {
    let at = image.bytes.windows(name.len()).position(|bytes| bytes == name.as_bytes());
    image.bytes[at.unwrap()..][..name.len()].fill(b'?');
}

/// Puts code there.
fn put(image: &mut Image, addr: u64, code: &[u8]) {
    let at = usize::try_from(addr - START).unwrap();
    image.bytes[at..][..code.len()].copy_from_slice(code);
}

#[test]
fn a_label_that_is_called_as_the_images_end_is_not_its_end() {
    let mut image = Image::new(LAYOUTS[2]);
    rename(&mut image, "T_end");
    let linux = GuestLinux::find(&mut image).unwrap();
    assert!(linux.image().end > END, "{:x?}", linux.image());
}

#[test]
fn the_task_of_a_cpu_is_found_without_names_of_variables_by_the_area_of_the_cpu() {
    // endbr64; mov rax, gs:[a]: whole, or above the next instruction.
    let above = kernel::CURRENT.wrapping_sub(kernel::GETPID + 12).to_le_bytes();
    let whole = kernel::CURRENT.to_le_bytes();
    let whole = [b"\xf3\x0f\x1e\xfa\x65\x48\x8b\x04\x25", &whole[..4]].concat();
    let above = [b"\xf3\x0f\x1e\xfa\x65\x48\x8b\x05", &above[..4]].concat();
    for code in [whole, above] {
        let mut image = Image::new(LAYOUTS[2]);
        for name in ["current_task", "__per_cpu_offset", "modules"] {
            rename(&mut image, name);
        }
        put(&mut image, kernel::GETPID, &code);
        let linux = GuestLinux::find(&mut image).unwrap();
        assert_eq!(linux.task(1, &mut image), Ok(None));
        assert!(linux.modules().is_none());
        let area = VirtAddr::new(kernel::AREA);
        let task = linux.task_of_area(area, &mut image).unwrap().unwrap();
        assert_eq!((task.comm(), task.tid, task.pid), (&b"worker/1"[..], 42, 43));
    }
}

#[test]
fn pages_of_files_are_found_without_names_of_variables() {
    let below = kernel::PAGES.wrapping_sub(kernel::TO_PAGE + 7).to_le_bytes();
    let variable = [b"\x48\x2b\x05", &below[..4], b"\x48\xc1\xf8\x06\xc3"].concat();
    let constant = PAGE_ARRAY.wrapping_neg().to_le_bytes();
    let constant = [b"\x48\xba", &constant[..], b"\x48\x01\xd0\x48\xc1\xf8\x06\xc3"].concat();
    let large = [b"\x48\x2b\x05", &below[..4], b"\x48\xc1\xf8\x07\xc3"].concat();
    for (code, is_found) in [(variable, true), (constant, true), (large, false), (vec![], false)] {
        let mut image = Image::new(LAYOUTS[2]);
        rename(&mut image, "vmemmap_base");
        put(&mut image, kernel::TO_PAGE, &code);
        let linux = GuestLinux::find(&mut image).unwrap();
        let task = linux.task(1, &mut image).unwrap().unwrap();
        let page = linux.file_page(&task, VirtAddr::new(MAPPED), &mut image).unwrap();
        assert_eq!(page.map(|page| page.get() >> 12), is_found.then_some(0x42), "{code:x?}");
    }
}

#[test]
fn the_code_that_switches_tasks_is_told() {
    let mut image = Image::new(LAYOUTS[0]);
    let linux = GuestLinux::find(&mut image).unwrap();
    let is = [-1, 0, 15, 16].map(|offset| {
        linux.is_switching_at(VirtAddr::new(kernel::SWITCH.wrapping_add_signed(offset)))
    });
    assert_eq!(is, [false, true, true, false]);
    rename(&mut image, "__schedule");
    let linux = GuestLinux::find(&mut image).unwrap();
    assert!(!linux.is_switching_at(VirtAddr::new(kernel::SWITCH)));
    assert!(!linux.is_switching_at(VirtAddr::new(0)));
}

#[test]
fn an_orc_table_without_a_name_is_found_by_its_shape() {
    let before = [[8, 0, 0, 0, 5, 0], [0, 0, 0, 0, 5, 1]];
    let since = [[8, 0, 0, 0, 5, 2], [0, 0, 0, 0, 5, 11]];
    // Whose first entry looks like one more address, a mebibyte below it.
    let deep = [[0x80, 0x00, 0xf0, 0xff, 0x15, 2], [0, 0, 0, 0, 5, 11]];
    for (header, entries) in [(&[][..], before), (&HEADER, since), (&HEADER, deep), (&[], since)] {
        let mut image = Image::new(LAYOUTS[2]);
        image.bytes.resize(2 << 20, 0);
        // What has ascending addresses and no entries, as the places of locks have.
        let place = START + u64::try_from(image.bytes.len()).unwrap();
        for index in 0..2000 {
            let offset = (START + index * 5).wrapping_sub(place + index * 4).cast_signed();
            image.bytes.extend(i32::try_from(offset).unwrap().to_le_bytes());
        }
        image.add_orc(header, entries);
        let linux = GuestLinux::find(&mut image).unwrap();
        let table = linux.orc_table().unwrap();
        assert_eq!(table.len(), 1200, "{entries:x?}");
        for index in [0, 1, 3, 1199] {
            let (start, entry) = table.get(index, &mut image).unwrap().unwrap();
            assert_eq!(start.get(), START + u64::from(index) * 8);
            let kind = if index % 7 == 3 { OrcKind::Registers } else { OrcKind::Call };
            assert_eq!(entry.kind, kind, "{index}");
        }
        assert!(matches!(linux.rows(&[table]), Some(LinuxRows::Orc(_))));
    }
    // Entries of no layout are of no table.
    let mut image = Image::new(LAYOUTS[2]);
    image.add_orc(&HEADER, [[8, 0, 0, 0, 5, 0x72], [0; 6]]);
    let linux = GuestLinux::find(&mut image).unwrap();
    assert!(linux.orc_table().is_none() && linux.rows(&[]).is_none());
    assert!(image.reads < READS, "{}", image.reads);
}

#[test]
fn a_kernel_that_keeps_frame_pointers_is_told_by_the_code_of_its_exceptions() {
    // lea rbp, [rsp + 9], after it has saved all registers; without the mark; none.
    for (code, is_marked) in [
        (&b"\x90\x48\x8d\x6c\x24\x09\xc3"[..], true),
        (b"\x90\x48\x8d\x6c\x24\x08\xc3", false),
        (b"\x31\xed\xc3", false),
    ] {
        let mut image = Image::new(LAYOUTS[2]);
        put(&mut image, EXCEPTIONS, code);
        let linux = GuestLinux::find(&mut image).unwrap();
        let rows = linux.rows(&[]);
        assert_eq!(matches!(rows, Some(LinuxRows::FramePointers(_))), is_marked, "{rows:?}");
        assert_eq!(rows.is_some(), is_marked);
    }
}
