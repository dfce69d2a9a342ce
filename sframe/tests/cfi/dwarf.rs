//! Numbers of the DWARF standard, and of the registers of x86-64.

// Instructions.
pub(crate) const ADVANCE: u8 = 0x40;
pub(crate) const OFFSET: u8 = 0x80;
pub(crate) const RESTORE: u8 = 0xc0;
pub(crate) const SET_LOC: u8 = 0x01;
pub(crate) const ADVANCE2: u8 = 0x03;
pub(crate) const RESTORE_EXTENDED: u8 = 0x06;
pub(crate) const UNDEFINED: u8 = 0x07;
pub(crate) const SAME_VALUE: u8 = 0x08;
pub(crate) const REGISTER: u8 = 0x09;
pub(crate) const REMEMBER: u8 = 0x0a;
pub(crate) const RESTORE_STATE: u8 = 0x0b;
pub(crate) const DEF_CFA: u8 = 0x0c;
pub(crate) const DEF_CFA_REGISTER: u8 = 0x0d;
pub(crate) const DEF_CFA_OFFSET: u8 = 0x0e;
pub(crate) const DEF_CFA_EXPRESSION: u8 = 0x0f;
pub(crate) const EXPRESSION: u8 = 0x10;
pub(crate) const OFFSET_SF: u8 = 0x11;
pub(crate) const VAL_OFFSET: u8 = 0x14;
pub(crate) const VAL_EXPRESSION: u8 = 0x16;
pub(crate) const NEGATE_RA_STATE: u8 = 0x2d;
pub(crate) const NEGATE_RA_STATE_WITH_PC: u8 = 0x2c;

// Registers of x86-64.
pub(crate) const RBP: u8 = 6;
pub(crate) const RSP: u8 = 7;
pub(crate) const R10: u8 = 10;
pub(crate) const RIP: u8 = 16;

// Operations.
pub(crate) const DEREF: u8 = 0x06;
pub(crate) const BREG: u8 = 0x70;
pub(crate) const PLUS_CONST: u8 = 0x23;
pub(crate) const LIT: u8 = 0x30;
