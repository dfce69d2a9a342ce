//! The known call chains: what the programs' sources say.
//!
//! All of them: a chain that is not here is wrong. It is written innermost
//! first; `name*n` is a recursion of exactly `n` frames, `name*1-n` of as many
//! as there are at that time.

/// The chains of one program.
pub(crate) struct Known {
    pub(crate) program: &'static str,
    pub(crate) chains: &'static [&'static str],
}

/// All programs.
pub(crate) const PROGRAMS: &[Known] = &[
    Known {
        program: "frame-pointers",
        chains: &[
            "_start",
            "main _start",
            "fp_outer main _start",
            "fp_inner fp_outer main _start",
            "fp_leaf fp_inner fp_outer main _start",
            "fp_kernel fp_inner fp_outer main _start",
            "fp_deep*1-12 main _start",
            "fp_bottom fp_deep*12 main _start",
        ],
    },
    Known {
        program: "tables",
        chains: &[
            "_start",
            "main _start",
            "table_top main _start",
            "table_variable table_top main _start",
            "table_leaf table_variable table_top main _start",
            "table_deep*1-24 table_top main _start",
            "table_bottom table_deep*24 table_top main _start",
            "table_leaf table_bottom table_deep*24 table_top main _start",
            "table_kernel table_bottom table_deep*24 table_top main _start",
        ],
    },
    Known {
        program: "compat",
        chains: &[
            "_start",
            "main _start",
            "compat_deep*1-8 main _start",
            "compat_outer compat_deep*8 main _start",
            "compat_inner compat_outer compat_deep*8 main _start",
            "compat_leaf compat_inner compat_outer compat_deep*8 main _start",
            "compat_kernel compat_inner compat_outer compat_deep*8 main _start",
        ],
    },
    Known {
        program: "nested",
        chains: &[
            "_start",
            "main _start",
            "nested_outer main _start",
            "nested_raise nested_outer main _start",
            // The handler was called by the kernel, which left the trampoline
            // to return to; below it is what the signal interrupted.
            "trampoline nested_raise nested_outer main _start",
            "nested_handler trampoline nested_raise nested_outer main _start",
            "nested_inner nested_handler trampoline nested_raise nested_outer main _start",
            "nested_leaf nested_inner nested_handler trampoline nested_raise nested_outer \
             main _start",
            "nested_kernel nested_inner nested_handler trampoline nested_raise nested_outer \
             main _start",
        ],
    },
    Known {
        program: "exits",
        chains: &[
            "_start",
            "main _start",
            "exit_outer main _start",
            "exit_inner exit_outer main _start",
            "exit_now exit_inner exit_outer main _start",
        ],
    },
    Known {
        program: "executes",
        chains: &[
            "_start",
            "main _start",
            "exec_outer main _start",
            "exec_inner exec_outer main _start",
            "exec_now exec_inner exec_outer main _start",
        ],
    },
    Known {
        program: "executed",
        chains: &[
            "_start",
            "main _start",
            "second_outer main _start",
            "second_inner second_outer main _start",
            "second_now second_inner second_outer main _start",
        ],
    },
    Known {
        program: "forks",
        chains: &[
            "_start",
            "main _start",
            "fork_outer main _start",
            "fork_now fork_outer main _start",
            "fork_child fork_now fork_outer main _start",
            "fork_parent fork_now fork_outer main _start",
        ],
    },
    Known {
        program: "records",
        chains: &[
            "_start",
            "main _start",
            "traced_part main _start",
            "traced_leaf traced_part main _start",
            "record_deep*1-40 main _start",
            "record_bottom record_deep*40 main _start",
        ],
    },
    Known {
        program: "crashes",
        chains: &[
            "_start",
            "main _start",
            "crash_outer main _start",
            "crash_now crash_outer main _start",
        ],
    },
];

/// Whether a program has this chain of functions, or, if it is only the begin
/// of one, whether some chain begins so.
pub(crate) fn is_known(program: &str, functions: &[&str], is_begin: bool) -> bool {
    PROGRAMS
        .iter()
        .filter(|known| known.program == program)
        .flat_map(|known| known.chains)
        .any(|chain| matches(chain, functions, is_begin))
}

fn matches(chain: &str, functions: &[&str], is_begin: bool) -> bool {
    let mut left = functions;
    for part in chain.split_whitespace() {
        if is_begin && left.is_empty() {
            return true;
        }
        let (name, most, least) = match part.split_once('*') {
            None => (part, 1, 1),
            Some((name, count)) => match count.split_once('-') {
                None => (name, number(count), number(count)),
                Some((least, most)) => (name, number(most), number(least)),
            },
        };
        let found = left.iter().take_while(|function| **function == name).count();
        let ends_here = is_begin && found == left.len();
        if found > most || (found < least && !ends_here) {
            return false;
        }
        left = &left[found..];
    }
    left.is_empty()
}

fn number(text: &str) -> usize {
    text.parse().expect("a number in a chain")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_known_with_the_right_depth_of_a_recursion_only() {
        let deep = |count| [vec!["fp_deep"; count], vec!["main", "_start"]].concat();
        for count in 1..=12 {
            assert!(is_known("frame-pointers", &deep(count), false), "{count}");
        }
        assert!(!is_known("frame-pointers", &deep(13), false));
        let bottom = |count| [vec!["fp_bottom"], deep(count)].concat();
        assert!(is_known("frame-pointers", &bottom(12), false));
        assert!(!is_known("frame-pointers", &bottom(11), false), "a frame is missing");
        assert!(!is_known("tables", &bottom(12), false), "of another program");
    }

    #[test]
    fn a_missing_or_a_wrong_frame_makes_a_chain_unknown() {
        let whole = ["exit_now", "exit_inner", "exit_outer", "main", "_start"];
        assert!(is_known("exits", &whole, false));
        for missing in 0..whole.len() - 1 {
            let mut cut = whole.to_vec();
            cut.remove(missing);
            // Without its innermost function it is another chain.
            assert_eq!(is_known("exits", &cut, false), missing == 0, "{cut:?}");
        }
        assert!(!is_known("exits", &whole[..4], false), "the outermost frame is missing");
        assert!(is_known("exits", &whole[..4], true));
        assert!(!is_known("exits", &["exit_now", "exit_outer"], true));
    }
}
