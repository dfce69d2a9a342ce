//! The page for a browser: what is in it, and what a browser makes of it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use memchr::memmem;
use serde_json::Value;
use test_support::{skip, tool};

use crate::{WITHOUT_FRAME_POINTERS, folded, record, recording, report, support, text};

/// The data of a page, with its columns.
pub(super) fn data_of(page: &[u8]) -> Value {
    let start = b"<script type=\"application/json\" id=\"data\">";
    let mut data: Value = serde_json::from_slice(element(page, start)).unwrap();
    let column = |name: &str| -> Value {
        let start = format!("<script type=\"application/json\" data-column=\"{name}\">");
        let parts = memmem::find_iter(page, start.as_bytes());
        let parts = parts.flat_map(|at| {
            let part = element(&page[at..], start.as_bytes());
            serde_json::from_slice::<Vec<Value>>(part).unwrap()
        });
        parts.collect()
    };
    data["nodes"] = ["frame", "caller", "own", "found"]
        .map(|of| column(&format!("nodes.{of}")))
        .into_iter()
        .collect();
    data["cells"] = ["thread", "span", "node", "count"]
        .map(|of| column(&format!("cells.{of}")))
        .into_iter()
        .collect();
    data
}

/// What is between the first `start` and the end of that element.
fn element<'p>(page: &'p [u8], start: &[u8]) -> &'p [u8] {
    let at = memmem::find(page, start).unwrap() + start.len();
    let len = memmem::find(&page[at..], b"</script>").unwrap();
    &page[at..at + len]
}

pub(super) fn numbers(column: &Value) -> Vec<usize> {
    let column = column.as_array().unwrap();
    column.iter().map(|number| usize::try_from(number.as_u64().unwrap()).unwrap()).collect()
}

#[test]
fn d15_a_page_has_each_sample_once_in_its_stacks_and_on_its_time_line() {
    let Some(data) = recording("report_page", b"nested", &[]) else { return };
    let stacks = folded(&data);
    let samples: u64 = stacks.iter().map(|(_, count)| count).sum();
    let samples = usize::try_from(samples).unwrap();
    let page = report(&data, "html");
    let all = data_of(&page);
    assert_eq!(numbers(&serde_json::json!([all["ledger"]["written"]])), [samples]);
    assert!(all["notes"].as_str().unwrap().contains(&format!("{samples} samples:")));
    let [frame, caller, own, found] = [0, 1, 2, 3].map(|column| numbers(&all["nodes"][column]));
    assert_eq!(own.iter().sum::<usize>(), samples);
    // A caller comes before what it calls, and a root is its own.
    assert!(caller.iter().enumerate().all(|(at, &caller)| caller <= at));
    let name = |node: usize| all["frames"][frame[node]][0].as_str().unwrap().to_owned();
    let stack = |mut node: usize| {
        let mut names = vec![name(node)];
        while caller[node] != node {
            node = caller[node];
            names.push(name(node));
        }
        names.reverse();
        names
    };
    let deepest = (0..own.len()).find(|&node| own[node] > 0 && name(node) == "innermost").unwrap();
    assert!(stacks.iter().any(|(s, _)| *s == stack(deepest)), "{:?}", stack(deepest));
    let word = |node: usize| all["found"][found[node]]["word"].as_str().unwrap();
    assert_eq!((word(deepest), word(caller[deepest])), ("sampled", "cfi"));

    let [thread, span, node, count] = [0, 1, 2, 3].map(|column| numbers(&all["cells"][column]));
    assert_eq!(count.iter().sum::<usize>(), samples);
    let spans = usize::try_from(all["time"]["spans"].as_u64().unwrap()).unwrap();
    assert!(spans > 100 && span.iter().all(|&span| span < spans), "{spans}");
    let mut by_node = vec![0; own.len()];
    for (node, count) in node.iter().zip(&count) {
        by_node[*node] += count;
    }
    assert_eq!(by_node, own);
    assert!(thread.iter().all(|&thread| all["threads"][thread].is_array()));
}

/// The page as a browser has it after its program ran.
pub(super) fn shown(page: &Path, what: &str) -> Option<String> {
    shown_by(page, what, &[])
}

