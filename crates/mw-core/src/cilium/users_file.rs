//! The text of `users.yaml` in the ConfigMap clustermesh-remote-users: a list
//! of etcd users with their roles. Entries of others are preserved byte for
//! byte and in order; ours carry a comment.

use std::collections::BTreeSet;

/// Marks the entries that we added.
const MARK: &str = "# meshwright";
/// The only role that we assign.
const ROLE: &str = "remote";

/// A text that can be extended: one list in block style, or an empty one.
#[derive(Debug, Default)]
pub(super) struct UsersFile<'a> {
    /// Everything before the key.
    head: &'a str,
    entries: Vec<Entry<'a>>,
}

#[derive(Debug)]
struct Entry<'a> {
    text: &'a str,
    name: &'a str,
    ours: bool,
}

impl<'a> UsersFile<'a> {
    /// Returns `None` if the text has any other form.
    pub(super) fn read(text: &'a str) -> Option<UsersFile<'a>> {
        let is_aside = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        let before: usize = text
            .split_inclusive('\n')
            .take_while(|line| is_aside(line))
            .map(str::len)
            .sum();
        let (head, rest) = text.split_at_checked(before)?;
        let mut lines = rest.split_inclusive('\n');
        let Some(key) = lines.next() else {
            return Some(UsersFile {
                head,
                entries: Vec::new(),
            });
        };
        let value = without_comment(key).strip_prefix("users:")?.trim();
        let list = rest.get(key.len()..)?;
        match value {
            "[]" if list.trim().is_empty() => Some(UsersFile {
                head,
                entries: Vec::new(),
            }),
            "" => Some(UsersFile {
                head,
                entries: entries(list)?,
            }),
            _ => None,
        }
    }

    pub(super) fn lists(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
    }

    /// The names of our own entries.
    pub(super) fn ours(&self) -> impl Iterator<Item = &'a str> {
        self.entries
            .iter()
            .filter(|entry| entry.ours)
            .map(|entry| entry.name)
    }

    /// The text with some of our entries added and some removed.
    pub(super) fn with(&self, added: &BTreeSet<String>, removed: &BTreeSet<String>) -> String {
        let indent = self
            .entries
            .first()
            .map_or("", |first| indent_of(first.text));
        let stays = self
            .entries
            .iter()
            .filter(|entry| !entry.ours || !removed.contains(entry.name));
        let mut list: String = stays.map(|entry| entry.text).collect();
        if !list.is_empty() && !list.ends_with('\n') {
            list.push('\n');
        }
        for name in added {
            list.push_str(&format!(
                "{indent}- name: {name} {MARK}\n{indent}  role: {ROLE}\n"
            ));
        }
        let key = if list.is_empty() {
            "users: []\n"
        } else {
            "users:\n"
        };
        format!("{}{key}{list}", self.head)
    }
}

fn indent_of(line: &str) -> &str {
    line.get(..line.len() - line.trim_start_matches(' ').len())
        .unwrap_or_default()
}

fn without_comment(line: &str) -> &str {
    line.split_once(" #").map_or(line, |(before, _)| before)
}

/// The entries of a list in block style, all with the same indent.
fn entries(list: &str) -> Option<Vec<Entry<'_>>> {
    let mut starts: Vec<usize> = Vec::new();
    let mut at = 0;
    let mut indent: Option<usize> = None;
    for line in list.split_inclusive('\n') {
        let content = line.trim();
        let depth = indent_of(line).len();
        let starts_entry = content == "-" || content.starts_with("- ");
        match indent {
            _ if content.is_empty() || content.starts_with('#') => {}
            None if starts_entry => {
                indent = Some(depth);
                starts.push(at);
            }
            Some(indent) if depth == indent && starts_entry => starts.push(at),
            Some(indent) if depth > indent => {}
            _ => return None,
        }
        at += line.len();
    }
    let Some(first) = starts.first_mut() else {
        return list.trim().is_empty().then(Vec::new);
    };
    // Lines before the first entry belong to it.
    *first = 0;
    let ends = starts.iter().skip(1).copied().chain([list.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| list.get(*start..end).map(entry))
        .collect()
}

fn entry(text: &str) -> Entry<'_> {
    let named = text.lines().find_map(|line| Some((line, name_in(line)?)));
    let ours = named.is_some_and(|(line, _)| line.trim_end().ends_with(MARK));
    Entry {
        text,
        name: named.map(|(_, name)| name).unwrap_or_default(),
        ours,
    }
}

/// The value of the key `name` in a line of block or flow style.
fn name_in(line: &str) -> Option<&str> {
    let (before, value) = without_comment(line).split_once("name:")?;
    let is_key = before.chars().all(|c| matches!(c, ' ' | '-' | '{')) || before.ends_with(", ");
    let value = value.split([',', '}']).next().unwrap_or_default();
    (is_key && !before.trim_start().starts_with('#'))
        .then(|| value.trim().trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    fn with(text: &str, added: &[&str], removed: &[&str]) -> String {
        UsersFile::read(text)
            .unwrap()
            .with(&names(added), &names(removed))
    }

    const OURS: &str = "- name: remote-b # meshwright\n  role: remote\n";

    #[test]
    fn an_empty_list_gets_entries_and_loses_them() {
        for empty in ["", "users: []", "users: []\n", "users:\n", "\n"] {
            let text = with(empty, &["remote-b"], &[]);
            assert_eq!(text.trim_start(), format!("users:\n{OURS}"), "{empty:?}");
            assert_eq!(with(&text, &[], &["remote-b"]).trim_start(), "users: []\n");
        }
    }

    #[test]
    fn entries_of_others_stay_byte_for_byte_and_in_place() {
        let theirs = "# Helm's\nusers:\n  - name:  \"remote-x\"   # hers\n    role: remote\n\n  - role: remote\n    name: remote-y";
        let file = UsersFile::read(theirs).unwrap();
        assert!(file.lists("remote-x") && file.lists("remote-y") && !file.lists("remote-b"));
        assert_eq!(file.ours().count(), 0);
        let flow = UsersFile::read(
            "users:\n- {role: remote, name: remote-z}\n- {name: 'remote-w', role: remote}\n",
        )
        .unwrap();
        assert!(flow.lists("remote-z") && flow.lists("remote-w"));
        let ours = "  - name: remote-b # meshwright\n    role: remote\n";
        let added = with(theirs, &["remote-b"], &["remote-x"]);
        assert_eq!(added, format!("{theirs}\n{ours}"));
        assert_eq!(
            UsersFile::read(&added).unwrap().ours().collect::<Vec<_>>(),
            ["remote-b"]
        );
        assert_eq!(with(&added, &[], &["remote-b"]), format!("{theirs}\n"));
    }

    #[test]
    fn other_forms_are_left_alone() {
        for text in [
            "users: [{name: remote-x, role: remote}]",
            "{\"users\": []}",
            "other: 1\n",
            "users:\nother: 1\n",
            "users:\n- a\nb: c\n",
        ] {
            assert!(UsersFile::read(text).is_none(), "{text:?}");
        }
    }
}
