//! What a `perf.data` has of stacks: samples with registers and a copy of the stack, and
//! where code was mapped meanwhile.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Seek};
use std::ops::Range;

use linux_perf_data::linux_perf_event_reader::constants::{
    PERF_REG_X86_AX, PERF_REG_X86_BP, PERF_REG_X86_BX, PERF_REG_X86_CX, PERF_REG_X86_DI,
    PERF_REG_X86_DX, PERF_REG_X86_IP, PERF_REG_X86_R8, PERF_REG_X86_SI, PERF_REG_X86_SP,
};
use linux_perf_data::linux_perf_event_reader::{
    CommOrExecRecord, EventRecord, Mmap2FileId, Mmap2Record, SampleRecord,
};
use linux_perf_data::{PerfFileReader, PerfFileRecord};
use object::{Object as _, ObjectSegment as _, SegmentFlags, elf};
use unwind_snapshot::{Image, Recording, Snapshot};

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) range: Range<u64>,
    /// What of the file is mapped there.
    pub(crate) offset: u64,
    pub(crate) path: String,
    /// The build id of the file, where the record says it.
    build_id: Vec<u8>,
}

/// Code that was mapped at some time, ascending.
pub(crate) type Space = Vec<Mapping>;

/// All samples with registers and stack, each with the code that was mapped.
pub(crate) fn read<R: Read + Seek>(file: R) -> Vec<(Snapshot<'static>, Space)> {
    let PerfFileReader { mut perf_file, mut record_iter } =
        PerfFileReader::parse_file(file).unwrap();
    let mut spaces: HashMap<i32, Space> = HashMap::new();
    let mut samples = Vec::new();
    while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
        let PerfFileRecord::EventRecord { record, .. } = record else { continue };
        match record.parse().unwrap() {
            EventRecord::Comm(CommOrExecRecord { pid, is_execve: true, .. }) => {
                spaces.remove(&pid);
            }
            EventRecord::Fork(fork) if fork.pid != fork.ppid => {
                let space = spaces.get(&fork.ppid).cloned().unwrap_or_default();
                spaces.insert(fork.pid, space);
            }
            EventRecord::Mmap2(map) => map_code(spaces.entry(map.pid).or_default(), &map),
            EventRecord::Sample(sample) => {
                let Some(snapshot) = snapshot(&sample) else { continue };
                let space = spaces.get(&sample.pid.unwrap()).cloned().unwrap_or_default();
                samples.push((snapshot, space));
            }
            _ => {}
        }
    }
    samples
}

fn map_code(space: &mut Space, map: &Mmap2Record<'_>) {
    const PROT_EXEC: u32 = 4;
    let range = map.address..map.address.saturating_add(map.length);
    let pieces = std::mem::take(space).into_iter().flat_map(|old| {
        let before = old.range.start..old.range.end.min(range.start);
        let after = old.range.start.max(range.end)..old.range.end;
        [before, after].map(|range| {
            let offset = old.offset.wrapping_add(range.start.wrapping_sub(old.range.start));
            Mapping { range, offset, ..old.clone() }
        })
    });
    *space = pieces.filter(|piece| !piece.range.is_empty()).collect();
    if map.protection & PROT_EXEC != 0 && !range.is_empty() {
        let path = String::from_utf8_lossy(&map.path.as_slice()).into_owned();
        let build_id = match &map.file_id {
            Mmap2FileId::BuildId(id) => id.clone(),
            Mmap2FileId::InodeAndVersion(_) => Vec::new(),
        };
        space.push(Mapping { range, offset: map.page_offset, path, build_id });
    }
    space.sort_by_key(|mapping| mapping.range.start);
}

