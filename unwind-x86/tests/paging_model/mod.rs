//! Page walks by the manual's drawings, one bit at a time, to compare with.
//!
//! [`check`] is a whole comparison over arbitrary bytes: the body of a fuzz
//! target as well as of a property test.

use std::sync::LazyLock;

use unwind_core::{Memory, ReadError, VirtAddr};
use unwind_x86::paging::{
    Access, AddressSpace, Fault, FlatMemory, Level, PagedMemory, PagingMode, PhysAddr,
};

/// What came of one comparison, for counting what was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reached {
    Page(PagingMode, u64),
    NotLinear,
    NotPresent(Level),
    Reserved(Level),
    Supervisor(Level),
    Table(Level),
}

/// The settings of a walk, apart from [`AddressSpace`].
#[derive(Clone, Copy, Debug)]
struct Settings {
    mode: PagingMode,
    root: u64,
    user: bool,
    width: u32,
    pse: bool,
    huge: bool,
    nx: bool,
}

/// An entry as the manual draws it, bit 63 or 31 on the left: `P` present, `U`
/// user, `X` no-execute, `a` a bit of the address, `h` one of its bits 32 to
/// 39, `0` reserved, `.` ignored, and `S` the bit that chooses between a table
/// and a page.
struct Drawing {
    level: Level,
    shift: u32,
    table: &'static str,
    page: Option<&'static str>,
}

const TABLE_32: &str = "aaaaaaaaaaaaaaaaaaaa .... S ....U.P";
const PT_32: &str = "aaaaaaaaaaaaaaaaaaaa .... . ....U.P";
const LARGE_32: &str = "aaaaaaaaaa 0 hhhhhhhh . .... S ....U.P";

const TWO_LEVEL: &[Drawing] = &[
    Drawing { level: Level::Pd, shift: 22, table: TABLE_32, page: Some(LARGE_32) },
    Drawing { level: Level::Pt, shift: 12, table: "", page: Some(PT_32) },
];

const PDPT_PAE: &str = "000000000000 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ... 0000 .. 00P";
const TABLE_PAE: &str = "X00000000000 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa .... S ....U.P";
const LARGE_PAE: &str = "X00000000000 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 00000000 . .... S ....U.P";
const PT_PAE: &str = "X00000000000 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa .... . ....U.P";

const PAE: &[Drawing] = &[
    Drawing { level: Level::Pdpt, shift: 30, table: PDPT_PAE, page: None },
    Drawing { level: Level::Pd, shift: 21, table: TABLE_PAE, page: Some(LARGE_PAE) },
    Drawing { level: Level::Pt, shift: 12, table: "", page: Some(PT_PAE) },
];

const ROOT_64: &str = "X........... aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa .... 0 ....U.P";
const TABLE_64: &str = "X........... aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa .... S ....U.P";
const HUGE_64: &str = "X........... aaaaaaaaaaaaaaaaaaaaaa 00000000000000000 . .... S ....U.P";
const LARGE_64: &str = "X........... aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 00000000 . .... S ....U.P";
const PT_64: &str = "X........... aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa .... . ....U.P";

const FIVE_LEVEL: &[Drawing] = &[
    Drawing { level: Level::Pml5, shift: 48, table: ROOT_64, page: None },
    Drawing { level: Level::Pml4, shift: 39, table: ROOT_64, page: None },
    Drawing { level: Level::Pdpt, shift: 30, table: TABLE_64, page: Some(HUGE_64) },
    Drawing { level: Level::Pd, shift: 21, table: TABLE_64, page: Some(LARGE_64) },
    Drawing { level: Level::Pt, shift: 12, table: "", page: Some(PT_64) },
];

/// What a drawing says about a value.
#[derive(Default)]
struct Fields {
    present: bool,
    user: Option<bool>,
    chooses_page: bool,
    addr: u64,
    reserved: u64,
}

fn read_drawing(drawing: &str, value: u64, settings: &Settings) -> Fields {
    let mut fields = Fields::default();
    let mut bits = 0;
    for (sign, bit) in drawing.bytes().rev().filter(|sign| *sign != b' ').zip(0_u32..) {
        bits += 1;
        if value >> bit & 1 == 0 {
            if sign == b'U' {
                fields.user = Some(false);
            }
            continue;
        }
        let mask = 1 << bit;
        match sign {
            b'P' => fields.present = true,
            b'U' => fields.user = Some(true),
            b'S' => fields.chooses_page = true,
            b'X' if settings.nx => {}
            b'a' if bit < settings.width => fields.addr |= mask,
            b'h' if bit + 19 < settings.width => fields.addr |= mask << 19,
            b'X' | b'a' | b'h' | b'0' => fields.reserved |= mask,
            b'.' => {}
            other => panic!("{} in a drawing", char::from(other)),
        }
    }
    assert!(matches!(bits, 0 | 32 | 64), "{drawing}");
    fields
}

