//! What all texts of errors have in common.

/// Fails unless each text is one line without a full stop, in lower case but
/// for names, and unlike all others.
///
/// # Panics
///
/// If one is not.
pub fn check_messages(texts: &[String]) {
    for (index, text) in texts.iter().enumerate() {
        assert!(!text.is_empty() && text.lines().count() == 1, "{text:?}");
        assert!(!text.ends_with(['.', '!', ' ']), "{text:?}");
        let first = text.chars().next().unwrap();
        let word = text.split([' ', '\'']).next().unwrap();
        let is_name = word.chars().all(char::is_uppercase);
        assert!(!first.is_uppercase() || is_name, "{text:?}");
        let before = texts.iter().take(index);
        assert!(before.clone().all(|other| other != text), "{text:?} is said of two things");
    }
}
