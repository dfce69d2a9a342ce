//! The names of code that an interpreter executes, as an engine finds them and walks use them: a call has the
//! number of its code.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use unwind_target::Untrusted;

/// About how many bytes they take; those beyond have no name.
const BYTES: usize = 64 << 20;

/// A function of a program, as its interpreter has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterpretedCode {
    /// Its name; `None` if that could not be read, since it was gone.
    pub function: Option<Untrusted>,
    /// The path of its source.
    pub file: Option<Untrusted>,
}

impl InterpretedCode {
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
    /// The number of some code. Those that have no room share the number of what has no name.
    pub(crate) fn number(&self, code: InterpretedCode) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = known.numbers.get(&code) {
            return number;
        }
        let number = u32::try_from(known.codes.len()).unwrap_or(u32::MAX);
        let size = known.size.saturating_add(code.size());
        if size > BYTES {
            return u32::MAX;
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
        code.unwrap_or_else(|| Arc::new(InterpretedCode { function: None, file: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_code_has_one_number_and_a_number_of_none_has_no_name() {
        let names = CodeNames::default();
        let code = |name: &str| InterpretedCode { function: Some(name.into()), file: None };
        let numbers = ["f", "g", "f"].map(|name| names.clone().number(code(name)));
        assert_eq!(numbers, [0, 1, 0]);
        assert_eq!(*names.code(1), code("g"));
        assert_eq!(names.code(2).function, None);
        // One without room has no name, and takes that of none.
        let long = "x".repeat(BYTES);
        assert_eq!(names.code(names.number(code(&long))).function, None);
        assert_eq!(names.number(code("g")), 1);
    }
}
