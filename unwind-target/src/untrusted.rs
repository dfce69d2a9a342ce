//! Text from outside: names of files, sections, symbols, threads and events, refusals of a
//! peer, whatever a target, a file or a socket says.
//!
//! Such text may hold what a terminal takes as a command, what turns the order of the letters
//! after it round, a newline that makes a second line, or what is not seen at all. It is
//! shown in one way only, as [`Escaped`] writes it, to people as well as in JSON. Readers
//! keep it as [`Untrusted`], from which there is no other way to text.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory as _};

/// What stands after text of which only the start is shown. No escape is like it.
const CUT: &str = "\\…";

/// Text from outside, kept: any bytes, UTF-8 as a rule.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Untrusted(Box<[u8]>);

impl Untrusted {
    /// The bytes as they came, to compare or to open a file by. Never to be shown.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// How the text is shown.
    #[must_use]
    pub fn escaped(&self) -> Escaped<'_> {
        Escaped { bytes: &self.0, limit: usize::MAX }
    }

    /// The text that is [shown](Self::escaped) so, as files have it. A backslash that begins no escape stands for itself.
    #[must_use]
    pub fn of_shown(shown: &str) -> Self {
        let digit =
            |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (mut bytes, mut rest) = (Vec::with_capacity(shown.len()), shown.as_bytes());
        while let Some((&first, after)) = rest.split_first() {
            let (byte, after) = match (first, after) {
                (b'\\', [b'\\', after @ ..]) => (b'\\', after),
                (b'\\', [b'n', after @ ..]) => (b'\n', after),
                (b'\\', [b'r', after @ ..]) => (b'\r', after),
                (b'\\', [b't', after @ ..]) => (b'\t', after),
                (b'\\', [b'x', high, low, rest @ ..]) => match digit(*high).zip(digit(*low)) {
                    Some((high, low)) => (high << 4 | low, rest),
                    None => (first, after),
                },
                _ => (first, after),
            };
            bytes.push(byte);
            rest = after;
        }
        bytes.into()
    }
}

impl<T: Bytes + ?Sized> From<&T> for Untrusted {
    fn from(text: &T) -> Self {
        Self(text.bytes().into())
    }
}

impl From<Vec<u8>> for Untrusted {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<String> for Untrusted {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.escaped().fmt(f)
    }
}

impl fmt::Debug for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.escaped().fmt(f)
    }
}

impl Serialize for Untrusted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.escaped().serialize(serializer)
    }
}

/// What text from outside comes as.
pub trait Bytes {
    /// Its bytes.
    fn bytes(&self) -> &[u8];
}