/// The same, by a browser with these options.
fn shown_by(page: &Path, what: &str, options: &[&str]) -> Option<String> {
    let browser = tool("chromium")?;
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.arg(format!("--user-data-dir={}", home.path().to_str().unwrap()));
    command.args(["--virtual-time-budget=2000", "--window-size=1200,800", "--dump-dom"]);
    command.args(options);
    command.arg(format!("file://{}#{what}", page.to_str().unwrap()));
    // On a busy machine its processes may give each other up, or its clock may be over before the
    // program has drawn the page.
    let is_whole = |output: &Output| {
        output.status.success() && !text(&output.stdout).contains(" aria-busy=\"true\"")
    };
    let mut output = command.stdin(Stdio::null()).output().unwrap();
    for _ in 0..4 {
        if is_whole(&output) {
            break;
        }
        output = command.output().unwrap();
    }
    if !output.status.success() {
        skip(&format!("chromium does not run here: {}", text(&output.stderr)));
        return None;
    }
    Some(text(&output.stdout))
}

/// The text of the element with this id.
fn text_of<'d>(dom: &'d str, id: &str) -> &'d str {
    let (_, rest) = dom.split_once(&format!(" id=\"{id}\"")).unwrap();
    let (_, rest) = rest.split_once('>').unwrap();
    rest.split_once("</").unwrap().0
}

#[test]
fn d15_a_browser_shows_the_ledger_the_functions_and_the_share_that_is_looked_for() {
    let Some(data) = recording("report_browser", b"<i>nested", &[]) else { return };
    let page = data.with_file_name("page.html");
    std::fs::write(&page, report(&data, "html")).unwrap();
    let stacks = folded(&data);
    let samples: u64 = stacks.iter().map(|(_, count)| count).sum();
    let hits = stacks.iter().filter(|(stack, _)| stack.iter().any(|name| name == "innermost"));
    let hits: u64 = hits.map(|(_, count)| count).sum();
    let Some(dom) = shown(&page, "view=functions&search=innermost") else { return };
    assert!(text_of(&dom, "ledger").contains(&format!("{samples} samples:")), "{dom}");
    let (told, _) = text_of(&dom, "found").split_once(' ').unwrap();
    // In tenths of a hundredth, rounded here as there.
    let share = (2000 * hits / samples).div_ceil(2);
    assert_eq!(told, format!("{}.{}", share / 10, share % 10));
    let (_, rows) = dom.split_once("<tbody id=\"functions\">").unwrap();
    let (rows, _) = rows.split_once("</tbody>").unwrap();
    assert!(rows.contains(">innermost</button>") && rows.matches("<tr>").count() == 1, "{rows}");

    let tree = shown(&page, "view=tree").unwrap();
    assert!(tree.contains(">&lt;i&gt;nested</span>") && !tree.contains("<i>nested"), "{tree}");
    assert!(tree.contains("role=\"treeitem\"") && tree.contains(">innermost</span>"), "{tree}");
}

#[test]
fn d15_clicks_zoom_and_find_on_a_wide_and_a_narrow_screen() {
    // It has two functions side by side, of which neither has the whole width.
    let Some(program) = support::compile("report_clicks", "two_parts.c", WITHOUT_FRAME_POINTERS)
    else {
        return;
    };
    let Some(data) = record(&program, &[]) else { return };
    let folder = data.parent().unwrap();
    std::fs::write(folder.join("page.html"), report(&data, "html")).unwrap();
    std::fs::write(folder.join("graph.svg"), report(&data, "svg")).unwrap();
    let clicks = folder.join("clicks.html");
    std::fs::write(&clicks, include_str!("clicks.html")).unwrap();
    // The page that clicks may look into the one that is clicked at.
    let options = ["--allow-file-access-from-files", "--disable-web-security"];
    let Some(dom) = shown_by(&clicks, "", &options) else { return };
    let told: Value = serde_json::from_str(text_of(&dom, "told")).unwrap();
    let is = |name: &str| told[name].as_bool().unwrap_or_else(|| panic!("{name} in {told}"));
    assert_eq!(told["error"], Value::Null, "{told}");
    assert!(!is("wasWhole") && is("isWholeAfterClick") && !is("isWholeAfterTwo"), "{told}");
    assert!(!is("pictureWasZoomed") && is("pictureIsZoomed"), "{told}");
    assert!(told["pictureFound"].as_str().unwrap().contains('%'), "{told}");
    assert_eq!(told["selected"], "true");
    assert_eq!((&told["rows"], &told["named"]), (&1.into(), &"grows".into()), "{told}");
    assert!(!is("overflow") && !is("narrowOverflow"), "{told}");
}
