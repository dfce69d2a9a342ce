//! Where members of a kernel's structures are.

use unwind_core::{Memory, VirtAddr};

use crate::linux::error::LinuxError;
use crate::linux::window::Window;

/// The most bytes that the types, or the strings, of a kernel have; those of distributions have 5 MiB together.
pub const BTF_LIMIT: u32 = 1 << 25;

/// The types of a kernel in place (BTF), which it has for programs that trace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Btf {
    types: (u64, u32),
    strings: (u64, u32),
}

/// A member of a structure, by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'n> {
    /// The structure's name; empty of those without one, and with more than one member.
    pub structure: &'n str,
    /// The member's own.
    pub member: &'n str,
}

/// A type's fixed part, and one member's.
const TYPE_LEN: u32 = 12;
const MEMBER_LEN: u32 = 12;
const VALUE_LEN: u32 = 8;
const STRUCT: u32 = 4;
const ENUM: u32 = 6;

impl Btf {
    /// The types whose header is at `addr`.
    ///
    /// # Errors
    ///
    /// [`LinuxError`] if it cannot be read, or is none.
    pub fn open<M: Memory>(addr: VirtAddr, mem: &mut M) -> Result<Self, LinuxError> {
        let mut window = Window::new(mem);
        let start = addr.get();
        let mut word = |at: u64| window.u32(start.wrapping_add(at));
        let (first, header_len) = (word(0)?, word(4)?);
        let (type_at, type_len, string_at, string_len) =
            (word(8)?, word(12)?, word(16)?, word(20)?);
        let is_known = first == 0x0001_eb9f && header_len == 24;
        let is_sized = type_len.max(string_len) <= BTF_LIMIT && string_at >= type_len;
        if !is_known || type_at != 0 || !is_sized || string_at.abs_diff(type_len) > 8 {
            return Err(LinuxError::Malformed(addr));
        }
        let after = start.wrapping_add(header_len.into());
        Ok(Self {
            types: (after, type_len),
            strings: (after.wrapping_add(string_at.into()), string_len),
        })
    }

