//! Readiness of remotes as their reader reports it: parses the gauges of
//! KVStoreMesh and of the agents from their metrics.

use std::collections::BTreeMap;

use mw_core::names::CiliumName;

const GAUGES: [&str; 2] = [
    "cilium_kvstoremesh_remote_cluster_readiness_status",
    "cilium_clustermesh_remote_cluster_readiness_status",
];
const REMOTE: &str = "target_cluster";
/// Bytes parsed; the rest of an answer is ignored.
const LARGEST: usize = 4 << 20;

/// Returns whether the reader reports each remote ready; remotes without a sample
/// are left out. With several samples of a remote, all must be 1. An incomplete
/// last line is ignored.
pub fn readiness(exposition: &[u8]) -> BTreeMap<CiliumName, bool> {
    let read = exposition.get(..LARGEST).unwrap_or(exposition);
    let whole = read
        .iter()
        .rposition(|byte| *byte == b'\n')
        .and_then(|end| read.get(..end))
        .unwrap_or_default();
    let lines = whole
        .split(|byte| *byte == b'\n')
        .filter_map(|line| std::str::from_utf8(line).ok());
    let mut remotes = BTreeMap::new();
    for (remote, ready) in lines.filter_map(sample) {
        remotes
            .entry(remote)
            .and_modify(|all| *all &= ready)
            .or_insert(ready);
    }
    remotes
}

/// Parses a line; None unless it is a complete sample of one of the gauges.
fn sample(line: &str) -> Option<(CiliumName, bool)> {
    let line = line.trim_start();
    let rest = GAUGES.iter().find_map(|gauge| line.strip_prefix(gauge))?;
    let (remote, rest) = remote(rest.trim_start().strip_prefix('{')?)?;
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some((remote?, value == 1.0))
}

/// Returns the remote among the labels and the rest of the line.
fn remote(mut rest: &str) -> Option<(Option<CiliumName>, &str)> {
    let mut remote = None;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((remote, after));
        }
        let (label, after) = rest.split_once('=')?;
        let (value, after) = quoted(after.trim_start())?;
        if label.trim_end() == REMOTE {
            remote = CiliumName::try_from(value.as_str()).ok();
        }
        rest = after;
    }
}

