//! The flags of a table.

/// The flags of a section.
///
/// | bit | meaning                                                | versions |
/// |-----|--------------------------------------------------------|----------|
/// | 0   | functions ascend by start                              | 1, 2, 3  |
/// | 1   | every function keeps a frame pointer                   | 1, 2     |
/// | 2   | a function's start counts from its own field           | 2, 3     |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub(super) u8);

impl Flags {
    /// `SFRAME_F_FDE_SORTED`.
    pub const SORTED: u8 = 0x1;
    /// `SFRAME_F_FRAME_POINTER`.
    pub const FRAME_POINTER: u8 = 0x2;
    /// `SFRAME_F_FDE_FUNC_START_PCREL`.
    pub const PCREL: u8 = 0x4;

    /// The flags as they are in the preamble.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Functions ascend by their (resolved) start.
    #[must_use]
    pub const fn sorted(self) -> bool {
        self.0 & Self::SORTED != 0
    }

    /// Every function keeps a frame pointer.
    #[must_use]
    pub const fn frame_pointer(self) -> bool {
        self.0 & Self::FRAME_POINTER != 0
    }

    /// A function's start counts from its own field, else from the section.
    #[must_use]
    pub const fn pcrel(self) -> bool {
        self.0 & Self::PCREL != 0
    }
}
