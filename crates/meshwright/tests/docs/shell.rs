//! Parser for the shell syntax that the pages use: words, quotes, pipes, redirections, and
//! variables set from a command.

/// Programs that a line runs, each with its arguments.
pub(crate) fn commands(line: &str) -> Vec<Vec<String>> {
    let (outer, inner) = substituted(line);
    let mut commands = vec![Vec::new()];
    let mut words = words(&outer).into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "|" | "&&" => commands.push(Vec::new()),
            ">" => _ = words.next(),
            _ => commands.last_mut().unwrap().push(word),
        }
    }
    for command in &mut commands {
        while command.first().is_some_and(|word| is_assignment(word)) {
            command.remove(0);
        }
    }
    commands.retain(|command| !command.is_empty());
    commands.extend(inner.iter().flat_map(|line| self::commands(line)));
    commands
}

/// Lines of a block, with continuation lines joined and comments removed.
pub(crate) fn lines(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let without_comment = |line: &str| {
        line.split(" #")
            .next()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    joined
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(without_comment)
        .filter(|line| !line.is_empty())
        .collect()
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
    })
}

/// The line with each `$(…)` replaced, and the replaced commands.
fn substituted(line: &str) -> (String, Vec<String>) {
    let mut parts = line.split("$(");
    let mut outer = parts.next().unwrap().to_owned();
    let mut inner = Vec::new();
    for part in parts {
        // Parentheses inside occur only in quotes, and the pages have none.
        let (command, rest) = part
            .rsplit_once(')')
            .unwrap_or_else(|| panic!("$( does not end: {line}"));
        inner.push(command.to_owned());
        outer.push_str("VALUE");
        outer.push_str(rest);
    }
    (outer, inner)
}

fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if open == c => quote = None,
            (None, ' ') => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    assert!(quote.is_none(), "a quote does not end: {line}");
    words.extend(word);
    words
}

#[test]
fn a_line_is_taken_apart() {
    let line = "TOKEN=$(kubectl get secret a -o jsonpath='{.data.x y}' | base64 --decode)";
    let expected: [&[&str]; 2] = [
        &[
            "kubectl",
            "get",
            "secret",
            "a",
            "-o",
            "jsonpath={.data.x y}",
        ],
        &["base64", "--decode"],
    ];
    assert_eq!(commands(line), expected);
    assert_eq!(
        commands("A=b make x > y.yaml && kubectl z=\"$(date +%s)\"").len(),
        3
    );
    assert_eq!(lines("a b \\\n  c   # why\n# no\n\nd\n"), ["a b c", "d"]);
}