impl Settings {
    fn drawings(&self) -> &'static [Drawing] {
        match self.mode {
            PagingMode::Off => &[],
            PagingMode::TwoLevel => TWO_LEVEL,
            PagingMode::Pae => PAE,
            PagingMode::FourLevel => &FIVE_LEVEL[1..],
            PagingMode::FiveLevel => FIVE_LEVEL,
        }
    }

    fn entry_len(&self) -> usize {
        if self.mode == PagingMode::TwoLevel { 4 } else { 8 }
    }

    fn has(&self, addr: u64) -> bool {
        let sign = |bits: u32| {
            let high = addr >> (bits - 1);
            high == 0 || high == u64::MAX >> (bits - 1)
        };
        match self.mode {
            PagingMode::FourLevel => sign(48),
            PagingMode::FiveLevel => sign(57),
            _ => addr <= u64::from(u32::MAX),
        }
    }

    /// Where the walk's next entry is.
    fn entry_at(&self, table: u64, addr: u64, drawing: &Drawing) -> u64 {
        let count = if self.entry_len() == 4 { 1024 } else { 512 };
        table + (addr >> drawing.shift) % count * self.entry_len() as u64
    }

    /// One entry: `Ok(Ok(page))`, `Ok(Err(table))`, or the fault.
    fn entry(
        &self,
        value: u64,
        at: u64,
        drawing: &Drawing,
    ) -> Result<Result<(u64, u64), u64>, Fault> {
        let (level, at) = (drawing.level, PhysAddr::new(at));
        let size = 1 << drawing.shift;
        let as_table = read_drawing(drawing.table, value, self);
        let ignores_choice = self.mode == PagingMode::TwoLevel && !self.pse;
        let is_page = drawing.table.is_empty()
            || (drawing.page.is_some() && as_table.chooses_page && !ignores_choice);
        let mut fields = match drawing.page {
            Some(page) if is_page => read_drawing(page, value, self),
            _ => as_table,
        };
        if size == 1 << 30 && is_page && !self.huge {
            fields.reserved |= 0x80;
        }
        if !fields.present {
            return Err(Fault::NotPresent { level, at });
        }
        if fields.reserved != 0 {
            return Err(Fault::Reserved { level, at, bits: fields.reserved });
        }
        if self.user && fields.user == Some(false) {
            return Err(Fault::Supervisor { level, at });
        }
        Ok(if is_page { Ok((fields.addr, size)) } else { Err(fields.addr) })
    }

    fn walk(&self, ram: &[u8], addr: u64) -> Result<(u64, u64), Fault> {
        if !self.has(addr) {
            return Err(Fault::NotLinear(VirtAddr::new(addr)));
        }
        let mut table = self.root;
        for drawing in self.drawings() {
            let at = self.entry_at(table, addr, drawing);
            let Some(value) = load(ram, at, self.entry_len()) else {
                let (level, at) = (drawing.level, PhysAddr::new(at));
                return Err(Fault::Table { level, at, error: ReadError::Invalid });
            };
            match self.entry(value, at, drawing)? {
                Ok(page) => return Ok(page),
                Err(next) => table = next,
            }
        }
        Ok((0, 1 << 32))
    }
}

fn load(ram: &[u8], at: u64, len: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = ram.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Bytes that decide about a case; zeroes when they are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// An entry: mostly a sound one that leads to another page of `pages`,
    /// else with a few bits turned, else anything.
    fn entry(&mut self, has_rights: bool) -> u64 {
        let kind = self.byte();
        let page = u64::from(self.byte()) % (PAGES + 1);
        let sound = page << 12 | if has_rights { 0x27 } else { 0x01 };
        match kind {
            0..=0x7f => sound,
            0x80..=0x9f => (u64::from(self.byte()) << 30 | 0xa7) & !(0xff << 13),
            0xa0..=0xbf => sound ^ 1 << (self.byte() % 64),
            0xc0..=0xdf => sound ^ 1 << (self.byte() % 64) ^ 1 << (self.byte() % 64),
            0xe0..=0xef => self.word() | 1,
            0xf0.. => self.word(),
        }
    }
}

const PAGES: u64 = 8;

/// Memory without entries, whose bytes are all different enough.
static BLANK: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..PAGES << 12).map(|at| (at ^ at >> 8) as u8 & !1).collect());

