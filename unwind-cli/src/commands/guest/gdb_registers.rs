//! Which registers a stub for gdb tells, and where each is.

use std::collections::HashMap;

/// How many registers a description may have.
const REGISTERS: usize = 1 << 10;

/// Where each register is among the bytes of all, as descriptions of a target say it: one after the other.
#[derive(Debug, Default)]
pub(crate) struct RegisterLayout {
    /// The first byte, and how many there are.
    places: HashMap<String, (usize, usize)>,
    end: usize,
}

impl RegisterLayout {
    /// Takes the registers of a document. Returns the names of those that it includes.
    pub(crate) fn add(&mut self, text: &str) -> Vec<String> {
        let mut included = Vec::new();
        for element in without_comments(text).split('<').skip(1) {
            let (element, _) = element.split_once('>').unwrap_or((element, ""));
            if element.starts_with("xi:include ") {
                included.extend(attribute(element, "href").map(str::to_owned));
            } else if element.starts_with("reg ") {
                self.add_register(element);
            }
        }
        included
    }

    fn add_register(&mut self, element: &str) {
        let bits = attribute(element, "bitsize").and_then(|bits| bits.parse::<usize>().ok());
        let Some((name, bits)) = attribute(element, "name").zip(bits) else { return };
        if bits > 1 << 16 || self.places.len() >= REGISTERS {
            return;
        }
        let len = bits.div_ceil(8);
        self.places.insert(name.to_owned(), (self.end, len));
        self.end = self.end.saturating_add(len);
    }

    /// The value of a register of at most 64 bits among the bytes of all.
    pub(crate) fn value(&self, name: &str, bytes: &[u8]) -> Option<u64> {
        let (at, len) = *self.places.get(name)?;
        let there = bytes.get(at..)?.get(..len)?;
        let mut word = [0; 8];
        word.get_mut(..len)?.copy_from_slice(there);
        Some(u64::from_le_bytes(word))
    }
}

/// A document without comments: QEMU's have registers in them.
fn without_comments(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, comment)) = rest.split_once("<!--") {
        plain.push_str(before);
        rest = comment.split_once("-->").map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain
}

/// An attribute of an element.
fn attribute<'e>(element: &'e str, name: &str) -> Option<&'e str> {
    let start = format!(" {name}=\"");
    // A name may begin on a line of its own.
    let (_, rest) = element.split_once(&start)?;
    rest.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_follow_each_other_in_all_documents() {
        let mut layout = RegisterLayout::default();
        let target = "<?xml version=\"1.0\"?><target><xi:include href=\"core.xml\"/></target>";
        assert_eq!(layout.add(target), ["core.xml"]);
        let core = "<feature name=\"org.gnu.gdb.i386.core\">\n<flags id=\"f\" size=\"4\"/>\n\
                    <reg name=\"rax\" bitsize=\"64\" type=\"int64\"/>\n\
                    <reg name=\"eflags\" bitsize=\"32\" type=\"f\"/>\n<!--reg name=\"cs_base\" bitsize=\"64\"/>\n\
                    <reg name=\"ss_base\" bitsize=\"64\"/-->\n\
                    <reg name=\"st0\" bitsize=\"80\"/><reg name=\"cr3\" bitsize=\"64\"/></feature>";
        assert!(layout.add(core).is_empty());
        let bytes: Vec<u8> = (0..30).collect();
        assert_eq!(layout.value("rax", &bytes), Some(0x0706_0504_0302_0100));
        assert_eq!(layout.value("eflags", &bytes), Some(0x0b0a_0908));
        assert_eq!(layout.value("cr3", &bytes), Some(0x1d1c_1b1a_1918_1716));
        assert_eq!(layout.value("st0", &bytes), None, "it is wider");
        assert_eq!(layout.value("cr3", &bytes[..29]), None, "it is cut");
        assert_eq!(layout.value("cr4", &bytes), None);
    }

    #[test]
    fn a_register_without_a_size_or_of_any_is_none() {
        let mut layout = RegisterLayout::default();
        layout.add(
            "<reg name=\"a\"/><reg bitsize=\"8\"/><reg name=\"b\" bitsize=\"9999999999\"/><reg ",
        );
        assert_eq!(layout.value("a", &[0; 8]), None);
        assert_eq!(layout.value("b", &[0; 8]), None);
    }
}
