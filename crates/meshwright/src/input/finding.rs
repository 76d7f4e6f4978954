//! Errors and warnings about the input, rendered with file, line, column and the marked source
//! line.

use std::borrow::Cow;
use std::fmt;
use std::io::IsTerminal;
use std::rc::Rc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteError,
    MietteSpanContents, Severity, SourceCode, SourceSpan, SpanContents,
};

use crate::input::source::{Contents, SourceFile};
use crate::input::tree::Span;

#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    message: String,
    help: Option<String>,
    file: Option<Rc<SourceFile>>,
    span: Option<Span>,
}

impl Finding {
    pub(crate) fn error(message: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Error,
            message: message.into(),
            help: None,
            file: None,
            span: None,
        }
    }

    pub(crate) fn warning(self) -> Finding {
        Finding {
            severity: Severity::Warning,
            ..self
        }
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Finding {
        Finding {
            help: Some(help.into()).filter(|help| !help.is_empty()),
            ..self
        }
    }

    pub(crate) fn at(self, file: &Rc<SourceFile>, span: Span) -> Finding {
        Finding {
            file: Some(Rc::clone(file)),
            span: Some(span),
            ..self
        }
    }

    pub(crate) fn in_file(self, file: &Rc<SourceFile>) -> Finding {
        Finding {
            message: format!("{}: {}", file.name, self.message),
            ..self
        }
    }

    pub(crate) fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Formats a place as `mesh.yaml:3:14`, counting characters as editors do.
pub(crate) fn place(file: &SourceFile, span: Span) -> String {
    let Excerpt { name, .. } = Excerpt::of(file, span, "");
    name
}

/// Maximum number of findings printed.
const MOST_SHOWN: usize = 50;

/// Renders all findings, sorted by file and place. Colour and line drawing are for terminals only.
pub(crate) fn render(mut findings: Vec<Finding>) -> String {
    findings.sort_by_key(|finding| {
        (
            finding.file.as_ref().map(|file| file.order),
            finding.span.map(Span::start),
        )
    });
    let fancy = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let theme = if fancy {
        GraphicalTheme::unicode()
    } else {
        GraphicalTheme::none()
    };
    let width = std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .unwrap_or(100_usize)
        .clamp(60, 160);
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_links(false)
        .with_context_lines(0)
        .with_width(width);
    // miette counts columns in bytes, so the place is put into the file name.
    let handler = handler
        .without_primary_span_start()
        .without_syntax_highlighting()
        .with_break_words(false);
    let cut = if fancy { "…" } else { "..." };
    let mut text = String::new();
    for finding in findings.iter().take(MOST_SHOWN) {
        let shown = Shown {
            excerpt: finding
                .file
                .as_ref()
                .zip(finding.span)
                .map(|(file, span)| Excerpt::of(file, span, cut)),
            finding,
        };
        // Writing to a String does not fail.
        _ = handler.render_report(&mut text, &shown);
        text.push('\n');
    }
    if let Some(more) = findings
        .len()
        .checked_sub(MOST_SHOWN)
        .filter(|more| *more > 0)
    {
        text.push_str(&format!("and {more} more\n\n"));
    }
    text
}

#[derive(Debug)]
struct Shown<'a> {
    finding: &'a Finding,
    excerpt: Option<Excerpt>,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.finding.message)
    }
}

impl std::error::Error for Shown<'_> {}

