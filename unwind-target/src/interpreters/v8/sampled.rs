//! V8 in a file, as who samples programs needs it: what is to be read of a frame at a sample, and the calls that
//! come of that.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unwind_core::Memory;

use crate::elf::ElfFile;
use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::frame::InterpretedFrame;
use crate::interpreters::sampled::{
    CheckOf, FileMemory, Others, Piece, SampledCalls, SampledRun, UnreadInterpreter,
};
use crate::interpreters::v8::constants::{Layout, Version};
use crate::interpreters::v8::frames::{Calls, FrameReader, KeptBytecode, Standing};
use crate::interpreters::v8::functions::Functions;
use crate::interpreters::v8::heap::object;
use crate::interpreters::v8::places::{Place, Places};
use crate::interpreters::v8::scripts::TextLines;
use crate::interpreters::v8::{PREFIX, SIZES, VERSION, bytecode_sizes, reader};
use crate::symbols::data::{data_named, data_starting, labels_named};
use crate::target::memory::PageCache;

/// How many bytes are read of a program for the calls of a sample.
const BYTES: u64 = 32 << 20;

/// How often calls of a frame are read that cannot be, and of how many that is known.
const TRIES: u8 = 16;
const FAILED: usize = 1 << 14;

/// Words of a frame below its frame pointer, and of a function's shared data, that are read at a sample.
const FRAME_BYTES: u64 = 48;
const SHARED_BYTES: u64 = 48;

/// How many words tell a frame's function, bytecode and code from others: its name and script, three of its variables,
/// four of the bytecode, four of the code around the pc.
const IDENTITY: usize = 13;

/// V8 in a file. Addresses are those of the file.
#[derive(Clone, Debug)]
pub struct SampledV8 {
    layout: Layout,
    /// How long each bytecode is.
    sizes: Vec<u8>,
    /// Which words of frames and objects are to be read.
    pub offsets: Offsets,
    /// Its builtin functions.
    pub builtins: Range<u64>,
}

/// Which words of a frame, and of what that has, are of interest: of a frame below its frame pointer, else from the
/// start of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// The kind of the frame, or the context of its function.
    pub marker: u32,
    /// The closure.
    pub function: u32,
    /// The array of bytecode.
    pub bytecode: u32,
    /// The place in that.
    pub bytecode_offset: u32,
    /// Of a closure its shared data.
    pub shared: u32,
    /// Of that its name or variables.
    pub name: u32,
    /// Of that its script.
    pub script: u32,
    /// Of a map the type, in two bytes.
    pub instance_type: u32,
    /// The type of shared data.
    pub shared_type: u32,
    /// The type of an array of bytecode.
    pub bytecode_type: u32,
}

impl Offsets {
    /// Those of a layout; `None` if that cannot be read in this way.
    fn of(layout: &Layout) -> Option<Self> {
        let narrow = |offset: u64| u32::try_from(offset).ok();
        let in_frame = |below: u64| {
            narrow(below).filter(|_| below & 7 == 0 && below != 0 && below <= FRAME_BYTES)
        };
        let in_shared =
            |offset: u64| narrow(offset).filter(|_| offset & 7 == 0 && offset < SHARED_BYTES);
        let (frame, function) = (layout.frame, layout.function);
        Some(Self {
            marker: in_frame(frame.marker)?,
            function: in_frame(frame.function)?,
            bytecode: in_frame(frame.bytecode)?,
            bytecode_offset: in_frame(frame.bytecode_offset)?,
            shared: narrow(function.shared)?,
            name: in_shared(function.name)?,
            script: in_shared(function.script)?,
            instance_type: narrow(layout.instance_type)?,
            shared_type: narrow(layout.types.shared)?,
            bytecode_type: narrow(layout.types.bytecode)?,
        })
    }
}

