//! The unwinders that are measured beside each other, each under one name everywhere.

use crate::corpus::Corpus;
use crate::{
    Facade, FramePointerLoop, Framehop, Gimli, Reference, Rows, SimpleFrame, Unwind,
    UnwindByCallFrames, Unwinder,
};

/// An unwinder that takes part.
#[derive(Clone, Copy, Debug)]
pub struct Contestant {
    /// Its name in tables and on command lines.
    pub name: &'static str,
    open: fn(&Corpus) -> Box<dyn Unwinder>,
}

impl Contestant {
    /// One that `open` makes, with the modules of a corpus.
    #[must_use]
    pub const fn new(name: &'static str, open: fn(&Corpus) -> Box<dyn Unwinder>) -> Self {
        Self { name, open }
    }

    /// The unwinder.
    #[inline]
    #[must_use]
    pub fn open(self, corpus: &Corpus) -> Box<dyn Unwinder> {
        (self.open)(corpus)
    }

    /// Those that are compared: the library, its rivals and what none can be faster than.
    #[inline]
    #[must_use]
    pub fn compared() -> Vec<Self> {
        [&[UNWIND, CALL_FRAMES], RIVALS, &[FRAME_POINTERS]].concat()
    }

    /// All of the benches' own.
    #[inline]
    #[must_use]
    pub fn all() -> Vec<Self> {
        let few_rows = [
            Self::new("unwind-512", |corpus| Box::new(Facade::<512>::new(corpus, Rows::Sframe))),
            Self::new("call-frames-512", |corpus| {
                Box::new(Facade::<512>::new(corpus, Rows::CallFrames))
            }),
        ];
        let indexed = Self::new("indexed", |corpus| Box::new(Unwind::indexed(corpus)));
        let reference = Self::new("reference", |corpus| Box::new(Reference::new(corpus)));
        [&Self::compared()[..], &walkers(), &few_rows, &[indexed, reference]].concat()
    }
}

/// The library as its README sets it up, over SFrame tables.
pub const UNWIND: Contestant =
    Contestant::new("unwind", |corpus| Box::new(Facade::<4096>::new(corpus, Rows::Sframe)));

/// The library as its README sets it up, over call frame information.
pub const CALL_FRAMES: Contestant = Contestant::new("call-frames", |corpus| {
    Box::new(Facade::<4096>::new(corpus, Rows::CallFrames))
});

/// Walkers of the benches' own with 512 rows, without sources that look at code.
#[inline]
#[must_use]
pub fn walkers() -> [Contestant; 3] {
    [
        Contestant::new("walker", |corpus| Box::new(Unwind::new(corpus))),
        Contestant::new("walker-v2", |corpus| Box::new(Unwind::v2(corpus))),
        Contestant::new("walker-call-frames", |corpus| Box::new(UnwindByCallFrames::new(corpus))),
    ]
}

/// Other unwinders.
pub const RIVALS: &[Contestant] = &[
    Contestant::new("framehop", |corpus| Box::new(Framehop::new(corpus))),
    Contestant::new("gimli", |corpus| Box::new(Gimli::new(corpus))),
    Contestant::new("simple-frame-rs", |corpus| Box::new(SimpleFrame::new(corpus))),
];

/// The loop over frame pointers: a lower limit and no rival, as it stops at code that keeps none.
pub const FRAME_POINTERS: Contestant =
    Contestant::new("frame-pointers", |_| Box::new(FramePointerLoop::new()));