/// Unescapes a quoted string and returns the rest of the line.
fn quoted(text: &str) -> Option<(String, &str)> {
    let inner = text.strip_prefix('"')?;
    let (mut value, mut escaped) = (String::new(), false);
    for (at, letter) in inner.char_indices() {
        match (escaped, letter) {
            (false, '"') => return Some((value, inner.get(at + 1..)?)),
            (false, '\\') => escaped = true,
            (true, 'n') => (escaped, _) = (false, value.push('\n')),
            (_, letter) => (escaped, _) = (false, value.push(letter)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    const GAUGE: &str = "cilium_kvstoremesh_remote_cluster_readiness_status";

    fn read(text: &str) -> Vec<(String, bool)> {
        readiness(text.as_bytes())
            .into_iter()
            .map(|(name, ready)| (name.to_string(), ready))
            .collect()
    }

    fn one(labels: &str, value: &str) -> Vec<(String, bool)> {
        read(&format!("{GAUGE}{labels} {value}\n"))
    }

    fn all(remotes: &[(&str, bool)]) -> Vec<(String, bool)> {
        remotes
            .iter()
            .map(|(name, ready)| ((*name).to_owned(), *ready))
            .collect()
    }

    #[test]
    fn both_gauges_are_read_and_nothing_else() {
        let text = "# HELP cilium_kvstoremesh_remote_cluster_readiness_status The readiness status\n\
            # TYPE cilium_kvstoremesh_remote_cluster_readiness_status gauge\n\
            cilium_kvstoremesh_remote_cluster_readiness_status{source_cluster=\"a\",target_cluster=\"b\"} 1\n\
            cilium_kvstoremesh_remote_cluster_readiness_status{source_cluster=\"a\",target_cluster=\"c\"} 0\n\
            cilium_kvstoremesh_remote_cluster_readiness_status_total{target_cluster=\"x\"} 1\n\
            cilium_kvstoremesh_remote_cluster_failures{target_cluster=\"y\"} 1\n\
            cilium_clustermesh_remote_cluster_readiness_status{target_cluster=\"d\",source_node_name=\"n\"} 1\n\
            # EOF\n";
        assert_eq!(read(text), all(&[("b", true), ("c", false), ("d", true)]));
    }

    #[test]
    fn labels_come_in_any_order_with_escapes_and_blanks() {
        for labels in [
            r#"{target_cluster="b"}"#,
            r#"{target_cluster="b",}"#,
            r#" { a = "}" , target_cluster = "b" , z="\"," } "#,
            r#"{a="\\",target_cluster="b"}"#,
            r#"{a="target_cluster=\"x\"",target_cluster="b"}"#,
            r#"{my_target_cluster="x",target_cluster="b",target_cluster_id="7"}"#,
            "{a=\"é\u{1F600}\",target_cluster=\"b\"}",
        ] {
            assert_eq!(one(labels, "1"), all(&[("b", true)]), "{labels}");
        }
    }

    #[test]
    fn only_one_is_ready() {
        for (value, ready) in [
            ("1", true),
            ("1.0", true),
            ("1e0", true),
            ("+1", true),
            ("10e-1", true),
            ("1 1700000000000", true),
            ("0", false),
            ("-1", false),
            ("2", false),
            ("1e1", false),
            ("1e999", false),
            ("NaN", false),
            ("+Inf", false),
        ] {
            assert_eq!(
                one(r#"{target_cluster="b"}"#, value),
                all(&[("b", ready)]),
                "{value}"
            );
        }
    }

    #[test]
    fn of_several_lines_about_one_remote_all_must_be_content() {
        let line = |node: &str, value: &str| {
            format!("{GAUGE}{{source_node_name=\"{node}\",target_cluster=\"b\"}} {value}\n")
        };
        for (lines, ready) in [
            ([line("n", "1"), line("n", "1")], true),
            ([line("n", "1"), line("m", "0")], false),
            ([line("n", "0"), line("m", "1")], false),
        ] {
            assert_eq!(read(&lines.concat()), all(&[("b", ready)]));
        }
    }

    #[test]
    fn what_is_no_whole_sample_says_nothing() {
        for line in [
            "",
            "{target_cluster=\"b\"} 1",
            r#"{target_cluster="b"}"#,
            r#"{target_cluster="b"} x"#,
            r#"{target_cluster="b" 1"#,
            r#"{target_cluster="b} 1"#,
            r#"{target_cluster="b\"#,
            r#"{target_cluster=b} 1"#,
            r#"{target_cluster} 1"#,
            r#"{target_cluster=""} 1"#,
            r#"{target_cluster="B\n"} 1"#,
            r#"{other="b"} 1"#,
            "{} 1",
            " 1",
        ] {
            let text = if line.starts_with("{target_cluster=\"b\"} 1") {
                line.to_owned()
            } else {
                format!("{GAUGE}{line}")
            };
            assert_eq!(read(&format!("{text}\n")), [], "{line}");
        }
    }

    #[test]
    fn a_line_that_was_cut_says_nothing() {
        let first = format!("{GAUGE}{{target_cluster=\"b\"}} 1\n");
        let text = format!("{first}{GAUGE}{{target_cluster=\"c\"}} 1");
        assert_eq!(read(&text), all(&[("b", true)]));
        for end in 0..first.len() {
            assert_eq!(read(&first[..end]), [], "{end}");
        }
    }

    #[test]
    fn an_endless_answer_is_cut() {
        let filler = format!("{}\n", "x".repeat(99)).repeat(LARGEST / 100);
        let [before, after] =
            ["b", "c"].map(|name| format!("{GAUGE}{{target_cluster=\"{name}\"}} 1\n"));
        assert_eq!(read(&[before, filler, after].concat()), all(&[("b", true)]));
        assert_eq!(read(&"x".repeat(LARGEST + 1)), []);
    }

    #[test]
    fn bytes_that_are_no_text_cost_one_line() {
        let mut text = format!("{GAUGE}{{target_cluster=\"").into_bytes();
        text.extend([0xff, b'"', b'}', b' ', b'1', b'\n']);
        text.extend(format!("{GAUGE}{{target_cluster=\"b\"}} 1\r\n").into_bytes());
        assert_eq!(readiness(&text).len(), 1);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(tail in "[a-z=\"{}\\\\, \n#01é]{0,60}") {
            readiness(format!("{GAUGE}{tail}").as_bytes());
            readiness(format!("{GAUGE}{{target_cluster=\"b\"{tail}\n").as_bytes());
        }
    }
}