impl SampledV8 {
    /// That of a file, if it has one.
    ///
    /// # Errors
    ///
    /// [`UnreadInterpreter`] if its calls cannot be read.
    pub fn of(file: &ElfFile) -> Result<Option<Self>, UnreadInterpreter> {
        let Ok([Some(major), Some(minor)]) = data_named(file, &VERSION) else { return Ok(None) };
        let mut memory = FileMemory { file };
        let mut memory = BoundedMemory::new(&mut memory);
        let unread = |interpreter| move |doubt| UnreadInterpreter { interpreter, doubt };
        let mut number = |addr| memory.half(addr, 0).map_err(unread("V8".to_owned()));
        let version = Version { major: number(major)?, minor: number(minor)? };
        let Version { major, minor } = version;
        let read = Self::of_version(version, file, &mut memory);
        read.map(Some).map_err(unread(format!("V8 {major}.{minor}")))
    }

    fn of_version(
        version: Version,
        file: &ElfFile,
        memory: &mut BoundedMemory<'_, FileMemory<'_>>,
    ) -> Result<Self, Doubt> {
        // Up to 10.2 what the second one labels is the address of the first.
        const BUILTINS: [&[u8]; 3] = [
            b"v8_Default_embedded_blob_code_data_",
            b"v8_Default_embedded_blob_code_",
            b"v8_Default_embedded_blob_code_size_",
        ];
        let stripped = |_| Doubt::Stripped;
        let [sizes] = data_named(file, &SIZES).map_err(stripped)?;
        let [before, start, len] = labels_named(file, &BUILTINS).map_err(stripped)?;
        let all = before.or(start).zip(len).zip(sizes);
        let ((start, len), sizes) = all.ok_or(Doubt::Stripped)?;
        let constants: BTreeMap<_, _> = data_starting(file, PREFIX).map_err(stripped)?;
        let layout = Layout::of(version, &constants, memory)?;
        let len = u64::from(memory.half(len, 0)?);
        let sizes = bytecode_sizes(&layout, sizes, memory)?;
        let builtins = start..start.saturating_add(len);
        Self::new(layout, sizes, builtins).ok_or(Doubt::Version)
    }

    pub(super) fn new(layout: Layout, sizes: Vec<u8>, builtins: Range<u64>) -> Option<Self> {
        Some(Self { layout, sizes, offsets: Offsets::of(&layout)?, builtins })
    }

    /// The words that tell the function, the bytecode and the code of a frame from others; none of a frame without a
    /// function.
    pub(super) fn identity<M: Memory>(
        &self,
        frame: V8Frame,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<Option<[u64; IDENTITY]>, Doubt> {
        let shared = object(frame.shared);
        if shared.is_none() && !frame.is_frameless {
            return Ok(None);
        }
        let mut words = [0; IDENTITY];
        let (of_shared, rest) = words.split_at_mut(2);
        let name = match shared {
            Some(shared) => {
                let name = memory.word(shared, self.offsets.name.into())?;
                let script = memory.word(shared, self.offsets.script.into())?;
                of_shared.copy_from_slice(&[name, script]);
                name
            }
            None => 0,
        };
        let mut read = |words: &mut [u64], addr: u64| {
            for (word, offset) in words.iter_mut().zip((0..).step_by(8)) {
                *word = memory.word(addr, offset)?;
            }
            Ok(())
        };
        let (of_scope, rest) = rest.split_at_mut(3);
        if let Some(scope) = object(name) {
            read(of_scope, scope.wrapping_add(8))?;
        }
        let (of_bytecode, of_code) = rest.split_at_mut(4);
        if let Some(array) = object(frame.bytecode[0]) {
            read(of_bytecode, array.wrapping_add(8))?;
        }
        if !frame.is_builtin {
            let (before, after) = of_code.split_at_mut(2);
            read(after, frame.pc)?;
            // At the start of memory there is nothing before the pc.
            if read(before, frame.pc.wrapping_sub(16)).is_err() {
                before.fill(0);
            }
        }
        Ok(Some(words))
    }
}

/// A frame in V8's code, in the words of a [`Piece`] at its frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V8Frame {
    /// Its place on the stack.
    pub place: usize,
    /// Where its execution stands.
    pub pc: u64,
    /// In a builtin function, or else in code that V8 has made.
    pub is_builtin: bool,
    /// That is the instruction that runs next, and else the one after a call.
    pub is_exact: bool,
    /// It has called what handles a bytecode, which may not have kept the place of that yet.
    pub is_handled: bool,
    /// Its frame does not stand yet, or no more.
    pub is_frameless: bool,
    /// The shared data of its function, or the mark of its kind, which is an even number. Where no frame stands, 0 if
    /// no function is called.
    pub shared: u64,
    /// What it has as array of bytecode, and as place in that.
    pub bytecode: [u64; 2],
}

