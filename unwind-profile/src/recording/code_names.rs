//! The names of code that an interpreter executes, as an engine finds them and walks use them: a call has the
//! number of its code.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use unwind_target::Untrusted;

/// About how many bytes they take; those beyond have no name.
const BYTES: usize = 64 << 20;

/// What a function is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Language {
    Python,
    JavaScript,
    Wasm,
}

impl Language {
    const ALL: [Self; 3] = [Self::Python, Self::JavaScript, Self::Wasm];

    /// Its name, as [`InterpretedFrame`](unwind_target::InterpretedFrame) has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::Wasm => "wasm",
        }
    }

    /// What stands after the name of a function in texts whose frames have no kind.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Python => "_[p]",
            Self::JavaScript => "_[js]",
            Self::Wasm => "_[wasm]",
        }
    }

    /// That of a name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.name() == name)
    }
}

/// A function of a program, as its interpreter has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterpretedCode {
    pub language: Language,
    /// Its name; `None` if that could not be read, since it was gone, and in
    /// [`MAYBE_INLINED`](Self::MAYBE_INLINED).
    pub function: Option<Untrusted>,
    /// The path of its source.
    pub file: Option<Untrusted>,
}

impl InterpretedCode {
    /// What may be inlined in its caller: V8 does not keep which function it executes.
    pub const MAYBE_INLINED: Self =
        Self { language: Language::JavaScript, function: None, file: None };

    /// About how many bytes it takes.
    fn size(&self) -> usize {
        let len = |text: &Option<Untrusted>| text.as_ref().map_or(0, |text| text.as_bytes().len());
        let names = len(&self.function).saturating_add(len(&self.file));
        size_of::<Self>().saturating_add(names)
    }
}

/// A call of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpretedCall {
    pub code: Arc<InterpretedCode>,
    /// Where it is in the source, from 1; 0 if that is not known.
    pub line: u32,
}

/// The names, shared by who finds and who uses them.
#[derive(Clone, Debug, Default)]
pub struct CodeNames(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    codes: Vec<Arc<InterpretedCode>>,
    numbers: HashMap<Arc<InterpretedCode>, u32>,
    size: usize,
}

impl CodeNames {
    /// The number of some code. Those that have no room share the number of what has no name in their language.
    pub(crate) fn number(&self, code: InterpretedCode) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = known.numbers.get(&code) {
            return number;
        }
        let number = u32::try_from(known.codes.len()).unwrap_or(u32::MAX);
        let size = known.size.saturating_add(code.size());
        if size > BYTES {
            return nameless(&code);
        }
        known.size = size;
        let code = Arc::new(code);
        known.codes.push(Arc::clone(&code));
        known.numbers.insert(code, number);
        number
    }

    /// The code of a number.
    pub(crate) fn code(&self, number: u32) -> Arc<InterpretedCode> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let code = usize::try_from(number).ok().and_then(|at| known.codes.get(at)).cloned();
        code.unwrap_or_else(|| Arc::new(named_so(number)))
    }
}

/// The number of what has no room for its name.
fn nameless(code: &InterpretedCode) -> u32 {
    match code.language {
        _ if *code == InterpretedCode::MAYBE_INLINED => u32::MAX - 3,
        Language::Wasm => u32::MAX - 2,
        Language::JavaScript => u32::MAX - 1,
        Language::Python => u32::MAX,
    }
}

/// What has such a number.
fn named_so(number: u32) -> InterpretedCode {
    const SCRIPT: &str = "[unknown javascript function]";
    let nameless = |language| InterpretedCode { language, function: None, file: None };
    match u32::MAX.saturating_sub(number) {
        3 => InterpretedCode::MAYBE_INLINED,
        2 => nameless(Language::Wasm),
        1 => InterpretedCode { function: Some(SCRIPT.into()), ..nameless(Language::JavaScript) },
        _ => nameless(Language::Python),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_code_has_one_number_and_a_number_of_none_has_no_name() {
        let names = CodeNames::default();
        let language = Language::JavaScript;
        let code =
            |name: &str| InterpretedCode { language, function: Some(name.into()), file: None };
        let numbers = ["f", "g", "f"].map(|name| names.clone().number(code(name)));
        assert_eq!(numbers, [0, 1, 0]);
        assert_eq!(*names.code(1), code("g"));
        assert_eq!(names.code(2).function, None);
        // One without room has the name of none in its language, and what may be inlined stays that.
        let long = "x".repeat(BYTES);
        let known = names.code(names.number(code(&long)));
        assert_eq!(known.function, Some("[unknown javascript function]".into()));
        let python = InterpretedCode { language: Language::Python, ..code(&long) };
        let known = names.code(names.number(python));
        assert_eq!((known.language, &known.function), (Language::Python, &None));
        let inlined = names.number(InterpretedCode::MAYBE_INLINED);
        assert_eq!(*names.code(inlined), InterpretedCode::MAYBE_INLINED);
        assert_eq!(names.number(code("g")), 1);
    }
}
