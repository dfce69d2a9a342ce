//! The flags of a table.
use bitflags::bitflags;

bitflags! {
    /// The flags of a section.
    ///
    /// | bit | meaning                                                | versions |
    /// |-----|--------------------------------------------------------|----------|
    /// | 0   | functions ascend by start                              | 1, 2, 3  |
    /// | 1   | every function keeps a frame pointer                   | 1, 2     |
    /// | 2   | a function's start counts from its own field           | 2, 3     |
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// Functions ascend by their (resolved) start (`SFRAME_F_FDE_SORTED`).
        const SORTED = 0x1;
        /// Every function keeps a frame pointer (`SFRAME_F_FRAME_POINTER`).
        const FRAME_POINTER = 0x2;
        /// A function's start counts from its own field, else from the section
        /// (`SFRAME_F_FDE_FUNC_START_PCREL`).
        const PCREL = 0x4;
    }
}