impl V8Frame {
    /// Where the first word has the place, above the pc.
    const PLACE: u32 = 48;
    const PLACES: u64 = 0xfff;
    const PC: u64 = 0xffff_ffff_ffff;
    const BUILTIN: u64 = 1 << 60;
    const EXACT: u64 = 1 << 61;
    const HANDLED: u64 = 1 << 62;
    const FRAMELESS: u64 = 1 << 63;

    fn of(piece: &Piece) -> Self {
        let [first, shared, array, offset] = piece.words;
        let place = first >> Self::PLACE & Self::PLACES;
        Self {
            place: usize::try_from(place).unwrap_or(usize::MAX),
            pc: first & Self::PC,
            is_builtin: first & Self::BUILTIN != 0,
            is_exact: first & Self::EXACT != 0,
            is_handled: first & Self::HANDLED != 0,
            is_frameless: first & Self::FRAMELESS != 0,
            shared,
            bytecode: [array, offset],
        }
    }

    /// Whether nothing but its code tells what it executes.
    const fn is_nameless(self) -> bool {
        self.is_frameless && object(self.shared).is_none()
    }

    /// The piece of this frame.
    pub(super) fn piece(self, fp: u64, check: u64) -> Piece {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let place = u64::try_from(self.place).unwrap_or(0) & Self::PLACES;
        let first = self.pc & Self::PC
            | place << Self::PLACE
            | flag(self.is_builtin, Self::BUILTIN)
            | flag(self.is_exact, Self::EXACT)
            | flag(self.is_handled, Self::HANDLED)
            | flag(self.is_frameless, Self::FRAMELESS);
        let [array, offset] = self.bytecode;
        Piece { at: fp, check, words: [first, self.shared, array, offset] }
    }
}

/// What tells a frame, but for where it is on the stack.
type Key = (u64, [u64; 4]);

/// The calls of a program that samples were in.
#[derive(Debug)]
pub struct SampledFrames {
    v8: Arc<SampledV8>,
    is_detailed: bool,
    known: HashMap<Key, Calls>,
    /// How often those could not be read that are not known: they may be in the midst of a change.
    failed: HashMap<Key, u8>,
    lines: TextLines,
    /// When the program began to be read, and how much of it may still be in this span of time: others wait meanwhile.
    began: Option<Instant>,
    left: u64,
    /// About how many bytes all of them take.
    size: usize,
}

impl SampledFrames {
    const SPAN: Duration = Duration::from_secs(1);
    const SPAN_BYTES: u64 = 64 << 20;

    /// None yet. `is_detailed` says that optimized code tells of each instruction which function it is of, and not only of
    /// calls: that of a program which [asked](asks_for_details) for it.
    #[must_use]
    pub fn new(v8: Arc<SampledV8>, is_detailed: bool) -> Self {
        Self {
            v8,
            is_detailed,
            known: HashMap::new(),
            failed: HashMap::new(),
            lines: TextLines::default(),
            began: None,
            left: 0,
            size: 0,
        }
    }

