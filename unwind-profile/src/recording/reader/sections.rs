//! The sections of a recording's file beside its records.

use std::collections::HashMap;
use std::io::{self, Read as _};

use unwind_target::Untrusted;

use super::{PerfReader, name_events, words};
use crate::recording::build_ids;
use crate::recording::error::PerfError;
use crate::recording::header::{Feature, FileHeader, Section};
use crate::recording::pmu_caps;

/// The most bytes that attrs, ids or names may take; a thousand events on a
/// thousand CPUs take a tenth.
const MAX_SECTION: u64 = 64 << 20;

impl PerfReader {
    /// Reads names from the feature sections. A damaged section leaves its
    /// events with the names that their attrs give.
    pub(super) fn read_names(&mut self, header: &FileHeader) -> Result<(), PerfError> {
        let Some(place) = self.feature_place(header, Feature::EVENT_DESC)? else {
            return Ok(());
        };
        if let Ok(section) = self.section("list of event names", place) {
            name_events(&mut self.events, &section, self.start.endian, true);
        }
        Ok(())
    }

    /// The build ids that the recorder found in files when it was done, by the files'
    /// names. A damaged section has those before the damage.
    pub fn build_ids(&mut self) -> HashMap<Box<[u8]>, Box<[u8]>> {
        let Some(header) = self.header else {
            return HashMap::new();
        };
        let place = self.feature_place(&header, Feature::BUILD_ID).ok().flatten();
        let section = place.and_then(|place| self.section("list of build ids", place).ok());
        build_ids::parse(&section.unwrap_or_default(), self.endian())
    }

    /// The same as [`branch_entries`](Self::branch_entries), by the records so far: pipe form
    /// has it there.
    pub(crate) const fn told_branch_entries(&self) -> Option<u32> {
        self.told_branch_entries
    }

    /// The release of the kernel, by the records so far: pipe form has it there.
    pub(crate) const fn told_release(&self) -> Option<&Untrusted> {
        self.told_release.as_ref()
    }

    /// How many entries the CPU's branch record has, if the recording says so at its end.
    pub fn branch_entries(&mut self) -> Option<u32> {
        let header = self.header?;
        let place = self.feature_place(&header, Feature::CPU_PMU_CAPS).ok()??;
        let section = self.section("properties of the PMU", place).ok()?;
        pmu_caps::branches(&section, self.endian())
    }

    /// Where the section of a feature is, if the file has one.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if it cannot be there.
    pub(crate) fn place_of(&mut self, feature: Feature) -> Result<Option<Section>, PerfError> {
        match self.header {
            Some(header) => self.feature_place(&header, feature),
            None => Ok(None),
        }
    }

    /// Finds a feature section.
    fn feature_place(
        &mut self,
        header: &FileHeader,
        feature: Feature,
    ) -> Result<Option<Section>, PerfError> {
        let places = self.feature_places(header)?;
        Ok(places.into_iter().find(|&(found, _)| found == feature).map(|(_, place)| place))
    }

    /// Where all feature sections are. Their table is after the data.
    pub(crate) fn feature_places(
        &mut self,
        header: &FileHeader,
    ) -> Result<Vec<(Feature, Section)>, PerfError> {
        let at = header.data.at.saturating_add(header.data.len);
        let features: Vec<Feature> = header.features().collect();
        let len = u64::try_from(features.len()).unwrap_or(0).saturating_mul(16);
        // Without the length of the data there is no table either.
        if header.data.len == 0 {
            return Ok(Vec::new());
        }
        let Ok(table) = self.section("table of features", Section { at, len }) else {
            return Ok(Vec::new());
        };
        let table = words(&table, self.endian());
        let places = table.as_chunks().0.iter().map(|&[at, len]| Section { at, len });
        Ok(features.into_iter().zip(places).collect())
    }

    /// Checks that the file has such a part.
    pub(crate) fn check_place(
        &mut self,
        part: &'static str,
        place: Section,
    ) -> Result<(), PerfError> {
        let file_len = self.file_len()?;
        if place.at.checked_add(place.len).is_none_or(|end| end > file_len) {
            return Err(PerfError::BadSection { part, at: place.at, len: place.len });
        }
        Ok(())
    }

    /// Reads a part of the file.
    ///
    /// What is read is never longer than the file, whatever it says.
    pub(crate) fn section(
        &mut self,
        part: &'static str,
        place: Section,
    ) -> Result<Vec<u8>, PerfError> {
        self.check_place(part, place)?;
        if place.len > MAX_SECTION {
            return Err(PerfError::BadSection { part, at: place.at, len: place.len });
        }
        let mut bytes = vec![0; usize::try_from(place.len).unwrap_or(0)];
        match self.input.read_exact_at(&mut bytes, place.at) {
            // It was cut since it was opened.
            Err(PerfError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(PerfError::BadSection { part, at: place.at, len: place.len })
            }
            result => result.map(|()| bytes),
        }
    }

    /// Copies a part of the file to `out`. What is wrong with `out` is the outer error.
    pub(crate) fn copy_section(
        &mut self,
        place: Section,
        out: &mut impl io::Write,
    ) -> io::Result<Result<(), PerfError>> {
        if let Err(error) = self.input.seek(place.at) {
            return Ok(Err(error));
        }
        io::copy(&mut self.input.by_ref().take(place.len), out).map(|_| Ok(()))
    }
}