fn snapshot(sample: &SampleRecord<'_>) -> Option<Snapshot<'static>> {
    /// The kernel's numbers in the order of DWARF's.
    const GENERAL: [u64; 8] = [
        PERF_REG_X86_AX,
        PERF_REG_X86_DX,
        PERF_REG_X86_CX,
        PERF_REG_X86_BX,
        PERF_REG_X86_SI,
        PERF_REG_X86_DI,
        PERF_REG_X86_BP,
        PERF_REG_X86_SP,
    ];
    let registers = sample.user_regs.as_ref()?;
    let (stack, len) = sample.user_stack.as_ref()?;
    let mut gpr = [0; 16];
    let numbers = GENERAL.into_iter().chain(PERF_REG_X86_R8..PERF_REG_X86_R8 + 8);
    for (register, number) in gpr.iter_mut().zip(numbers) {
        *register = registers.get(number)?;
    }
    let mut stack = stack.as_slice().into_owned();
    stack.truncate(usize::try_from(*len).unwrap());
    let id = |id: Option<i32>| u32::try_from(id.unwrap()).unwrap();
    Some(Snapshot {
        space: 0,
        process: id(sample.pid),
        thread: id(sample.tid),
        time: sample.timestamp?,
        rip: registers.get(PERF_REG_X86_IP)?,
        gpr,
        is_whole: false,
        stack_start: gpr[7],
        stack: stack.leak(),
    })
}

/// The samples of a `perf.data` with the code that was mapped, as a file of snapshots
/// would have them. They are kept for the rest of the run. Code of no file is left out.
pub(crate) fn recording<R: Read + Seek>(file: R) -> Recording<'static> {
    let mut recording = Recording::default();
    let mut images: HashMap<String, Option<(u32, Vec<Segment>)>> = HashMap::new();
    let mut spaces: Vec<Space> = Vec::new();
    for (snapshot, space) in read(file) {
        let known = spaces.iter().position(|known| *known == space);
        let index = known.unwrap_or_else(|| {
            let mappings = space.iter().filter_map(|mapping| {
                let image = images.entry(mapping.path.clone()).or_insert_with(|| {
                    let (image, segments) = image(mapping)?;
                    recording.images.push(image);
                    Some((u32::try_from(recording.images.len()).unwrap() - 1, segments))
                });
                let (image, segments) = image.as_ref()?;
                let range = mapping.range.clone();
                let bias = bias(segments, range.start, mapping.offset)?;
                Some(unwind_snapshot::Mapping { range, bias, image: *image })
            });
            recording.spaces.push(unwind_snapshot::Space { mappings: mappings.collect() });
            spaces.push(space);
            spaces.len() - 1
        });
        recording.snapshots.push(Snapshot { space: u32::try_from(index).unwrap(), ..snapshot });
    }
    recording
}

/// The file that is mapped, and its executable segments; `None` if it is no ELF file.
fn image(mapping: &Mapping) -> Option<(Image<'static>, Vec<Segment>)> {
    let bytes = fs::read(&mapping.path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let mut build_id = mapping.build_id.clone();
    if build_id.is_empty() {
        build_id = file.build_id().unwrap().unwrap_or_default().to_vec();
    }
    let path = mapping.path.clone().into_bytes().leak();
    Some((Image { build_id: build_id.leak(), path }, segments(&file)))
}

/// An executable segment: offset, size in the file and address as linked.
pub(crate) type Segment = (u64, u64, u64);

/// How far a file is loaded above its link-time addresses if what is at `offset` is mapped
/// at `start`.
pub(crate) fn bias(segments: &[Segment], start: u64, offset: u64) -> Option<u64> {
    let (at, _, addr) = segments.iter().find(|(at, len, _)| {
        let page = at & !0xfff;
        (page..at + len).contains(&offset) || *at == offset
    })?;
    Some(start.wrapping_sub(addr.wrapping_sub(*at).wrapping_add(offset)))
}

pub(crate) fn segments(file: &object::File<'_>) -> Vec<Segment> {
    let executable = file.segments().filter(|segment| {
        matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.contains(elf::PF_X))
    });
    let ranges = executable.map(|segment| {
        let (at, len) = segment.file_range();
        (at, len, segment.address())
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use linux_perf_data::linux_perf_event_reader::RawData;

    /// Mappings at 10..20 and 20..30, and then one that covers `range`.
    fn mapped_over(range: Range<u64>) -> Vec<(u64, u64, u64)> {
        let mut space = Space::new();
        for range in [10..20, 20..30, range] {
            let record = Mmap2Record {
                pid: 1,
                tid: 1,
                address: range.start,
                length: range.end - range.start,
                page_offset: range.start * 100,
                file_id: Mmap2FileId::BuildId(vec![7]),
                protection: 5,
                flags: 2,
                path: RawData::Single(b"/bin/a"),
                cpu_mode: linux_perf_data::linux_perf_event_reader::CpuMode::User,
            };
            map_code(&mut space, &record);
        }
        space.iter().map(|mapped| (mapped.range.start, mapped.range.end, mapped.offset)).collect()
    }

    #[test]
    fn a_new_mapping_replaces_what_was_there() {
        assert_eq!(mapped_over(0..10), [(0, 10, 0), (10, 20, 1000), (20, 30, 2000)]);
        assert_eq!(
            mapped_over(12..15),
            [(10, 12, 1000), (12, 15, 1200), (15, 20, 1005), (20, 30, 2000)]
        );
        assert_eq!(mapped_over(15..25), [(10, 15, 1000), (15, 25, 1500), (25, 30, 2005)]);
        assert_eq!(mapped_over(10..20), [(10, 20, 1000), (20, 30, 2000)]);
        assert_eq!(mapped_over(0..99), [(0, 99, 0)]);
    }

    #[test]
    fn a_part_of_a_segment_has_the_bias_of_the_whole() {
        let segments = [(0x1234, 0x3000, 0x5234)];
        assert_eq!(bias(&segments, 0x70_1000, 0x1000), Some(0x70_1000 - 0x5000));
        assert_eq!(bias(&segments, 0x70_3000, 0x3000), bias(&segments, 0x70_1000, 0x1000));
        assert_eq!(bias(&segments, 0x70_5000, 0x5000), None);
    }
}
