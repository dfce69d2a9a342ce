use super::*;

/// The bytes that were shown, from what was shown.
fn read_back(shown: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = shown;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        if letter != '\\' {
            bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let (kind, after) = rest.split_at(1);
        rest = after;
        bytes.push(match kind {
            "\\" => b'\\',
            "n" => b'\n',
            "r" => b'\r',
            "t" => b'\t',
            "x" => {
                let (digits, after) = rest.split_at(2);
                rest = after;
                u8::from_str_radix(digits, 16).unwrap()
            }
            kind => panic!("no escape: \\{kind} in {shown}"),
        });
    }
    bytes
}

fn shown<T: Bytes + ?Sized>(text: &T) -> String {
    let shown = escaped(text).to_string();
    assert_eq!(read_back(&shown), text.bytes(), "{shown}");
    assert_eq!(escaped(text).width(), shown.chars().count(), "{shown}");
    shown
}

#[test]
fn c9_usual_names_are_shown_as_they_are() {
    for name in [
        "",
        "main",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "a b",
        "core::ptr::drop_in_place<&'static [u8; 4]>::{{closure}}#0",
        "\"quoted\" it's",
        "größe.c",
        "cafe\u{301}",
        "प्रोग्राम",
        "程序",
        "שלום",
        "🦀",
        "[vdso]",
    ] {
        assert_eq!(shown(name), name);
    }
}

#[test]
fn c9_what_a_terminal_obeys_or_hides_is_shown_as_bytes() {
    for (text, expected) in [
        ("\x1b]0;x\x07", "\\x1b]0;x\\x07"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\0\x7f", "\\x00\\x7f"),
        // The one-character form of ESC [, and that of ESC ].
        ("\u{9b}31m\u{9d}", "\\xc2\\x9b31m\\xc2\\x9d"),
        ("a\u{202e}b", "a\\xe2\\x80\\xaeb"),
        ("\u{2028}\u{2029}", "\\xe2\\x80\\xa8\\xe2\\x80\\xa9"),
        ("\u{200b}\u{feff}", "\\xe2\\x80\\x8b\\xef\\xbb\\xbf"),
        ("a\u{e0041}", "a\\xf3\\xa0\\x81\\x81"),
        ("a\u{fe0f}", "a\\xef\\xb8\\x8f"),
        ("a\u{a0}", "a\\xc2\\xa0"),
        ("\u{e000}", "\\xee\\x80\\x80"),
        // An escape that was there is not like one that was made.
        ("\\x1b", "\\\\x1b"),
        ("\\", "\\\\"),
    ] {
        assert_eq!(shown(text), expected);
    }
}

#[test]
fn c9_bytes_that_are_not_utf8_are_kept() {
    assert_eq!(shown(b"/tmp/\xff\xfe"), "/tmp/\\xff\\xfe");
    assert_eq!(shown(b"\xe2\x80"), "\\xe2\\x80");
    assert_eq!(shown(b"a\xffb"), "a\\xffb");
    // The replacement character is a character.
    assert_eq!(shown("\u{fffd}"), "\u{fffd}");
}

#[test]
fn c9_a_mark_stands_on_a_letter_of_its_own_text() {
    assert_eq!(shown("\u{338}"), "\\xcc\\xb8");
    assert_eq!(shown("=\u{338}"), "=\u{338}");
    assert_eq!(shown("a\u{301}\u{323}"), "a\u{301}\u{323}");
    assert_eq!(shown("\n\u{338}"), "\\n\\xcc\\xb8");
    assert_eq!(shown(b"\xff\xcc\xb8"), "\\xff\\xcc\\xb8");
}

/// The standard library has tables of its own of what cannot be printed.
#[test]
fn c9_every_character_that_std_does_not_print_is_escaped() {
    let mut text = String::new();
    let mut only_here = String::new();
    let mut only_there = String::new();
    for letter in ('\0'..=char::MAX).filter(|&letter| !matches!(letter, '\\' | '\'' | '"')) {
        text.clear();
        text.extend(['a', letter]);
        // Only at a text's start does it escape marks.
        let std_escapes = !text.escape_debug().skip(1).eq([letter]);
        match (std_escapes, is_shown(letter, true)) {
            (true, true) => only_there.push(letter),
            (false, false) => only_here.push(letter),
            _ => {}
        }
    }
    // What the older of two versions of Unicode has not assigned, it does not print.
    let (major, minor, patch) = char::UNICODE_VERSION;
    if unicode_properties::UNICODE_VERSION == (major.into(), minor.into(), patch.into()) {
        assert_eq!(only_there, "", "{}", only_there.escape_unicode());
        assert!(only_here.chars().all(is_ignorable), "{}", only_here.escape_unicode());
    }
    assert!(!only_there.contains(is_ignorable));
    assert!(only_here.contains('\u{fe0f}') && only_here.contains('\u{2800}'));
}

#[test]
fn c9_whatever_comes_nothing_but_what_is_shown_gets_out_and_all_can_be_read_back() {
    let mut seed = 15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    };
    let pieces: [&[u8]; 12] = [
        b"\x1b",
        b"\\",
        b"x41",
        b"\n",
        b"\xc2",
        b"\x9b",
        b"\xe2\x80",
        b"\xae",
        b"a",
        b"\xcc\xb8",
        b"\xff",
        b"\xf3\xa0\x81\x81",
    ];
    for _ in 0..20_000 {
        let text: Vec<u8> = random()
            .iter()
            .flat_map(|&byte| pieces[usize::from(byte) % pieces.len()])
            .copied()
            .collect();
        let shown = shown(&text);
        assert!(!shown.contains(|letter: char| letter.is_control()), "{shown:?}");
        assert!(!shown.contains(['\u{202e}', '\u{e0041}']), "{shown:?}");
    }
}