    /// How many bytes each of these members is from its structure's begin, in one pass, or the value that it has in its
    /// enumeration; `None` for those that there are not, or that are bits.
    ///
    /// # Errors
    ///
    /// [`LinuxError`] if the types cannot be read.
    pub fn offsets_of<const N: usize, M: Memory>(
        &self,
        members: [Member<'_>; N],
        mem: &mut M,
    ) -> Result<[Option<u32>; N], LinuxError> {
        let mut window = Window::new(mem);
        let names = self.names(members, &mut window)?;
        let mut found = [None; N];
        let (start, len) = self.types;
        let mut at = 0;
        while at < len {
            let place = start.wrapping_add(at.into());
            let (name, info) = (window.u32(place)?, window.u32(place.wrapping_add(4))?);
            let (kind, vlen) = (info >> 24 & 0x1f, info & 0xffff);
            let after = place.wrapping_add(TYPE_LEN.into());
            // One member alone is a type of its own, such as that of the tables' entries.
            let is_wrapper = name == 0 && vlen == 1;
            if matches!(kind, STRUCT | ENUM)
                && !is_wrapper
                && names.iter().any(|(structure, _)| *structure == Some(name))
            {
                let wanted = names.iter().zip(&mut found);
                let mut wanted = wanted.filter(|((structure, _), _)| *structure == Some(name));
                let members = (after, vlen);
                match kind {
                    STRUCT => find_members(&mut wanted, members, info >> 31 == 1, &mut window)?,
                    _ => find_values(&mut wanted, members, &mut window)?,
                }
            }
            let malformed = LinuxError::Malformed(VirtAddr::new(place));
            let extra = extra_len(kind, vlen).ok_or(malformed)?;
            at = at.saturating_add(TYPE_LEN).saturating_add(extra);
        }
        Ok(found)
    }

    /// Whether these are the types of a kernel: with that of its tasks.
    pub(crate) fn is_of_kernel<M: Memory>(&self, mem: &mut M) -> bool {
        let pid = Member { structure: "task_struct", member: "pid" };
        self.offsets_of([pid], mem).is_ok_and(|[pid]| pid.is_some())
    }

    /// Where the names are among the strings, of which each is there once.
    fn names<const N: usize, M: Memory>(
        &self,
        members: [Member<'_>; N],
        window: &mut Window<'_, M>,
    ) -> Result<[Names; N], LinuxError> {
        // What has no name has the empty one, which is the first string.
        let mut found = members.map(|member| (member.structure.is_empty().then_some(0), 0));
        let (start, len) = self.strings;
        let mut text = [0; 32];
        let (mut text_start, mut text_len) = (0, 0_usize);
        let mut at = 0_u32;
        while at < len {
            let left = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX);
            for byte in window.block_from(start.wrapping_add(at.into()))?.iter().take(left) {
                at = at.saturating_add(1);
                if *byte != 0 {
                    if let Some(slot) = text.get_mut(text_len) {
                        *slot = *byte;
                    }
                    text_len = text_len.saturating_add(1);
                    continue;
                }
                // A longer one is none of the names.
                if let Some(text) = text.get(..text_len).filter(|text| !text.is_empty()) {
                    take_name(text, text_start, &mut found, &members);
                }
                (text_start, text_len) = (at, 0);
            }
        }
        Ok(found)
    }
}

/// Where the names of a structure, if it is there, and of a member are; that of a member is zero if it is not.
type Names = (Option<u32>, u32);

/// Takes note of a string for those that it names.
fn take_name(text: &[u8], at: u32, found: &mut [Names], members: &[Member<'_>]) {
    for ((structure, member), wanted) in found.iter_mut().zip(members) {
        if wanted.structure.as_bytes() == text {
            *structure = Some(at);
        }
        if wanted.member.as_bytes() == text {
            *member = at;
        }
    }
}

/// A member that is looked for: its names, and where it is.
type Wanted<'w> = (&'w Names, &'w mut Option<u32>);

/// Looks for members in a structure.
fn find_members<'w, M: Memory>(
    wanted: &mut dyn Iterator<Item = Wanted<'w>>,
    (start, count): (u64, u32),
    has_bits: bool,
    window: &mut Window<'_, M>,
) -> Result<(), LinuxError> {
    for ((_, member), slot) in wanted {
        if slot.is_some() || *member == 0 {
            continue;
        }
        for index in 0..count {
            let place = start.wrapping_add(u64::from(index).wrapping_mul(MEMBER_LEN.into()));
            if window.u32(place)? != *member {
                continue;
            }
            let offset = window.u32(place.wrapping_add(8))?;
            // The upper byte is how many bits it has.
            let (size, bits) =
                if has_bits { (offset >> 24, offset & 0x00ff_ffff) } else { (0, offset) };
            if size == 0 && bits % 8 == 0 {
                *slot = Some(bits / 8);
            }
            break;
        }
    }
    Ok(())
}

/// Looks for values in an enumeration.
fn find_values<'w, M: Memory>(
    wanted: &mut dyn Iterator<Item = Wanted<'w>>,
    (start, count): (u64, u32),
    window: &mut Window<'_, M>,
) -> Result<(), LinuxError> {
    for ((_, name), slot) in wanted.filter(|((_, name), slot)| slot.is_none() && *name != 0) {
        for index in 0..count {
            let place = start.wrapping_add(u64::from(index).wrapping_mul(VALUE_LEN.into()));
            if window.u32(place)? == *name {
                *slot = Some(window.u32(place.wrapping_add(4))?);
                break;
            }
        }
    }
    Ok(())
}

/// How many bytes follow a type's fixed part; `None` of an unknown kind.
const fn extra_len(kind: u32, vlen: u32) -> Option<u32> {
    Some(match kind {
        // Pointers, forward declarations, other names, qualifiers, functions, floating point.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, tags of declarations.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections, enumerations of 64 bits.
        4 | 5 | 15 | 19 => vlen.saturating_mul(MEMBER_LEN),
        // Enumerations, parameters.
        6 | 13 => vlen.saturating_mul(VALUE_LEN),
        _ => return None,
    })
}
