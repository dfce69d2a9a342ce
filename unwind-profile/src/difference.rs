//! Recordings before and after beside each other.

use std::io::Write;
use std::path::PathBuf;

use crate::collected::error::{Ended, ReadingError};
use crate::collected::reading::Read;
use crate::collected::together::read;
use crate::formats;
use crate::formats::format::Format;
use crate::profile::{ProfileOptions, TOP, WriteError, title};

/// Recordings before and after beside each other: which functions take another share of the time, and which
/// differences are no more than recordings of one program have.
///
/// ```no_run
/// use unwind_profile::{Difference, Format, ProfileOptions};
///
/// let options = ProfileOptions::new(Format::Html);
/// let difference = Difference::open(["before.data"], ["after.data"], &options)?;
/// difference.write(Format::Html, std::fs::File::create("difference.html")?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Difference {
    sides: [Read; 2],
    paths: [Vec<PathBuf>; 2],
    memory: usize,
}

impl Difference {
    /// Reads both sides. Of several recordings a side, made in turn, those at the same place belong together:
    /// they tell by how much runs of one program differ. One that has none on the other side counts, and tells
    /// nothing of that.
    ///
    /// # Errors
    ///
    /// [`ReadingError`] if a side has no recording, or more than one event.
    pub fn open<P: Into<PathBuf>>(
        before: impl IntoIterator<Item = P>,
        after: impl IntoIterator<Item = P>,
        options: &ProfileOptions,
    ) -> Result<Self, ReadingError> {
        let before: Vec<PathBuf> = before.into_iter().map(Into::into).collect();
        let after: Vec<PathBuf> = after.into_iter().map(Into::into).collect();
        let reading = options.reading(true);
        let sides = [read(&before, reading)?, read(&after, reading)?];
        for side in &sides {
            side.only()?;
        }
        Ok(Self { sides, paths: [before, after], memory: options.memory })
    }

    /// Writes it as [`Text`](Format::Text), `Folded`, `Svg` or `Html`.
    ///
    /// # Errors
    ///
    /// [`WriteError`] if a difference is not written in this format, or `out` cannot be written to.
    pub fn write(&self, format: Format, mut out: impl Write) -> Result<(), WriteError> {
        if !format.is_of_difference() {
            return Err(WriteError::OtherFormat(
                "a difference is written as Text, Html, Svg or Folded, if these are built in",
            ));
        }
        self.write_sides(format, TOP, false, &mut out)
    }

    /// The same as the command writes it: with at most `top` functions in text, which names the command's
    /// options.
    #[doc(hidden)]
    pub fn write_top(
        &self,
        format: Format,
        top: usize,
        out: &mut dyn Write,
    ) -> Result<(), WriteError> {
        self.write_sides(format, top, true, out)
    }

    fn write_sides(
        &self,
        format: Format,
        top: usize,
        names_options: bool,
        out: &mut dyn Write,
    ) -> Result<(), WriteError> {
        let [event_before, event_after] = [self.sides[0].only()?, self.sides[1].only()?];
        let [before, after] = &self.paths;
        // A pair of which one could not be read is none.
        let pairs = before.iter().zip(after).filter_map(|(before, after)| {
            Some((event_before.counts(before)?, event_after.counts(after)?))
        });
        let (of_before, of_after): (Vec<_>, Vec<_>) = pairs.unzip();
        let [title_before, title_after] = self.paths.each_ref().map(|paths| title(paths));
        let sides = [
            event_before.side(&title_before, &of_before, names_options),
            event_after.side(&title_after, &of_after, names_options),
        ];
        Ok(formats::difference::write(out, format, &sides, top, self.memory)?)
    }

    /// How the reading of both sides ended.
    #[must_use]
    pub fn ended(self) -> Ended {
        let [mut before, after] = self.sides.map(Read::end);
        before.warnings.extend(after.warnings);
        before.errors.extend(after.errors);
        before
    }
}