    /// About how many bytes it takes: what was read once is kept.
    #[must_use]
    pub fn size(&self) -> usize {
        let failed = self.failed.len().saturating_mul(size_of::<(Key, u8)>());
        let all = self.size.saturating_add(self.lines.size()).saturating_add(failed);
        all.saturating_add(size_of::<Self>())
    }

    /// The calls of frames in V8's code, each of which has a run, the innermost first. `is_whole` says that there
    /// are no others. The memory of the program as it is now is for what was not met before; the calls of what is gone by
    /// now are [unknown](Others::Unknown). `check_of` makes the check of a piece of the words that tell one from another.
    pub fn calls<M: Memory>(
        &mut self,
        frames: &[Piece],
        is_whole: bool,
        memory: impl Fn() -> Option<M>,
        check_of: CheckOf,
    ) -> SampledCalls {
        self.learn(frames, memory, check_of);
        let mut all = SampledCalls { runs: Vec::new(), is_complete: is_whole };
        for piece in frames {
            let frame = V8Frame::of(piece);
            let known = self.known.get(&key_of(piece));
            let run = SampledRun {
                place: frame.place,
                pc: frame.pc,
                cfa: piece.at.wrapping_add(16),
                calls: known.map(|known| known.calls.clone()).unwrap_or_default(),
                code: known.and_then(|known| known.code.clone()),
                others: match known.map(|known| known.doubt) {
                    Some(None) => Others::None,
                    Some(Some(Doubt::Inlined)) => Others::Inlined,
                    Some(Some(_)) | None => Others::Unknown,
                },
            };
            all.is_complete &= run.others != Others::Unknown;
            all.runs.push(run);
        }
        all
    }

    /// Reads the calls of frames that were not met before.
    fn learn<M: Memory>(
        &mut self,
        frames: &[Piece],
        memory: impl Fn() -> Option<M>,
        check_of: CheckOf,
    ) {
        // Its code alone tells no function from another that has come to be there.
        for piece in frames.iter().filter(|piece| V8Frame::of(piece).is_nameless()) {
            self.forget(key_of(piece));
        }
        let is_new = |piece: &&Piece| {
            let key = key_of(piece);
            !self.known.contains_key(&key)
                && self.failed.get(&key).is_none_or(|&tries| tries < TRIES)
        };
        let new: Vec<_> = frames.iter().filter(is_new).collect();
        let mut memory = if new.is_empty() { None } else { memory() };
        let now = Instant::now();
        if self.began.is_none_or(|began| now.duration_since(began) > Self::SPAN) {
            (self.began, self.left) = (Some(now), Self::SPAN_BYTES);
        }
        let most = BYTES.min(self.left);
        let mut left = most;
        for piece in new {
            let Some(memory) = memory.as_mut() else { break };
            let mut pages = PageCache::new(&mut *memory);
            let mut bounded = BoundedMemory::of_bytes(&mut pages, left);
            let read = self.read(piece, &mut bounded, check_of);
            let (before, rest) = (left, bounded.left());
            left = rest;
            self.left = self.left.saturating_sub(before.saturating_sub(rest));
            let known = match read {
                // What was too much beside others is read at a later sample.
                Err(Doubt::TooMuch) if before != most || most != BYTES => continue,
                Err(_) | Ok(None) => {
                    self.fail(key_of(piece));
                    continue;
                }
                Ok(Some(calls)) => {
                    // It has not changed meanwhile.
                    let mut again = BoundedMemory::of_bytes(memory, BYTES);
                    match self.is_it(piece, &mut again, check_of) {
                        Ok(true) => calls,
                        _ => {
                            self.fail(key_of(piece));
                            continue;
                        }
                    }
                }
            };
            self.forget(key_of(piece));
            self.size = self.size.saturating_add(size_of_known(&known));
            self.known.insert(key_of(piece), known);
        }
    }

    fn forget(&mut self, key: Key) {
        let size = self.known.remove(&key).as_ref().map_or(0, size_of_known);
        self.size = self.size.saturating_sub(size);
    }

