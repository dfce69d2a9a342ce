//! The units of DWARF that have code at given addresses. A file may have thousands of units, and
//! an index of all of them takes far longer than what a few frames need.

use std::collections::BTreeSet;

use gimli::{DebugAranges, DebugInfo, EndianSlice, RunTimeEndian, UnitSectionOffset};

use crate::lines::sections::Bytes;

/// Units that are wanted, and the addresses that they have.
#[derive(Debug, Default)]
pub(super) struct UnitSelection {
    /// Where they begin in `.debug_info`.
    units: BTreeSet<usize>,
    addrs: BTreeSet<u64>,
}

impl UnitSelection {
    /// Those to which `.debug_aranges` gives some of the addresses; none if that is damaged.
    pub(super) fn new(aranges: &DebugAranges<Bytes<'_>>, addrs: &[u64]) -> Self {
        let asked: BTreeSet<u64> = addrs.iter().copied().collect();
        Self::find(aranges, &asked).unwrap_or_default()
    }

    fn find(aranges: &DebugAranges<Bytes<'_>>, asked: &BTreeSet<u64>) -> gimli::Result<Self> {
        let mut selection = Self::default();
        let mut headers = aranges.headers();
        while let Some(header) = headers.next()? {
            let mut entries = header.entries();
            while let Some(entry) = entries.next()? {
                let range = entry.range();
                if range.begin >= range.end {
                    continue;
                }
                for &addr in asked.range(range.begin..range.end) {
                    selection.addrs.insert(addr);
                    selection.units.insert(header.debug_info_offset().0);
                }
            }
        }
        Ok(selection)
    }

    /// Whether a wanted unit has this address.
    pub(super) fn has(&self, addr: u64) -> bool {
        self.addrs.contains(&addr)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Makes `.debug_info` pass over all other units: one unit of types, which have no code, is
    /// written over each row of them. What refers to them is an error then. `None` if the
    /// section is damaged, or too small for that.
    pub(super) fn pass_over_others(&self, info: &mut [u8], endian: RunTimeEndian) -> Option<()> {
        let mut rows: Vec<(usize, usize)> = Vec::new();
        let mut units = DebugInfo::from(EndianSlice::new(&*info, endian)).units();
        while let Some(header) = units.next().ok()? {
            let UnitSectionOffset(start) = header.offset();
            if self.units.contains(&start) {
                continue;
            }
            let end = start.checked_add(header.length_including_self())?;
            match rows.last_mut() {
                Some((_, last)) if *last == start => *last = end,
                _ => rows.push((start, end)),
            }
        }
        for (start, end) in rows {
            let row = info.get_mut(start..end)?;
            let Some(header) = row.len().checked_sub(4).and_then(|len| type_unit(len, endian))
            else {
                continue;
            };
            // One that is shorter than that is read as it is.
            if let Some(first) = row.first_chunk_mut() {
                *first = header;
            }
        }
        Some(())
    }
}

/// The header of a unit of types with this many bytes after its length (DWARF 5, section
/// 7.5.1.3); `None` if 32 bits do not hold that number.
fn type_unit(len: usize, endian: RunTimeEndian) -> Option<[u8; 24]> {
    /// From here on lengths stand for something else.
    const RESERVED: u32 = 0xffff_fff0;
    const DW_UT_TYPE: u8 = 2;
    let len = u32::try_from(len).ok().filter(|&len| len < RESERVED)?;
    let (len, version) = match endian {
        RunTimeEndian::Little => (len.to_le_bytes(), 5_u16.to_le_bytes()),
        RunTimeEndian::Big => (len.to_be_bytes(), 5_u16.to_be_bytes()),
    };
    let mut header = [0; 24];
    let fields = len.into_iter().chain(version).chain([DW_UT_TYPE, 8]);
    for (to, byte) in header.iter_mut().zip(fields) {
        *to = byte;
    }
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LE: RunTimeEndian = RunTimeEndian::Little;
    /// How long each unit is.
    const UNIT: usize = 40;

    /// Four units of DWARF 4.
    fn four_units() -> Vec<u8> {
        let mut unit = [0_u8; UNIT];
        // Its length without this field, version, offset of abbreviations, size of an address.
        unit[..4].copy_from_slice(&36_u32.to_le_bytes());
        (unit[4], unit[10]) = (4, 8);
        unit.repeat(4)
    }

    /// A set of address ranges for each unit from the third on: 0x100 from 0x2000, and from 0x3000.
    fn aranges() -> DebugAranges<Bytes<'static>> {
        let mut bytes = Vec::new();
        for (start, unit) in [(0x2000_u64, 80_u32), (0x3000, 120)] {
            // Length, version, offset of the unit, size of an address and of a segment, padding.
            bytes.extend(44_u32.to_le_bytes());
            bytes.extend(2_u16.to_le_bytes());
            bytes.extend(unit.to_le_bytes());
            bytes.extend([8, 0, 0, 0, 0, 0]);
            for word in [start, 0x100, 0, 0] {
                bytes.extend(word.to_le_bytes());
            }
        }
        DebugAranges::from(EndianSlice::new(&*bytes.leak(), LE))
    }

    /// Where each unit begins, and whether it may have code.
    fn units(info: &[u8]) -> Vec<(usize, bool)> {
        let mut found = Vec::new();
        let mut units = DebugInfo::from(EndianSlice::new(info, LE)).units();
        while let Some(header) = units.next().unwrap() {
            let is_compiled = matches!(header.type_(), gimli::UnitType::Compilation);
            found.push((header.offset().0, is_compiled));
        }
        found
    }

    #[test]
    fn l9_units_that_no_address_is_in_are_passed_over() {
        let selection = UnitSelection::new(&aranges(), &[0x2000, 0x20ff, 0x2100, 0x500]);
        let has = [0x2000, 0x20ff, 0x2100, 0x500].map(|addr| selection.has(addr));
        assert_eq!((has, selection.is_empty()), ([true, true, false, false], false));
        let mut info = four_units();
        selection.pass_over_others(&mut info, LE).unwrap();
        assert_eq!(units(&info), [(0, false), (2 * UNIT, true), (3 * UNIT, false)]);
        // What is wanted is as it was.
        assert_eq!(info[2 * UNIT..3 * UNIT], four_units()[2 * UNIT..3 * UNIT]);
        assert!(UnitSelection::new(&aranges(), &[0x500]).is_empty());
    }

    #[test]
    fn l9_damage_selects_no_units() {
        let cut = DebugAranges::from(EndianSlice::new(&[44, 0, 0, 0, 2], LE));
        assert!(UnitSelection::new(&cut, &[0x2000]).is_empty());
        let mut info = four_units();
        info[UNIT] = 0xff;
        let selection = UnitSelection::new(&aranges(), &[0x2000]);
        assert_eq!(selection.pass_over_others(&mut info, LE), None);
    }
}
