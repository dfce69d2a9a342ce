//! `perf_event_attr`, from bytes and back.

use super::error::AttrError;
use super::kernel::KernelVersion;
use crate::record::{
    Attr, AttrFlags, BranchSampleType, Endian, ReadFormat, SampleType, flags_from_word,
};

/// A `perf_event_attr`: what is to be counted, and what samples are to have.
///
/// Fields have the names and the units of Linux's header. Bytes that the program
/// left out are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventAttr {
    /// The kind of event (`PERF_TYPE_…`): 0 hardware, 1 software, and so on.
    pub kind: u32,
    /// How many bytes the program gave.
    pub size: u32,
    /// Which event of that kind.
    pub config: u64,
    /// Events between samples, or hertz with [`AttrFlags::FREQ`]. Zero only counts.
    pub sample_period: u64,
    /// The fields of a sample.
    pub sample_type: SampleType,
    /// The shape of counter values.
    pub read_format: ReadFormat,
    /// The switches; bits 15 and 16 are `precise_ip`.
    pub flags: AttrFlags,
    /// Samples, or bytes, until a reader is woken.
    pub wakeup: u32,
    /// The kind of a breakpoint.
    pub bp_type: u32,
    /// The address of a breakpoint, or more of the event.
    pub config1: u64,
    /// The length of a breakpoint, or more of the event.
    pub config2: u64,
    /// Which branches samples have.
    pub branch_sample_type: BranchSampleType,
    /// Which user registers samples have, a bit each.
    pub sample_regs_user: u64,
    /// How many bytes of the user stack samples have.
    pub sample_stack_user: u32,
    /// Whose time samples have, with the flag `use_clockid`.
    pub clockid: i32,
    /// Which registers of the interrupted code samples have, a bit each.
    pub sample_regs_intr: u64,
    /// Bytes of the AUX area until a reader is woken.
    pub aux_watermark: u32,
    /// The longest call chain, in addresses; zero for the system's limit.
    pub sample_max_stack: u16,
    reserved_2: u16,
    /// How many bytes of the AUX area samples have.
    pub aux_sample_size: u32,
    /// Whether the event pauses or resumes an AUX trace
    /// ([`AuxAction`](crate::aux_trace::AuxAction)).
    pub aux_action: u32,
    /// What a signal of the event carries.
    pub sig_data: u64,
    /// More of the event.
    pub config3: u64,
    /// More of the event.
    pub config4: u64,
}

/// The bytes of the first version.
const FIRST_SIZE: u32 = 64;
/// The most that Linux looks at: a page.
const MAX_SIZE: u32 = 4096;

impl EventAttr {
    /// The bytes of the newest version.
    pub const SIZE: usize = 144;

    /// Decodes what a program gave, whose first bytes say how many there are.
    ///
    /// # Errors
    ///
    /// [`AttrError::Size`] if there are fewer bytes than the first version's, or fewer
    /// than they say, or more than a page; [`AttrError::NewerFields`] if a byte is set
    /// that `kernel` does not know. Linux writes [`KernelVersion::attr_size`] into the
    /// program's `size` then.
    pub fn decode(bytes: &[u8], endian: Endian, kernel: KernelVersion) -> Result<Self, AttrError> {
        let field = |at: usize| -> [u8; 4] {
            bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
        };
        let said = endian.u32(field(4));
        // The first programs left the field zero.
        let size = if said == 0 { FIRST_SIZE } else { said };
        let known = kernel.attr_size();
        if !(FIRST_SIZE..=MAX_SIZE).contains(&size) {
            return Err(AttrError::Size { size, known });
        }
        let len = usize::try_from(size).unwrap_or(usize::MAX);
        let Some(bytes) = bytes.get(..len) else { return Err(AttrError::Size { size, known }) };
        let (bytes, newer) = bytes
            .split_at_checked(usize::try_from(known).unwrap_or(usize::MAX))
            .unwrap_or((bytes, &[]));
        if newer.iter().any(|&byte| byte != 0) {
            return Err(AttrError::NewerFields { known });
        }
        let mut fields = Fields { bytes, endian };
        let mut attr = Self { kind: fields.u32(), ..Self::default() };
        fields.u32();
        attr.size = size;
        attr.config = fields.u64();
        attr.sample_period = fields.u64();
        attr.sample_type = SampleType::from_bits_retain(fields.u64());
        attr.read_format = ReadFormat::from_bits_retain(fields.u64());
        attr.flags = fields.flags();
        attr.wakeup = fields.u32();
        attr.bp_type = fields.u32();
        attr.config1 = fields.u64();
        attr.config2 = fields.u64();
        attr.branch_sample_type = BranchSampleType::from_bits_retain(fields.u64());
        attr.sample_regs_user = fields.u64();
        attr.sample_stack_user = fields.u32();
        attr.clockid = fields.i32();
        attr.sample_regs_intr = fields.u64();
        attr.aux_watermark = fields.u32();
        attr.sample_max_stack = fields.u16();
        attr.reserved_2 = fields.u16();
        attr.aux_sample_size = fields.u32();
        attr.aux_action = fields.u32();
        attr.sig_data = fields.u64();
        attr.config3 = fields.u64();
        attr.config4 = fields.u64();
        Ok(attr)
    }

