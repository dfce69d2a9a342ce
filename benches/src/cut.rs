//! Cuts a captured corpus to a size that can be committed.

use std::path::Path;

use unwind_snapshot::{Cfi, Image, Mapping, Snapshot, Space, Writer};

use crate::corpus::{self, Corpus};
use crate::eh_frame;
use crate::reference::Reference;
use crate::{MAX_FRAMES, Unwinder as _};

/// Keeps about `count` snapshots of the corpus at `path`, evenly, one in eight of
/// them from epilogues that had taken registers from the stack; of each the bytes
/// up to the outermost frame that the reference finds, without text, and of the
/// tables the functions that occur.
///
/// # Panics
///
/// If the corpus or an image cannot be read.
#[must_use]
pub fn cut(path: &Path, count: usize) -> Vec<u8> {
    let recording = corpus::read(path);
    let corpus = Corpus::open(path);
    let mut reference = Reference::new(&corpus);
    let mut pcs = Vec::new();
    let mut snapshots = Vec::new();
    for snapshot in chosen(&corpus.snapshots, count, &mut reference) {
        reference.walk(snapshot);
        let expected = reference.frames();
        // Exact, then the last byte of each call.
        pcs.extend(expected.iter().zip(0..).map(|(pc, at)| pc - u64::from(at > 0_u32)));
        let stack = without_text(needed(snapshot, &mut reference)).leak();
        let kept = Snapshot { stack, ..*snapshot };
        reference.walk(&kept);
        assert_eq!(reference.frames(), expected, "text is no part of a frame");
        snapshots.push(kept);
    }
    let mut writer = Writer::new(Vec::new()).unwrap();
    let (space, _) = corpus::most_frequent(&recording);
    let mut mappings = Vec::new();
    let mut images: Vec<u32> = Vec::new();
    for mapping in &recording.spaces[usize::try_from(space).unwrap()].mappings {
        if !pcs.iter().any(|pc| mapping.range.contains(pc)) {
            continue;
        }
        let image = recording.images[usize::try_from(mapping.image).unwrap()];
        let index = images.iter().position(|&index| index == mapping.image);
        let index = index.unwrap_or_else(|| {
            images.push(mapping.image);
            let name = corpus::path_of(&image);
            let name = name.file_name().unwrap().to_string_lossy().into_owned();
            let kept = Image { build_id: image.build_id, path: name.as_bytes() };
            writer.image(&kept).unwrap();
            images.len() - 1
        });
        let image = u32::try_from(index).unwrap();
        mappings.push(Mapping { image, ..mapping.clone() });
    }
    writer.space(&Space { mappings: mappings.clone() }).unwrap();
    for (index, image) in (0..).zip(images) {
        let image = recording.images[usize::try_from(image).unwrap()];
        let found = corpus::read_eh_frame(&corpus::path_of(&image), image.build_id);
        let Some((addr, bytes)) = found else { continue };
        let of_it = mappings.iter().filter(|mapping| mapping.image == index);
        let mut linked: Vec<_> = of_it
            .flat_map(|mapping| {
                let here = pcs.iter().filter(|pc| mapping.range.contains(pc));
                here.map(|pc| pc.wrapping_sub(mapping.bias))
            })
            .collect();
        linked.sort_unstable();
        let entries = eh_frame::entries(&bytes, addr);
        let kept = eh_frame::cut(&bytes, &entries, |fde| {
            let at = linked.partition_point(|&pc| pc < fde.code.start);
            linked.get(at).is_some_and(|pc| fde.code.contains(pc))
        });
        writer.cfi(&Cfi { image: index, addr, eh_frame: &kept }).unwrap();
    }
    for snapshot in snapshots {
        writer.snapshot(&Snapshot { space: 0, process: 1, thread: 1, ..snapshot }).unwrap();
    }
    writer.finish().unwrap()
}

/// Some `count` snapshots in order of time, one in eight from an epilogue if there
/// are that many.
fn chosen<'s, 'a>(
    all: &'s [Snapshot<'a>],
    count: usize,
    reference: &mut Reference,
) -> Vec<&'s Snapshot<'a>> {
    let (popped, others): (Vec<_>, Vec<_>) = all.iter().partition(|snapshot| {
        reference.walk(snapshot);
        reference.has_popped()
    });
    let evenly = |from: &[&'s Snapshot<'a>], count: usize| {
        let step = from.len().div_ceil(count.max(1)).max(1);
        from.iter().copied().step_by(step).collect::<Vec<_>>()
    };
    let mut chosen = evenly(&popped, count.div_ceil(8));
    chosen.extend(evenly(&others, count - chosen.len()));
    chosen.sort_by_key(|snapshot| snapshot.time);
    chosen
}

/// Stack bytes with zeros for words of text, which is the business of readers who
/// use the machine.
fn without_text(stack: &[u8]) -> Vec<u8> {
    let is_text = |word: &[u8]| {
        let letters = word.iter().filter(|byte| matches!(byte, b' '..=b'~')).count();
        letters > 3 && word.iter().all(|byte| matches!(byte, 0 | b' '..=b'~'))
    };
    let word = |word: &[u8]| if is_text(word) { vec![0; word.len()] } else { word.to_vec() };
    stack.chunks(8).flat_map(word).collect()
}

/// The stack bytes without which the walk would be another: found by trying.
fn needed<'s>(snapshot: &Snapshot<'s>, reference: &mut Reference) -> &'s [u8] {
    reference.walk(snapshot);
    let (frames, end) = (reference.frames(), reference.end());
    let (mut low, mut high) = (0, snapshot.stack.len().div_ceil(16));
    while low < high {
        let middle = usize::midpoint(low, high);
        let stack = snapshot.stack.get(..middle * 16).unwrap_or(snapshot.stack);
        reference.walk(&Snapshot { stack, ..*snapshot });
        if (reference.frames(), reference.end()) == (frames.clone(), end) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    assert!(frames.len() <= MAX_FRAMES);
    // A little more, for unwinders that look further.
    snapshot.stack.get(..low * 16 + 64).unwrap_or(snapshot.stack)
}