impl Diagnostic for Shown<'_> {
    fn severity(&self) -> Option<Severity> {
        Some(self.finding.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.finding
            .help
            .as_ref()
            .map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.excerpt
            .as_ref()
            .map(|excerpt| excerpt as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let excerpt = self.excerpt.as_ref()?;
        Some(Box::new(std::iter::once(LabeledSpan::new(
            None,
            excerpt.mark.0,
            excerpt.mark.1,
        ))))
    }
}

/// The affected line, truncated if long, without control characters and secrets.
#[derive(Debug)]
struct Excerpt {
    /// `file:line:column`
    name: String,
    text: String,
    line: usize,
    /// Offset and length in `text`.
    mark: (usize, usize),
}

/// Maximum bytes shown of a long line, and how many of them precede the mark.
const SHOWN: usize = 90;
const SHOWN_BEFORE: usize = 40;

impl Excerpt {
    fn of(file: &SourceFile, span: Span, cut: &str) -> Excerpt {
        let text = file.text.as_str();
        let at = floor(text, span.start());
        let before = text.get(..at).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count();
        let rest = text.get(line_start..).unwrap_or_default();
        let whole = rest
            .split('\n')
            .next()
            .unwrap_or_default()
            .trim_end_matches('\r');
        let column = before.get(line_start..).unwrap_or_default().chars().count();
        let name = format!("{}:{}:{}", file.name, line + 1, column + 1);

        let shown = match file.contents {
            Contents::Plain => harmless(whole),
            Contents::Secret => harmless(&without_value(whole)),
        };
        let mark = at - line_start;
        let from = if shown.len() > SHOWN {
            floor(&shown, mark.saturating_sub(SHOWN_BEFORE))
        } else {
            0
        };
        let to = floor(&shown, from + SHOWN);
        let head = if from > 0 { cut } else { "" };
        let tail = if to < shown.len() { cut } else { "" };
        let window = shown.get(from..to).unwrap_or_default();
        let start = head.len() + mark - from;
        // Mark at least one column, even past the end of the line: miette does not draw an empty
        // mark.
        let len = span
            .len()
            .min((head.len() + window.len()).saturating_sub(start))
            .max(1);
        let mut text = format!("{head}{window}{tail}");
        while text.len() < start + len {
            text.push(' ');
        }
        Excerpt {
            name,
            text,
            line,
            mark: (start, len),
        }
    }
}

/// The nearest character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

/// Replaces control characters and secrets by text of the same byte length, so that offsets stay
/// valid.
fn harmless(line: &str) -> String {
    let shown: String = line
        .chars()
        .map(|c| match (c, c.len_utf8()) {
            ('\t', _) => ' ',
            (c, 1) if c.is_control() => '?',
            (c, _) if c.is_control() => '·',
            (c, _) => c,
        })
        .collect();
    match shown.contains(SECRET) {
        true => without_secrets(&shown).into_owned(),
        false => shown,
    }
}

const SECRET: &str = "presharedKey";

fn without_secrets(line: &str) -> Cow<'_, str> {
    let Some((before, after)) = line.split_once(SECRET) else {
        return Cow::Borrowed(line);
    };
    let value_at = after
        .find(|c: char| !"\\\"': ".contains(c))
        .unwrap_or(after.len());
    let (between, value) = after.split_at(value_at);
    let end = value
        .find(|c: char| "\\\"',} ".contains(c))
        .unwrap_or(value.len());
    let (value, rest) = value.split_at(end);
    Cow::Owned(format!(
        "{before}{SECRET}{between}{}{}",
        "*".repeat(value.len()),
        without_secrets(rest)
    ))
}

/// Masks everything except a leading key: in a file with Secrets, any value may be one.
fn without_value(line: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let rest = line.trim_start_matches([' ', '-']);
    let key = rest.trim_start_matches(is_name);
    let kept = match key.starts_with(':') && !rest.starts_with(':') {
        true => line.len() - key.len() + 1,
        false => line.len() - rest.len(),
    };
    let (shown, hidden) = line.split_at_checked(kept).unwrap_or((line, ""));
    format!("{shown}{}", "*".repeat(hidden.len()))
}

/// Returns the whole line for every span.
impl SourceCode for Excerpt {
    fn read_span<'a>(
        &'a self,
        _: &SourceSpan,
        _: usize,
        _: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let whole = SourceSpan::from((0, self.text.len()));
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            self.text.as_bytes(),
            whole,
            self.line,
            0,
            1,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_masked_wherever_it_stands_in_a_line() {
        for line in [
            "  presharedKey: c2Vj+/=",
            r#"{"presharedKey":"c2Vj+/=","x":1}"#,
            r#"a: "{\"presharedKey\":\"c2Vj+/=\"}" "#,
            "presharedKey: [c2Vj+/=]",
        ] {
            let shown = harmless(line);
            assert!(
                !shown.contains("c2Vj") && shown.len() == line.len(),
                "{shown}"
            );
        }
        assert_eq!(
            harmless(r#"{"presharedKey":"abc","x":1}"#),
            r#"{"presharedKey":"***","x":1}"#
        );
    }

    #[test]
    fn of_a_file_with_secrets_only_keys_are_shown() {
        for (line, shown) in [
            ("  tls.key: c2Vj", "  tls.key:*****"),
            ("  - name: c2Vj", "  - name:*****"),
            ("kind: [", "kind:**"),
            (r#"{"data":{"a":"c2Vj"}}"#, "*********************"),
            ("    c2Vj+/=", "    *******"),
            ("-----BEGIN KEY-----", "-----**************"),
            (": c2Vj", "******"),
            ("  ", "  "),
            ("c2Vjä", "******"),
        ] {
            assert_eq!(without_value(line), shown);
            assert_eq!(without_value(line).len(), line.len());
        }
    }

    #[test]
    fn control_characters_are_replaced_byte_for_byte() {
        assert_eq!(harmless("a\x1b[1m\u{9b}\tü"), "a?[1m· ü");
        assert_eq!(harmless("a\u{9b}").len(), "a\u{9b}".len());
    }

    #[test]
    fn a_place_past_the_end_can_still_be_marked() {
        let file = SourceFile {
            name: "f".to_owned(),
            text: "ab".to_owned(),
            order: 0,
            contents: Contents::Plain,
        };
        let excerpt = Excerpt::of(&file, Span::new(99, 5), "...");
        assert_eq!(
            (excerpt.name.as_str(), excerpt.text.as_str(), excerpt.mark),
            ("f:1:3", "ab ", (2, 1))
        );
    }
}
