//! What is found of programs, by what they are and by the command that looks.

use std::fmt;

/// What a command makes of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// All its functions have their names; `None` where a command shows no functions.
    pub named: Option<bool>,
    /// Nine of ten stacks are complete; `None` where a command does not say.
    pub complete: Option<bool>,
    pub told: Told,
}

/// What a command tells of what it has not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Nothing,
    /// Once: which file, what was recorded, what is there now, and what to do.
    Whole,
    /// Something else, or too often.
    Wrong,
}

/// In letters: `N` named, `C` complete, `T` told, `-` not, `.` where the command does not say.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |is: Option<bool>, yes| is.map_or('.', |is| if is { yes } else { '-' });
        let told = match self.told {
            Told::Nothing => '-',
            Told::Whole => 'T',
            Told::Wrong => '?',
        };
        write!(f, "{}{}{told}", letter(self.named, 'N'), letter(self.complete, 'C'))
    }
}

/// What is to be found. `stack`, `explain`, `top` and `record` look at the program while it runs,
/// the others at the recording: after its end, but for containers that are not gone. `sample` is one of
/// it, explained, and `walked` one of a recording with stacks, which is walked when it is explained:
/// code that is gone then proves nothing, unless a dump has it.
pub const EXPECTED: &str = "\
kind            stack  explain top    record report folded script sample walked merged
Plain           NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
Static          NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
Stripped        NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
Linked          NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
Rebuilt         NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
RebuiltNotKept  NC-    NC-     N.-    .C-    -CT    -CT    -.T    -CT    --T    -CT
RebuiltNoId     NC-    NC-     N.-    .C-    -CT    -CT    -.T    -CT    --T    -CT
Removed         NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
RemovedNotKept  NC-    NC-     N.-    .C-    -CT    -CT    -.T    -CT    --T    -CT
Memory          NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
Mounted         NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
Moved           NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
MadeMap         NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    N--    NC-
MadeDump        NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
MadeUntold      -CT    -CT     -.T    .C-    -CT    -CT    -.T    -CT    --T    -CT
MadeForked      NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    N--    NC-
ContainerMap    NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    N--    NC-
ContainerDump   NC-    NC-     N.-    .C-    NC-    NC-    N.-    NC-    NC-    NC-
ContainerGone   NC-    NC-     N.-    .C-    -CT    -CT    -.T    -CT    --T    -CT
";

/// The first line of [`EXPECTED`].
pub fn heading() -> &'static str {
    EXPECTED.lines().next().unwrap()
}

/// A line of the same form.
pub fn line(kind: &str, cells: &[Cell]) -> String {
    let mut line = format!("{kind:16}");
    for (at, cell) in cells.iter().enumerate() {
        // `explain` is wider by one.
        line += &format!("{cell:<0$}", if at == 1 { 8 } else { 7 }, cell = cell.to_string());
    }
    line.trim_end().to_owned()
}

/// The line of [`EXPECTED`] that is of a kind.
pub fn expected(kind: &str) -> &'static str {
    let is_of = |line: &&str| line.split(' ').next() == Some(kind);
    EXPECTED.lines().find(is_of).unwrap_or_else(|| panic!("no line is of {kind}"))
}
