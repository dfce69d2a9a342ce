//! The feature section that repeats the attrs and gives their names.

use unwind_perf::record::Endian;

use crate::recording::events::make_whole;

/// A description of an event: where its attr is in the section, its ids and
/// its name.
pub(super) struct Description<'a> {
    attr_at: usize,
    attr_len: usize,
    /// The first of its ids; the others are copies of the same event.
    pub(super) id: Option<u64>,
    pub(super) name: &'a [u8],
}

/// Walks the descriptions in a section. It ends where the section does not
/// hold what it says.
pub(super) struct Descriptions<'a> {
    section: &'a [u8],
    at: usize,
    endian: Endian,
    left: u32,
    attr_len: usize,
}

impl<'a> Descriptions<'a> {
    pub(super) fn new(section: &'a [u8], endian: Endian) -> Self {
        let mut descriptions = Self { section, at: 0, endian, left: 0, attr_len: 0 };
        let head = descriptions.u32().zip(descriptions.u32());
        if let Some((count, attr_len)) = head {
            descriptions.left = count;
            descriptions.attr_len = usize::try_from(attr_len).unwrap_or(usize::MAX);
        }
        descriptions
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let bytes = self.section.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.first_chunk().map(|&bytes| self.endian.u32(bytes))
    }

    fn description(&mut self) -> Option<Description<'a>> {
        self.left = self.left.checked_sub(1)?;
        let attr_at = self.at;
        self.take(self.attr_len)?;
        let ids = usize::try_from(self.u32()?).ok()?;
        // The text is padded with zeros.
        let text_len = usize::try_from(self.u32()?).ok()?;
        let name = self.take(text_len)?.split(|&byte| byte == 0).next().unwrap_or_default();
        let ids = self.take(ids.checked_mul(8)?)?;
        let id = ids.first_chunk().map(|&bytes| self.endian.u64(bytes));
        Some(Description { attr_at, attr_len: self.attr_len, id, name })
    }
}

impl<'a> Iterator for Descriptions<'a> {
    type Item = Description<'a>;

    fn next(&mut self) -> Option<Description<'a>> {
        let description = self.description();
        if description.is_none() {
            self.left = 0;
        }
        description
    }
}

/// A section with these events: their attrs, which are of one length, ids and names.
pub(crate) fn section<'e>(
    events: impl ExactSizeIterator<Item = (&'e [u8], &'e [u64], &'e [u8])>,
    attr_len: u32,
    endian: Endian,
) -> Vec<u8> {
    let count = |len: usize| endian.bytes_of_u32(u32::try_from(len).unwrap_or(u32::MAX));
    let mut section = count(events.len()).to_vec();
    section.extend(endian.bytes_of_u32(attr_len));
    for (attr, ids, name) in events {
        section.extend(attr);
        section.extend(count(ids.len()));
        // The text ends with a zero, and is padded.
        let len = name.len().saturating_add(1).next_multiple_of(TEXT_UNIT);
        section.extend(count(len));
        section.extend(name);
        section.extend(std::iter::repeat_n(0, len.saturating_sub(name.len())));
        section.extend(ids.iter().flat_map(|&id| endian.bytes_of_u64(id)));
    }
    section
}

/// What the length of a text is a multiple of.
const TEXT_UNIT: usize = 64;

/// Makes all attrs in a section those of events with whole call chains.
pub(crate) fn make_all_whole(section: &mut [u8], endian: Endian, is_joined: bool) {
    let attrs: Vec<(usize, usize)> =
        Descriptions::new(section, endian).map(|event| (event.attr_at, event.attr_len)).collect();
    for (at, len) in attrs {
        if let Some(attr) = at.checked_add(len).and_then(|end| section.get_mut(at..end)) {
            make_whole(attr, endian, is_joined);
        }
    }
}