    /// Writes the first [`size`](Self::size) bytes, of which those past the newest
    /// version are zero, and returns how many; `None` if `buf` is shorter, or `size` is
    /// less than the first version's.
    pub fn encode(&self, buf: &mut [u8], endian: Endian) -> Option<usize> {
        let len = usize::try_from(self.size).ok().filter(|_| self.size >= FIRST_SIZE)?;
        let buf = buf.get_mut(..len)?;
        buf.fill(0);
        let mut out = Writer { rest: buf, endian };
        out.u32(self.kind);
        out.u32(self.size);
        out.u64(self.config);
        out.u64(self.sample_period);
        out.u64(self.sample_type.bits());
        out.u64(self.read_format.bits());
        out.flags(self.flags);
        out.u32(self.wakeup);
        out.u32(self.bp_type);
        out.u64(self.config1);
        out.u64(self.config2);
        out.u64(self.branch_sample_type.bits());
        out.u64(self.sample_regs_user);
        out.u32(self.sample_stack_user);
        out.i32(self.clockid);
        out.u64(self.sample_regs_intr);
        out.u32(self.aux_watermark);
        out.u16(self.sample_max_stack);
        out.u16(self.reserved_2);
        out.u32(self.aux_sample_size);
        out.u32(self.aux_action);
        out.u64(self.sig_data);
        out.u64(self.config3);
        out.u64(self.config4);
        Some(len)
    }

    /// Whether bytes are set that no version has a meaning for.
    pub(super) const fn has_reserved_field(&self) -> bool {
        self.reserved_2 != 0
    }
}

/// Reads field after field; those past the end are zero.
struct Fields<'a> {
    bytes: &'a [u8],
    endian: Endian,
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (now, rest) = self.bytes.split_at(N.min(self.bytes.len()));
        field.iter_mut().zip(now).for_each(|(to, &from)| *to = from);
        self.bytes = rest;
        field
    }

    fn u16(&mut self) -> u16 {
        self.endian.u16(self.take())
    }

    fn u32(&mut self) -> u32 {
        self.endian.u32(self.take())
    }

    fn i32(&mut self) -> i32 {
        i32::from_ne_bytes(self.u32().to_ne_bytes())
    }

    fn u64(&mut self) -> u64 {
        self.endian.u64(self.take())
    }

    /// A word of bit fields, which compilers count from the highest bit on big-endian
    /// machines.
    fn flags(&mut self) -> AttrFlags {
        flags_from_word(self.u64(), self.endian)
    }
}

/// Writes field after field; those past the end are left out.
struct Writer<'a> {
    rest: &'a mut [u8],
    endian: Endian,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let rest = core::mem::take(&mut self.rest);
        let (now, rest) = rest.split_at_mut(bytes.len().min(rest.len()));
        now.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from);
        self.rest = rest;
    }

    fn u16(&mut self, value: u16) {
        match self.endian {
            Endian::Little => self.put(&value.to_le_bytes()),
            Endian::Big => self.put(&value.to_be_bytes()),
        }
    }

    fn u32(&mut self, value: u32) {
        match self.endian {
            Endian::Little => self.put(&value.to_le_bytes()),
            Endian::Big => self.put(&value.to_be_bytes()),
        }
    }

    fn i32(&mut self, value: i32) {
        match self.endian {
            Endian::Little => self.put(&value.to_le_bytes()),
            Endian::Big => self.put(&value.to_be_bytes()),
        }
    }

    fn u64(&mut self, value: u64) {
        match self.endian {
            Endian::Little => self.put(&value.to_le_bytes()),
            Endian::Big => self.put(&value.to_be_bytes()),
        }
    }

    fn flags(&mut self, flags: AttrFlags) {
        self.u64(Attr::flags_word(flags, self.endian));
    }
}
