//! Text from member clusters is untrusted: it is truncated and stripped of
//! control characters before it reaches a terminal, a log, a status or an
//! event.

/// The printable part of untrusted text, at most `limit` characters.
pub fn printable(text: &str, limit: usize) -> String {
    let mut shown: String = text
        .chars()
        .filter(|c| !c.is_control())
        .take(limit)
        .collect();
    if text
        .chars()
        .filter(|c| !c.is_control())
        .nth(limit)
        .is_some()
    {
        shown.push('…');
    }
    shown
}

/// The printable text in quotes, truncated for use in a message.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text, 80))
}

/// An argument of a command that is safe to paste into a shell.
pub fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", printable(text, 512).replace('\'', "'\\''"))
}

/// `one, two and 3 more`: the first `limit` of a list.
pub fn listed<T: std::fmt::Display>(items: &[T], limit: usize) -> String {
    let shown: Vec<String> = items.iter().take(limit).map(T::to_string).collect();
    let rest = items.len().saturating_sub(limit);
    match rest {
        0 => shown.join(", "),
        _ => format!("{} and {rest} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_never_reach_a_terminal() {
        assert_eq!(printable("a\x1b[31mb\nc\u{7f}", 20), "a[31mbc");
        assert_eq!(printable("abcdef", 3), "abc…");
    }

    #[test]
    fn a_quote_cannot_leave_its_shell_word() {
        assert_eq!(shell_quoted("node-1.example"), "node-1.example");
        assert_eq!(shell_quoted("a'; rm -rf /"), "'a'\\''; rm -rf /'");
        assert_eq!(shell_quoted(""), "''");
    }

    #[test]
    fn a_long_list_says_how_much_is_left_out() {
        assert_eq!(listed(&[1, 2, 3], 3), "1, 2, 3");
        assert_eq!(listed(&[1, 2, 3, 4], 2), "1, 2 and 2 more");
    }
}