/// Lays out tables, an address and a way to read them by `data`, and compares
/// every answer of the crate with the model's. Returns what was reached.
///
/// # Panics
///
/// If an answer differs.
pub(crate) fn check(data: &[u8]) -> Reached {
    let mut choices = Choices(data);
    let mode = match choices.byte() % 16 {
        0 => PagingMode::Off,
        1..=4 => PagingMode::TwoLevel,
        5..=8 => PagingMode::Pae,
        9..=12 => PagingMode::FourLevel,
        _ => PagingMode::FiveLevel,
    };
    let flags = choices.byte();
    let root = (u64::from(choices.byte()) % PAGES) << 12;
    let width = 32 + u32::from(choices.byte()) % 21;
    let settings = Settings {
        mode,
        root: if flags & 0x80 != 0 && flags & 0x40 != 0 { root + (PAGES << 12) } else { root },
        user: flags & 1 == 0,
        width,
        pse: flags & 2 == 0,
        huge: flags & 4 == 0,
        nx: flags & 8 == 0,
    };
    let space = AddressSpace::new(mode, settings.root)
        .access(if settings.user { Access::User } else { Access::Supervisor })
        .phys_bits(width)
        .large_pages(settings.pse)
        .huge_pages(settings.huge)
        .no_execute(settings.nx);

    let addr = choices.word();
    let addr = match flags >> 4 & 3 {
        0 if matches!(mode, PagingMode::FourLevel | PagingMode::FiveLevel) => addr >> 18,
        0 => addr >> 32,
        // Just before the end of a page, or of the address space.
        1 => addr >> 40 | 0xffc,
        2 => u64::MAX - u64::from(choices.byte()),
        _ => addr,
    };
    let ram = tables(&settings, addr, &mut choices);
    // Mostly a few words, sometimes more than a page.
    let len = usize::from(choices.byte());
    compare(&settings, space, &ram, addr, if len < 0xfe { len % 24 } else { 4200 });
    reached(&settings, settings.walk(&ram, addr))
}

/// Memory with an entry of the choices' wherever the walk of `addr` and that of the next page look for one.
fn tables(settings: &Settings, addr: u64, choices: &mut Choices<'_>) -> Vec<u8> {
    let mut ram = BLANK.clone();
    for addr in [addr.wrapping_add(0x1000), addr] {
        let mut table = settings.root;
        for drawing in settings.drawings() {
            let at = settings.entry_at(table, addr, drawing);
            let entry = choices.entry(drawing.table != PDPT_PAE);
            let Some(place) = usize::try_from(at)
                .ok()
                .and_then(|at| ram.get_mut(at..at.checked_add(settings.entry_len())?))
            else {
                break;
            };
            let len = place.len();
            place.copy_from_slice(&entry.to_le_bytes()[..len]);
            let value = load(&ram, at, settings.entry_len()).unwrap();
            match settings.entry(value, at, drawing) {
                Ok(Err(next)) => table = next,
                _ => break,
            }
        }
    }
    ram
}

fn compare(settings: &Settings, space: AddressSpace, ram: &[u8], addr: u64, len: usize) {
    let mut phys = FlatMemory::new(ram);
    for addr in [addr, addr.wrapping_add(0x1000)] {
        let found = space.translate(&mut phys, VirtAddr::new(addr));
        let found = found.map(|page| (page.start().get(), page.size()));
        assert_eq!(found, settings.walk(ram, addr), "{addr:#x} in {settings:x?}");
    }
    // A read is what its bytes are, one by one.
    let bytes: Result<Vec<u8>, ReadError> = (0..len)
        .map(|offset| {
            let addr = addr.checked_add(offset as u64).ok_or(ReadError::Invalid)?;
            let (start, size) = settings.walk(ram, addr).map_err(Fault::read_error)?;
            let at = start | addr & (size - 1);
            load(ram, at, 1).map(|byte| byte as u8).ok_or(ReadError::Invalid)
        })
        .collect();
    fn read<const TLB: usize>(
        memory: &mut PagedMemory<FlatMemory<'_>, TLB>,
        addr: u64,
        len: usize,
    ) -> Result<Vec<u8>, ReadError> {
        let mut buf = vec![0; len];
        memory.read(VirtAddr::new(addr), &mut buf).map(|()| buf)
    }
    let mut without = PagedMemory::<_, 0>::with_tlb(phys, space);
    let mut small = PagedMemory::<_, 1>::with_tlb(phys, space);
    let mut usual = PagedMemory::new(phys, space);
    for _ in 0..2 {
        assert_eq!(read(&mut without, addr, len), bytes, "{addr:#x} in {settings:x?}");
        assert_eq!(read(&mut small, addr, len), bytes, "{addr:#x} in {settings:x?}");
        assert_eq!(read(&mut usual, addr, len), bytes, "{addr:#x} in {settings:x?}");
    }
}

fn reached(settings: &Settings, walk: Result<(u64, u64), Fault>) -> Reached {
    match walk {
        Ok((_, size)) => Reached::Page(settings.mode, size),
        Err(Fault::NotLinear(_)) => Reached::NotLinear,
        Err(Fault::NotPresent { level, .. }) => Reached::NotPresent(level),
        Err(Fault::Reserved { level, .. }) => Reached::Reserved(level),
        Err(Fault::Supervisor { level, .. }) => Reached::Supervisor(level),
        Err(Fault::Table { level, .. }) => Reached::Table(level),
        Err(other) => panic!("{other}"),
    }
}