    /// Takes note that the calls of a frame could not be read.
    fn fail(&mut self, key: Key) {
        if self.failed.len() >= FAILED {
            self.failed.clear();
        }
        let tries = self.failed.entry(key).or_default();
        *tries = tries.saturating_add(1);
    }

    /// Whether what a frame has is what it had at the sample.
    fn is_it<M: Memory>(
        &self,
        piece: &Piece,
        memory: &mut BoundedMemory<'_, M>,
        check_of: CheckOf,
    ) -> Result<bool, Doubt> {
        let identity = self.v8.identity(V8Frame::of(piece), memory)?;
        Ok(identity.is_none_or(|words| check_of(&words) == piece.check))
    }

    /// Reads the calls of a frame, if what it has is what it had at the sample.
    fn read<M: Memory>(
        &mut self,
        piece: &Piece,
        memory: &mut BoundedMemory<'_, M>,
        check_of: CheckOf,
    ) -> Result<Option<Calls>, Doubt> {
        let frame = V8Frame::of(piece);
        if !self.is_it(piece, memory, check_of)? {
            return Ok(None);
        }
        let (v8, nowhere) = (Arc::clone(&self.v8), Places::default());
        let mut reader = reader(&v8.layout, memory, &nowhere, &v8.sizes);
        reader.is_detailed = self.is_detailed;
        reader.functions = Functions::with_lines(std::mem::take(&mut self.lines));
        let calls = reader.of_piece(frame);
        self.lines = reader.functions.into_lines();
        calls.map(Some)
    }
}

impl<M: Memory> FrameReader<'_, '_, '_, M> {
    /// The calls of a frame.
    fn of_piece(&mut self, frame: V8Frame) -> Result<Calls, Doubt> {
        let V8Frame { pc, is_builtin, is_exact, is_handled, shared, bytecode, .. } = frame;
        let place = if is_builtin { Place::Builtin } else { Place::Compiled };
        match object(shared) {
            called if frame.is_frameless => self.frameless(pc, |reader| {
                called.map(|shared| reader.functions.at(shared, &mut reader.heap)).transpose()
            }),
            None => self.of_kind(shared >> 1, place),
            Some(shared) => {
                let function = self.functions.at(shared, &mut self.heap)?;
                let standing = Standing { place, pc, is_exact, is_handled };
                self.of_function(standing, KeptBytecode::Words(bytecode[0], bytecode[1]), &function)
            }
        }
    }
}

/// Whether a program was started so that its optimized code tells of each instruction which function it is of: node with
/// `--detailed-line-info` before its script. The arguments end with a zero each.
#[must_use]
pub fn asks_for_details(arguments: &[u8]) -> bool {
    let options = arguments.split(|&byte| byte == 0).skip(1);
    let options = options.take_while(|option| option.starts_with(b"-"));
    let asks = options.filter_map(|option| match option {
        b"--detailed-line-info" | b"--detailed_line_info" => Some(true),
        b"--no-detailed-line-info" | b"--no_detailed_line_info" => Some(false),
        _ => None,
    });
    asks.last().unwrap_or(false)
}

/// About how many bytes calls take that are known.
fn size_of_known(known: &Calls) -> usize {
    let text = |call: &InterpretedFrame| {
        [&call.function, &call.file].map(|it| it.as_ref().map_or(0, |it| it.as_bytes().len()))
    };
    let texts = known.calls.iter().flat_map(text).fold(0, usize::saturating_add);
    let calls = known.calls.len().saturating_mul(size_of::<InterpretedFrame>());
    texts.saturating_add(calls).saturating_add(size_of::<(Key, Calls)>())
}

fn key_of(piece: &Piece) -> Key {
    let [first, rest @ ..] = piece.words;
    let first = first & !(V8Frame::PLACES << V8Frame::PLACE);
    let [shared, array, offset] = rest;
    (piece.check, [first, shared, array, offset])
}
