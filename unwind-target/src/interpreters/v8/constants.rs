//! The layout of V8's objects and frames: by the constants that it has for debuggers (`v8dbg_*`), and by version
//! where there is none.

use std::collections::BTreeMap;

use unwind_core::Memory;

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};

/// Where each constant is, by its name without the prefix.
pub(super) type Constants = BTreeMap<Vec<u8>, u64>;

/// The first two numbers of a version of V8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

/// Offsets are from an object's start, and those of frames are below the frame pointer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) frame: FrameLayout,
    pub(super) types: Types,
    pub(super) string: StringLayout,
    pub(super) function: FunctionLayout,
    pub(super) scope: ScopeLayout,
    pub(super) script: ScriptLayout,
    pub(super) bytecode: BytecodeLayout,
    pub(super) code: CodeLayout,
    pub(super) deopt: DeoptLayout,
    /// Where an object's map has its type.
    pub(super) instance_type: u64,
    pub(super) array_length: u64,
    pub(super) array_data: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FrameLayout {
    pub(super) marker: u64,
    pub(super) function: u64,
    pub(super) bytecode: u64,
    pub(super) bytecode_offset: u64,
    /// The kind of frames of WebAssembly.
    pub(super) wasm: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Types {
    pub(super) shared: u64,
    pub(super) scope: u64,
    pub(super) script: u64,
    pub(super) bytecode: u64,
    /// What instructions are in.
    pub(super) instructions: u64,
    pub(super) fixed_array: u64,
    /// What tables are in.
    pub(super) bytes: u64,
    pub(super) first_other_than_string: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StringLayout {
    pub(super) length: u64,
    pub(super) chars: u64,
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) parent: u64,
    pub(super) offset: u64,
    pub(super) actual: u64,
    /// Where an external string keeps the address of its text.
    pub(super) external: u64,
    pub(super) form_mask: u64,
    pub(super) narrow_mask: u64,
    pub(super) sequential: u64,
    pub(super) cons: u64,
    pub(super) sliced: u64,
    pub(super) thin: u64,
    pub(super) outside: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionLayout {
    pub(super) shared: u64,
    pub(super) name: u64,
    pub(super) script: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ScopeLayout {
    /// The flags are a small integer of V8's.
    pub(super) tagged_flags: bool,
    /// The places are before the variables.
    pub(super) places_first: bool,
    /// The kind of scope that a module has.
    pub(super) module: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptLayout {
    pub(super) source: u64,
    pub(super) name: u64,
    pub(super) line_offset: u64,
    pub(super) line_ends: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct BytecodeLayout {
    pub(super) positions: u64,
    pub(super) data: u64,
    /// How many there are.
    pub(super) count: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CodeLayout {
    /// Where instructions start in what they are in.
    pub(super) header: u64,
    /// The code object is the header, and else at this offset of it.
    pub(super) object: Option<u64>,
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) flags: u64,
    pub(super) kind_mask: u64,
    pub(super) baseline: u64,
    pub(super) deopt: u64,
    pub(super) positions: u64,
}

/// Indices of an array.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeoptLayout {
    pub(super) inlined: u64,
    pub(super) literals: u64,
    /// In each version after the function that was compiled, or what has that.
    pub(super) places: u64,
    /// Where that has it, in bytes.
    pub(super) wrapped: u64,
}

/// What no constant tells.
struct Unnamed {
    positions: u64,
    bytecodes: u64,
    tagged_flags: bool,
    places_first: bool,
    module: u64,
    size: u64,
    flags: u64,
    deopt: u64,
    code_positions: u64,
}

impl Version {
    fn unnamed(self) -> Result<Unnamed, Doubt> {
        let old = Unnamed {
            positions: 32,
            bytecodes: 198,
            tagged_flags: true,
            places_first: false,
            module: 3,
            size: 40,
            flags: 48,
            deopt: 16,
            code_positions: 24,
        };
        let trusted = Unnamed {
            positions: 24,
            bytecodes: 203,
            size: 52,
            deopt: 8,
            code_positions: 16,
            ..old
        };
        match (self.major, self.minor) {
            (10, 1 | 2) => Ok(old),
            (11, 3) => Ok(Unnamed { size: 56, ..old }),
            (12, 4) => Ok(trusted),
            (13, 6) => Ok(Unnamed {
                bytecodes: 208,
                tagged_flags: false,
                places_first: true,
                module: 5,
                size: 56,
                flags: 52,
                ..trusted
            }),
            _ => Err(Doubt::Version),
        }
    }
}

/// The values of constants.
struct Values<'c, 'b, 'm, M> {
    constants: &'c Constants,
    memory: &'b mut BoundedMemory<'m, M>,
}

impl<M: Memory> Values<'_, '_, '_, M> {
    /// The value of the constant whose name starts so; fields have their type after it.
    fn maybe(&mut self, start: &str) -> Result<Option<u64>, Doubt> {
        let start = start.as_bytes();
        let mut from = self.constants.range(start.to_vec()..);
        match from.next().filter(|(name, _)| name.starts_with(start)) {
            Some((_, &addr)) => {
                let value = self.memory.half(addr, 0)?.cast_signed();
                Ok(Some(u64::from(value.unsigned_abs())))
            }
            None => Ok(None),
        }
    }

    fn of(&mut self, start: &str) -> Result<u64, Doubt> {
        self.maybe(start)?.ok_or(Doubt::Version)
    }
}

impl Layout {
    /// The layout of a version.
    ///
    /// # Errors
    ///
    /// [`Doubt::Version`] if it is not known, another if the constants cannot be read.
    pub(super) fn of<M: Memory>(
        version: Version,
        constants: &Constants,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<Self, Doubt> {
        let unnamed = version.unnamed()?;
        let mut value = Values { constants, memory };
        let v = &mut value;
        let stream = v.maybe("class_InstructionStream__instruction_start__")?;
        let name = v.of("class_Script__name__")?;
        Ok(Self {
            frame: FrameLayout {
                marker: v.of("off_fp_context_or_frame_type")?,
                function: v.of("off_fp_function")?,
                bytecode: v.of("off_fp_bytecode_array")?,
                bytecode_offset: v.of("off_fp_bytecode_offset")?,
                wasm: v.of("frametype_WasmFrame")?,
            },
            types: Types {
                shared: v.of("type_SharedFunctionInfo__")?,
                scope: v.of("type_ScopeInfo__")?,
                script: v.of("type_Script__")?,
                bytecode: v.of("type_BytecodeArray__")?,
                instructions: match stream {
                    Some(_) => v.of("type_InstructionStream__")?,
                    None => v.of("type_Code__")?,
                },
                fixed_array: v.of("type_FixedArray__FIXED_ARRAY_TYPE")?,
                bytes: match v.maybe("type_TrustedByteArray__")? {
                    Some(bytes) => bytes,
                    None => v.of("type_ByteArray__")?,
                },
                first_other_than_string: v.of("FirstNonstringType")?,
            },
            string: StringLayout {
                length: v.of("class_String__length__")?,
                chars: v.of("class_SeqOneByteString__chars__")?,
                first: v.of("class_ConsString__first__")?,
                second: v.of("class_ConsString__second__")?,
                parent: v.of("class_SlicedString__parent__")?,
                offset: v.of("class_SlicedString__offset__")?,
                actual: v.of("class_ThinString__actual__")?,
                external: v.of("class_ExternalString__resource__")?.saturating_add(8),
                form_mask: v.of("StringRepresentationMask")?,
                narrow_mask: v.of("OneByteStringTag")?,
                sequential: v.of("SeqStringTag")?,
                cons: v.of("ConsStringTag")?,
                sliced: v.of("SlicedStringTag")?,
                thin: v.of("ThinStringTag")?,
                outside: v.of("ExternalStringTag")?,
            },
            function: FunctionLayout {
                shared: v.of("class_JSFunction__shared__")?,
                name: v.of("class_SharedFunctionInfo__name_or_scope_info__")?,
                script: match v.maybe("class_SharedFunctionInfo__raw_script__")? {
                    Some(script) => script,
                    None => v.of("class_SharedFunctionInfo__script_or_debug_info__")?,
                },
            },
            scope: ScopeLayout {
                tagged_flags: unnamed.tagged_flags,
                places_first: unnamed.places_first,
                module: unnamed.module,
            },
            script: ScriptLayout {
                source: v.of("class_Script__source__")?,
                name,
                line_offset: name.saturating_add(8),
                line_ends: v.of("class_Script__line_ends__")?,
            },
            bytecode: BytecodeLayout {
                positions: unnamed.positions,
                data: v.of("class_BytecodeArray__data__")?,
                count: unnamed.bytecodes,
            },
            code: CodeLayout {
                header: match stream {
                    Some(header) => header,
                    None => v.of("class_Code__instruction_start__")?,
                },
                object: stream.map(|_| 8),
                start: v.maybe("class_Code__instruction_start__Address")?.unwrap_or(40),
                size: v.maybe("class_Code__instruction_size__")?.unwrap_or(unnamed.size),
                flags: v.maybe("class_Code__flags__")?.unwrap_or(unnamed.flags),
                kind_mask: v.of("CodeKindFieldMask")?,
                baseline: v.of("CodeKindBaseline")?,
                deopt: unnamed.deopt,
                positions: unnamed.code_positions,
            },
            deopt: DeoptLayout {
                inlined: v.maybe("DeoptimizationDataInlinedFunctionCountIndex")?.unwrap_or(1),
                literals: v.maybe("DeoptimizationDataLiteralArrayIndex")?.unwrap_or(2),
                places: v.maybe("DeoptimizationDataInliningPositionsIndex")?.unwrap_or(7),
                wrapped: 8,
            },
            instance_type: v.of("class_Map__instance_type__")?,
            array_length: v.of("class_FixedArrayBase__length__")?,
            array_data: v.of("class_FixedArray__data__")?,
        })
    }
}