#[test]
fn c9_text_that_is_cut_says_so_and_cuts_no_escape() {
    for (text, limit, expected) in [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abc\\…"),
        ("abcdef", 2, "\\…"),
        ("abcdef", 1, "\\"),
        ("abcdef", 0, ""),
        ("", 0, ""),
        ("a\x1bb", 6, "a\\x1bb"),
        ("a\x1bb", 5, "a\\…"),
        ("größe", 5, "größe"),
        ("größe", 4, "gr\\…"),
        // This is all of a text.
        ("abc…", 4, "abc…"),
    ] {
        let text = escaped(text).at_most(limit);
        assert_eq!(text.to_string(), expected);
        assert_eq!(text.width(), expected.chars().count());
    }
    assert_eq!(format!("{:.5}", escaped("abcdef")), "abc\\…");
    assert_eq!(format!("{:.5}", Untrusted::from("abcdef")), "abc\\…");
}

#[test]
fn c1_a_width_counts_what_is_shown_and_may_be_of_any_size() {
    assert_eq!(format!("{:>8}|", escaped("a\x1b")), "   a\\x1b|");
    assert_eq!(format!("{:8}|", escaped("a\x1b")), "a\\x1b   |");
    assert_eq!(format!("{:<3}|", Untrusted::from("größe")), "größe|");
    assert_eq!(format!("{:>8.4}|", escaped("größe")), "    gr\\…|");
    assert_eq!(format!("{}|", escaped("a").right(3)), "  a|");
    assert_eq!(format!("{}|", escaped("a").left(3)), "a  |");
    let long = vec![0xff_u8; 70_000];
    assert_eq!(escaped("a").right(escaped(&long[..]).width()).to_string().len(), 280_000);
    assert_eq!(escaped("a").left(70_000).to_string().len(), 70_000);
}

#[test]
fn d10_json_has_the_same_text() {
    let name = Untrusted::from(b"/tmp/\xff\"\x1b\\\xe2\x80\xae");
    let json = serde_json::to_string(&name).unwrap();
    assert_eq!(json, r#""/tmp/\\xff\"\\x1b\\\\\\xe2\\x80\\xae""#);
    let value: String = serde_json::from_str(&json).unwrap();
    assert_eq!(read_back(&value), name.as_bytes());
}

#[test]
fn what_is_shown_leads_back_to_the_text() {
    for text in [
        &b"plain"[..],
        b"a\\b\n\x1b[0m\t",
        "\u{202e}x\u{301}".as_bytes(),
        b"\xff\xfe",
        b"\\x41",
        b"",
    ] {
        let text = Untrusted::from(text);
        assert_eq!(Untrusted::of_shown(&text.to_string()), text);
    }
    // What shows nothing.
    for shown in ["\\", "\\x", "\\xg0", "\\q"] {
        assert_eq!(Untrusted::of_shown(shown).as_bytes(), shown.as_bytes());
    }
}
