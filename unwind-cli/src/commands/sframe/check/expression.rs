//! Expressions of call frame information as people write them.

use gimli::{Encoding, EndianSlice, Format, Operation, RunTimeEndian};

/// An operand, and whether it has to be put in parentheses in a product.
struct Term {
    text: String,
    is_sum: bool,
}

impl Term {
    const fn atom(text: String) -> Self {
        Self { text, is_sum: false }
    }

    /// As an operand of an operator that binds tighter than a sum.
    fn factor(self) -> String {
        if self.is_sum { format!("({})", self.text) } else { self.text }
    }
}

/// The expression at an offset of `bytes`, if all its operations have a sign.
///
/// A block's length stands before it. One byte of it does: longer expressions
/// are not to be read.
pub(super) fn infix(bytes: &[u8], at: u64, endian: RunTimeEndian) -> Option<String> {
    let at = usize::try_from(at).ok()?;
    let len = usize::from(*bytes.get(at.checked_sub(1)?)?);
    let expression = bytes.get(at..at.checked_add(len)?)?;
    let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
    let expression = gimli::Expression(EndianSlice::new(expression, endian));
    let mut operations = expression.operations(encoding);
    let mut stack = Vec::new();
    while let Some(operation) = operations.next().ok()? {
        let term = term(operation, &mut stack)?;
        stack.push(term);
    }
    match stack.as_slice() {
        [only] => Some(only.text.clone()),
        _ => None,
    }
}

/// What an operation leaves on the stack.
fn term(
    operation: Operation<EndianSlice<'_, RunTimeEndian>>,
    stack: &mut Vec<Term>,
) -> Option<Term> {
    let sum = |text| Some(Term { text, is_sum: true });
    let operator = match operation {
        Operation::RegisterOffset { register, offset: 0, .. } => {
            return Some(Term::atom(format!("r{}", register.0)));
        }
        Operation::RegisterOffset { register, offset, .. } => {
            return sum(format!("r{}{offset:+}", register.0));
        }
        Operation::UnsignedConstant { value } => return Some(Term::atom(value.to_string())),
        Operation::SignedConstant { value } => return Some(Term::atom(value.to_string())),
        Operation::Deref { space: false, .. } => {
            let address = stack.pop()?;
            return Some(Term::atom(format!("*({})", address.text)));
        }
        Operation::PlusConstant { value } => {
            let term = stack.pop()?;
            return sum(format!("{}+{value}", term.text));
        }
        Operation::Plus => {
            let (second, first) = (stack.pop()?, stack.pop()?);
            return sum(format!("{}+{}", first.text, second.text));
        }
        Operation::Mul => "*",
        Operation::And => "&",
        Operation::Shl => "<<",
        Operation::Ge => ">=",
        _ => return None,
    };
    let (second, first) = (stack.pop()?, stack.pop()?);
    Some(Term::atom(format!("({}{operator}{})", first.factor(), second.factor())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(operations: &[u8]) -> Option<String> {
        let mut bytes = vec![0, u8::try_from(operations.len()).unwrap()];
        bytes.extend(operations);
        infix(&bytes, 2, RunTimeEndian::Little)
    }

    #[test]
    fn operands_stand_around_their_operators() {
        // breg7 +16, deref, plus_uconst 8
        assert_eq!(text(&[0x77, 16, 0x06, 0x23, 8]).unwrap(), "*(r7+16)+8");
        // breg7 +16, breg9 0, lit8, mul, plus, deref
        let indexed = [0x77, 16, 0x79, 0, 0x38, 0x1e, 0x22, 0x06];
        assert_eq!(text(&indexed).unwrap(), "*(r7+16+(r9*8))");
        // breg7 +8, breg16 0, lit15, and, lit11, ge, lit3, shl, plus
        let lazy = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(text(&lazy).unwrap(), "r7+8+(((r16&15)>=11)<<3)");
        // lit2, breg7 +1, mul
        assert_eq!(text(&[0x32, 0x77, 1, 0x1e]).unwrap(), "(2*(r7+1))");
    }

    #[test]
    fn what_has_no_sign_or_no_sense_has_no_text() {
        // An operation without a sign (xor), one operand too few, two results,
        // an unknown operation, one that is cut off.
        for operations in
            [&[0x31, 0x32, 0x27][..], &[0x31, 0x22], &[0x31, 0x32], &[0x01], &[0x77], &[]]
        {
            assert_eq!(text(operations), None, "{operations:02x?}");
        }
        assert_eq!(infix(&[1, 0x31], 0, RunTimeEndian::Little), None);
        assert_eq!(infix(&[2, 0x31], 1, RunTimeEndian::Little), None);
        assert_eq!(infix(&[1, 0x31], u64::MAX, RunTimeEndian::Little), None);
    }
}
