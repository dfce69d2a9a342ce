//! Differences of two files.

use super::*;

#[test]
fn d4_tables_that_say_the_same_are_equal_whatever_their_form() {
    for (old, new) in [("recur.v1", "recur.v3"), ("recur.v2", "recur.v2e1_llvm")] {
        // The flags differ, the code is the same; V1 has no outermost frame either.
        let diff = done(&["diff", &object(old), &object(new)]);
        assert_eq!(diff, "0 functions changed, 0 added, 0 removed, 6 equal\n", "{old} {new}");
    }
    let directory = scratch("diff_built");
    let libc = support::c_library();
    let [v2, v3] = ["v2-pcrel", "v3"].map(|format| {
        let path: PathBuf = directory.join(format);
        let path = path.to_str().unwrap().to_owned();
        run(["sframe", "build", "--format", format, libc.to_str().unwrap(), "-o", &path]);
        path
    });
    let same = done(&["diff", "--raw", &v3, &v3]);
    assert!(same.starts_with("0 functions changed, 0 added, 0 removed, "), "{same}");
    // What only V3 can say.
    let output = sframe(&["diff", "--raw", "--json", &v2, &v3]);
    assert_eq!(output.status.code(), Some(1));
    let diff: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(diff["by"], "address");
    assert!(diff["equal"].as_u64().unwrap() > 1000, "{}", diff["equal"]);
    let functions = diff["functions"].as_array().unwrap();
    let count = |change: &str| functions.iter().filter(|f| f["change"] == change).count();
    for change in ["added", "removed", "changed"] {
        assert_eq!(diff[change], count(change), "{change}");
    }
    assert!(count("added") > 0 && count("added") + count("changed") < 200);
}

#[test]
fn d4_a_diff_says_which_functions_and_rows_differ() {
    type Rows = &'static [(u32, i32)];
    let table = |functions: &[(i64, u32, Rows)]| {
        functions.iter().fold(TableBuilder::amd64(2), |table, &(start, size, rows)| {
            let rows = rows.iter().map(|&(start, cfa)| Row::sp(start, &[cfa])).collect();
            table.function(Function::new(start, size, rows))
        })
    };
    let old = table(&[
        (0x1000, 0x20, &[(0, 8), (4, 16)]),
        (0x2000, 0x10, &[(0, 8)]),
        (0x3000, 0x10, &[(0, 8), (2, 16), (8, 24)]),
        (0x4000, 0x10, &[(0, 8), (5, 8)]),
        (0x1_0000, 0x10, &[(0, 8)]),
    ]);
    let new = table(&[
        (0x1000, 0x24, &[(0, 8), (4, 24)]),
        (0x3000, 0x10, &[(0, 8), (4, 16), (8, 24)]),
        (0x4000, 0x10, &[(0, 8)]),
        (0x5000, 0x8, &[(0, 8)]),
    ]);
    let [old, new] = [("old", old), ("new", new)].map(|(name, t)| file("rows", name, &t.build()));
    let output = sframe(&["diff", "--raw", &old, &new]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stdout),
        "changed  0x1000: 0x1000+0x20, now 0x1000+0x24\n  \
           - +0x4..+0x20       CFA=rsp+16 RA=*(CFA-8) FP=rbp\n  \
           + +0x4..+0x20       CFA=rsp+24 RA=*(CFA-8) FP=rbp\n  \
           - +0x20..+0x24      no row\n  \
           + +0x20..+0x24      CFA=rsp+24 RA=*(CFA-8) FP=rbp\n\
         removed  0x2000: 0x2000+0x10, 1 row\n\
         changed  0x3000: 0x3000+0x10, now 0x3000+0x10\n  \
           - +0x2..+0x4        CFA=rsp+16 RA=*(CFA-8) FP=rbp\n  \
           + +0x2..+0x4        CFA=rsp+8 RA=*(CFA-8) FP=rbp\n\
         added    0x5000: 0x5000+0x8, 1 row\n\
         removed  0x10000: 0x10000+0x10, 1 row\n\
         2 functions changed, 1 added, 2 removed, 1 equal\n"
    );
    assert!(stderr(&output).ends_with("differ in 5 functions\n"), "{}", stderr(&output));
}

/// What no comparison has looked at is not equal, though both files say the same.
#[test]
fn d4_a_diff_says_which_functions_are_unread_in_both_files() {
    let row = |start| Row::sp(start, &[8]);
    let functions = 0x1_0000 / 2000 + 2;
    let first = Function::new(0, 0x8000, (0..2000).map(row).collect());
    let table = (1..functions).fold(TableBuilder::amd64(2).function(first), |table, index| {
        table.function(Function::new(index * 0x1_0000, 0x8000, Vec::new()))
    });
    let mut bytes = table.build();
    for index in 1..usize::try_from(functions).unwrap() {
        let entry = &mut bytes[28 + 20 * index..][..20];
        entry[8..12].fill(0);
        entry[12..16].copy_from_slice(&2000_u32.to_le_bytes());
        entry[16] = 1;
    }
    let path = file("unread", "o", &bytes);
    let output = sframe(&["diff", "--raw", &path, &path]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    // The last one in the order of their addresses.
    let last =
        "unread   0x210000: 0x210000+0x8000, now 0x210000+0x8000\n    .sframe+0x2b0: too many";
    assert!(said.contains(last), "{said}");
    assert!(said.ends_with(&format!("{} equal, 2 unread\n", functions - 2)), "{said}");

    let output = sframe(&["diff", "--raw", "--json", &path, &path]);
    assert_eq!(output.status.code(), Some(1));
    let diff: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&diff["unread"], &diff["equal"]), (&2.into(), &(functions - 2).into()));
    assert_eq!(diff["functions"][0]["change"], "unread");
}

#[test]
fn d4_functions_that_only_moved_are_equal_by_name() {
    let [old, new] = ["recur.v2", "recur.v2e1_llvm"].map(object);
    let by_name = sframe(&["diff", "--by", "name", &old, &new]);
    assert_eq!(by_name.status.code(), Some(0));
    let by_address = sframe(&["diff", "--by", "address", &old, &new]);
    assert_eq!(by_address.status.code(), Some(1));
    let text = text(&by_address.stdout);
    assert!(text.contains("removed  .text+0x30: .text+0x30+0x34, "), "{text}");
}
