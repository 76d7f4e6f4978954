//! Aligned rows of styled cells. Widths are computed from the plain text, so that the layout is the
//! same with and without colour.

use owo_colors::{OwoColorize, Style};

#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, style: Style) -> Cell {
        Cell {
            text: text.into(),
            style,
        }
    }

    pub(crate) fn plain(text: impl Into<String>) -> Cell {
        Cell::new(text, Style::new())
    }
}

/// Styles by meaning.
pub(crate) mod mean {
    use owo_colors::Style;

    pub(crate) fn good() -> Style {
        Style::new().green()
    }

    pub(crate) fn changed() -> Style {
        Style::new().yellow()
    }

    pub(crate) fn bad() -> Style {
        Style::new().red()
    }

    pub(crate) fn faint() -> Style {
        Style::new().dimmed()
    }

    pub(crate) fn title() -> Style {
        Style::new().bold()
    }
}

/// Style of a phase of the Cilium back end.
pub(crate) fn phase_style(phase: &str) -> Style {
    match phase {
        "Connected" | "Exported" | "Applied" => mean::good(),
        "Error" => mean::bad(),
        _ => mean::changed(),
    }
}

pub(crate) fn styled(text: &str, style: Style) -> String {
    if text.is_empty() {
        String::new()
    } else {
        text.style(style).to_string()
    }
}

/// Line length at which text is wrapped.
pub(crate) const WIDTH: usize = 100;

/// Formats a table with two spaces between columns. The last cell of a row is wrapped if it is too
/// long.
pub(crate) fn rows(rows: &[Vec<Cell>], indent: usize) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate().take(row.len().saturating_sub(1)) {
            match widths.get_mut(at) {
                Some(width) => *width = cell.text.chars().count().max(*width),
                None => widths.push(cell.text.chars().count()),
            }
        }
    }
    let mut text = String::new();
    for row in rows {
        text.push_str(&" ".repeat(indent));
        let mut column = indent;
        for (at, cell) in row.iter().enumerate() {
            if at + 1 == row.len() {
                text.push_str(&styled(&wrapped(&cell.text, column, WIDTH), cell.style));
                break;
            }
            let width = widths.get(at).copied().unwrap_or_default() + 2;
            text.push_str(&styled(&cell.text, cell.style));
            text.push_str(&" ".repeat(width.saturating_sub(cell.text.chars().count())));
            column += width;
        }
        text.push('\n');
    }
    text
}

/// Wraps text at spaces and indents every line except the first.
pub(crate) fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let mut lines = String::new();
    let mut column = indent;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > width {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_their_style() {
        let table = rows(
            &[
                vec![Cell::new("a", mean::bad()), Cell::plain("x")],
                vec![Cell::plain("long"), Cell::plain("y")],
            ],
            1,
        );
        let plain = anstream::adapter::strip_str(&table).to_string();
        assert_eq!(plain, " a     x\n long  y\n");
    }

    #[test]
    fn a_long_text_is_broken_at_spaces() {
        assert_eq!(wrapped("one two three", 2, 9), "one two\n  three");
        assert_eq!(wrapped("unbreakable", 2, 5), "unbreakable");
    }
}
