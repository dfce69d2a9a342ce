//! The bits of a number, taken with a sign or without one: what `cast_signed` and
//! `cast_unsigned` do since Rust 1.87.

/// An integer without a sign.
pub(crate) trait Unsigned {
    type Signed;

    fn signed(self) -> Self::Signed;
}

/// An integer with a sign.
pub(crate) trait Signed {
    type Unsigned;

    fn unsigned(self) -> Self::Unsigned;
}

macro_rules! pair {
    ($unsigned:ident $signed:ident) => {
        impl Unsigned for $unsigned {
            type Signed = $signed;

            #[inline(always)]
            fn signed(self) -> $signed {
                $signed::from_ne_bytes(self.to_ne_bytes())
            }
        }

        impl Signed for $signed {
            type Unsigned = $unsigned;

            #[inline(always)]
            fn unsigned(self) -> $unsigned {
                $unsigned::from_ne_bytes(self.to_ne_bytes())
            }
        }
    };
}

pair!(u8 i8);
pair!(u32 i32);
pair!(u64 i64);