impl Bytes for [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl<const N: usize> Bytes for [u8; N] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Bytes for str {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Bytes for String {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Bytes for OsStr {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Bytes for OsString {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Bytes for Path {
    fn bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

impl Bytes for PathBuf {
    fn bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

/// Text of visible ASCII characters and spaces, without a backslash: what needs no escape,
/// such as numbers and mangled names. `None` if there is anything else in it.
#[expect(clippy::disallowed_methods, reason = "what it returns is the same when escaped")]
#[must_use]
pub fn plain(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok().filter(|text| text.bytes().all(is_plain_ascii))
}

/// How text from outside is shown that is not kept: a path, an argument.
pub fn escaped<T: Bytes + ?Sized>(text: &T) -> Escaped<'_> {
    Escaped { bytes: text.bytes(), limit: usize::MAX }
}

/// Text from outside as it is shown, and as JSON has it.
///
/// Letters, marks, digits, punctuation, symbols and the plain space stay. A backslash is
/// `\\`; newline, carriage return and tab are `\n`, `\r` and `\t`; of all else, each byte is
/// `\xNN`: control and format characters, separators, what has no glyph, characters that
/// are not assigned, a combining mark that has no letter to stand on, and bytes that are
/// not UTF-8. So the bytes can be had back, and two texts that differ are shown differently.
///
/// A precision, as in `{:.40}`, is the most characters that are shown, and a width, as in
/// `{:>16}`, the least; [`at_most`](Self::at_most), [`left`](Self::left) and
/// [`right`](Self::right) are the same for numbers that are not constants, of any size.
#[derive(Clone, Copy)]
pub struct Escaped<'a> {
    bytes: &'a [u8],
    /// How many characters are shown at most.
    limit: usize,
}

impl<'a> Escaped<'a> {
    /// Shows `limit` characters at most. Where there are more, the last two of them say so.
    #[must_use]
    pub fn at_most(self, limit: usize) -> Self {
        Self { limit: self.limit.min(limit), ..self }
    }

    /// With spaces after it up to a width in characters.
    #[must_use]
    pub fn left(self, width: usize) -> Padded<'a> {
        Padded { text: self, before: 0, after: width.saturating_sub(self.width()) }
    }

    /// With spaces before it up to a width in characters.
    #[must_use]
    pub fn right(self, width: usize) -> Padded<'a> {
        Padded { text: self, before: width.saturating_sub(self.width()), after: 0 }
    }

    /// How many characters are shown.
    #[must_use]
    pub fn width(self) -> usize {
        let mut count = Counter(0);
        // A counter takes everything.
        let _ = self.write(&mut count);
        count.0
    }

    fn write(self, out: &mut impl fmt::Write) -> fmt::Result {
        if self.bytes.len() <= self.limit && self.bytes.iter().all(|&byte| is_plain_ascii(byte)) {
            return self.bytes.utf8_chunks().try_for_each(|chunk| out.write_str(chunk.valid()));
        }
        if self.limit == usize::MAX {
            return self.write_whole(out);
        }
        // Whether all of it fits is known at its end only.
        let mut counter = Limited { out: &mut Counter(0), room: self.limit };
        if self.write_whole(&mut counter).is_ok() {
            return self.write_whole(out);
        }
        let mark = CUT.chars().count();
        let mut start = Limited { out, room: self.limit.saturating_sub(mark) };
        // It ends where there is no more room.
        let _ = self.write_whole(&mut start);
        CUT.chars().take(self.limit).try_for_each(|letter| out.write_char(letter))
    }

    fn write_whole(self, out: &mut impl fmt::Write) -> fmt::Result {
        // A mark must not change a character that is not of the text.
        let mut has_base = false;
        for chunk in self.bytes.utf8_chunks() {
            for letter in chunk.valid().chars() {
                let is_shown = is_shown(letter, has_base);
                has_base = is_shown;
                match letter {
                    '\\' => out.write_str("\\\\")?,
                    '\n' => out.write_str("\\n")?,
                    '\r' => out.write_str("\\r")?,
                    '\t' => out.write_str("\\t")?,
                    letter if is_shown => out.write_char(letter)?,
                    letter => write_bytes(out, letter.encode_utf8(&mut [0; 4]).as_bytes())?,
                }
            }
            if !chunk.invalid().is_empty() {
                has_base = false;
                write_bytes(out, chunk.invalid())?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = f.precision().map_or(*self, |limit| self.at_most(limit));
        let Some(width) = f.width() else {
            return text.write(f);
        };
        match f.align() {
            Some(fmt::Alignment::Right) => text.right(width).fmt(f),
            _ => text.left(width).fmt(f),
        }
    }
}

impl fmt::Debug for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Escaped<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Text from outside in a column.
#[derive(Clone, Copy, Debug)]
pub struct Padded<'a> {
    text: Escaped<'a>,
    /// How many spaces stand before it.
    before: usize,
    /// How many spaces stand after it.
    after: usize,
}

impl fmt::Display for Padded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_spaces(f, self.before)?;
        self.text.write(f)?;
        write_spaces(f, self.after)
    }
}

/// The formatter's own widths end at 65,535, by a panic.
fn write_spaces(out: &mut impl fmt::Write, count: usize) -> fmt::Result {
    (0..count).try_for_each(|_| out.write_char(' '))
}

/// Writes each byte as `\xNN`, whole or not at all.
fn write_bytes(out: &mut impl fmt::Write, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| out.write_str(&format!("\\x{byte:02x}")))
}

const fn is_plain_ascii(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'\\'
}

/// Whether a character is shown as it is, after one that is or not.
fn is_shown(letter: char, has_base: bool) -> bool {
    if letter.is_ascii() {
        return is_plain_ascii(u8::try_from(letter).unwrap_or(0));
    }
    match letter.general_category() {
        GeneralCategory::Control
        | GeneralCategory::Format
        | GeneralCategory::Surrogate
        | GeneralCategory::PrivateUse
        | GeneralCategory::Unassigned
        | GeneralCategory::LineSeparator
        | GeneralCategory::ParagraphSeparator
        | GeneralCategory::SpaceSeparator => false,
        GeneralCategory::NonspacingMark | GeneralCategory::EnclosingMark => {
            has_base && !is_ignorable(letter)
        }
        _ => !is_ignorable(letter),
    }
}

/// Whether a letter, mark or symbol has no glyph of its own: those of the property
/// `Default_Ignorable_Code_Point`, and the blank of Braille.
const fn is_ignorable(letter: char) -> bool {
    matches!(
        letter,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

/// Counts characters.
struct Counter(usize);

impl fmt::Write for Counter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.saturating_add(text.chars().count());
        Ok(())
    }
}

/// Passes pieces on as long as there is room for them, and refuses the first that is too
/// long: no escape is cut in two.
struct Limited<'a, W> {
    out: &'a mut W,
    /// For how many characters.
    room: usize,
}

impl<W: fmt::Write> fmt::Write for Limited<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.room = self.room.checked_sub(text.chars().count()).ok_or(fmt::Error)?;
        self.out.write_str(text)
    }
}

#[cfg(test)]
mod tests;
