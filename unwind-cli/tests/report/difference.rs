//! The page of two recordings.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::page::{data_of, shown};
use crate::{WITHOUT_FRAME_POINTERS, record, recording, support, text, unwind};

fn page(before: &Path, after: &Path) -> Vec<u8> {
    let files = [before.to_str().unwrap(), after.to_str().unwrap()];
    let output = unwind(&[&["report", "--format", "html", "--diff"], &files[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    output.stdout
}

/// The names of the functions above the bound, with 1 if they take more and -1 if less.
fn above(page: &Value) -> Vec<(String, i64)> {
    let functions = page["difference"]["functions"].as_array().unwrap().iter();
    let name = |row: &Value| {
        let frame = usize::try_from(row[0].as_u64().unwrap()).unwrap();
        page["frames"][frame][0].as_str().unwrap().to_owned()
    };
    let rows = functions.map(|row| (name(row), row[3].as_i64().unwrap()));
    rows.filter(|(_, mark)| *mark != 0).collect()
}

fn sum(column: &Value) -> u64 {
    column.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
}

#[test]
fn d16_a_page_of_two_recordings_colours_what_is_above_the_bound_alone() {
    let Some(before) = recording("report_page_before", b"nested", &[]) else { return };
    let again = before.with_file_name("again.data");
    fs::copy(&before, &again).unwrap();
    let same = data_of(&page(&before, &again));
    assert_eq!(above(&same), []);
    assert_eq!(sum(&same["nodes"][2]), sum(&same["difference"]["own_before"]));
    let Some(other) = support::compile("report_page_other", "sorting.c", WITHOUT_FRAME_POINTERS)
    else {
        return;
    };
    // It runs for some hundredths of a second, which few samples tell little of.
    let Some(after) = record(&other, &["-F", "9999"]) else { return };
    let page = page(&before, &after);
    let data = data_of(&page);
    let above = above(&data);
    let is_there = |name: &str, mark| above.iter().any(|row| row.0 == name && row.1 == mark);
    assert!(is_there("innermost", -1) && above.iter().any(|(_, mark)| *mark == 1), "{above:?}");
    // Those that take more come first, and each frame has the colour of its function.
    assert_eq!(above[0].1, 1);
    let word = |node: usize| {
        let way = usize::try_from(data["nodes"][3][node].as_u64().unwrap()).unwrap();
        data["found"][way]["word"].as_str().unwrap()
    };
    let frames = data["nodes"][0].as_array().unwrap().iter().enumerate();
    let name =
        |frame: &Value| &data["frames"][usize::try_from(frame.as_u64().unwrap()).unwrap()][0];
    let innermost = frames.filter(|(_, frame)| name(frame) == "innermost").map(|(at, _)| word(at));
    let innermost: Vec<&str> = innermost.collect();
    assert!(!innermost.is_empty() && innermost.iter().all(|word| *word == "less"), "{innermost:?}");

    let file = before.with_file_name("page.html");
    fs::write(&file, &page).unwrap();
    let Some(dom) = shown(&file, "view=functions&search=innermost") else { return };
    let (_, rows) = dom.split_once("<tbody id=\"difference-rows\">").unwrap();
    let (rows, _) = rows.split_once("</tbody>").unwrap();
    assert!(rows.contains("swatch found-1") && rows.matches("<tr>").count() == 1, "{rows}");
    assert!(rows.contains(">innermost</button>") && rows.contains("<td>-"), "{rows}");
}

#[test]
fn d16_pairs_of_recordings_are_compared_together() {
    let before = recording("report_pairs_before", b"nested", &[]);
    let after = recording("report_pairs_after", b"nested", &[]);
    let (Some(before), Some(after)) = (before, after) else { return };
    let [again, bad] = ["again.data", "bad.data"].map(|name| before.with_file_name(name));
    fs::copy(&after, &again).unwrap();
    fs::write(&bad, "no recording").unwrap();
    let compared = |pairs: &[[&Path; 2]]| {
        let pair = |pair: &[&Path; 2]| {
            let [before, after] = pair.map(|file| file.to_str().unwrap().to_owned());
            ["--diff".to_owned(), before, after]
        };
        let arguments: Vec<String> = pairs.iter().flat_map(pair).collect();
        let arguments = arguments.iter().map(String::as_str);
        unwind(&["report"].into_iter().chain(arguments).collect::<Vec<_>>())
    };
    let one = compared(&[[&before, &after]]);
    assert!(text(&one.stdout).contains("of their share in this pair: "), "{}", text(&one.stdout));
    // In any order: each recording is with the other one of its pair.
    let two = compared(&[[&after, &before], [&before, &again]]);
    assert!(two.status.success(), "{}", text(&two.stderr));
    let table = text(&two.stdout);
    assert!(
        table.contains("of their share in 2 pairs: ") && table.contains(" and 1 more, "),
        "{table}"
    );
    assert!(table.contains("\n0 of "), "{table}");
    // A recording that cannot be read is told of, and its pair left out.
    let with_bad = compared(&[[&before, &after], [&again, &bad]]);
    assert!(!with_bad.status.success() && text(&with_bad.stderr).contains("bad.data"));
    assert!(text(&with_bad.stdout).contains("of their share in this pair: "));
    // One recording says nothing of how runs differ.
    let twice = compared(&[[&before, &after], [&before, &again]]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(text(&twice.stderr).contains("is given twice"), "{}", text(&twice.stderr));
}

#[test]
fn d16_a_program_in_another_folder_is_compared_with_itself() {
    let Some(before) = recording("report_folder_before", b"nested", &[]) else { return };
    let folder = before.with_file_name("release");
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("nested");
    support::copy_program(before.with_file_name("nested"), &program);
    let Some(after) = record(&program, &[]) else { return };
    let files = [before.to_str().unwrap(), after.to_str().unwrap()];
    let output = unwind(&[&["report", "--output", "-", "--diff"], &files[..]].concat());
    let table = text(&output.stdout);
    let rows: Vec<&str> = table.lines().filter(|line| line.contains("innermost (")).collect();
    let [row] = rows[..] else { panic!("{table}") };
    assert!(row.ends_with("  innermost (nested)") && !row.contains(" 0.00 %"), "{table}");
}
