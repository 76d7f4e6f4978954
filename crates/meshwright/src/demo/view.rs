//! Formatting of the demo's steps, and a region of the terminal that is redrawn in place.

use std::io::Write;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::demo::fleet::Fleet;
use crate::demo::story::Line;
use crate::output::layout::{mean, styled};
use crate::output::write_stdout;

/// Width of the cause column. Lines fit into 80 columns.
const CAUSE: usize = 28;

const HIDE_CURSOR: &[u8] = b"\x1b[?25l";
const SHOW_CURSOR: &[u8] = b"\x1b[?25h";

pub(crate) fn heading(fleet: &Fleet) -> String {
    let (clusters, nodes) = fleet.size();
    let nodes = if nodes == 1 {
        "1 node".to_owned()
    } else {
        format!("{nodes} nodes")
    };
    let what = styled("meshwright demo", mean::title());
    format!("{what}: {clusters} simulated clusters with {nodes} each, and the real operator\n")
}

pub(crate) fn lines(all: &[Line]) -> String {
    let mut text = String::new();
    for Line { cause, effect } in all {
        let gap = " ".repeat(CAUSE.saturating_sub(cause.chars().count()) + 2);
        match effect {
            Some(effect) => {
                text.push_str(&format!("  {cause}{gap}{}\n", styled(effect, mean::good())))
            }
            None => text.push_str(&format!(
                "  {}{gap}{}\n",
                styled(cause, mean::title()),
                styled("…", mean::changed())
            )),
        }
    }
    text
}

/// Last lines written to the terminal, which are redrawn in place.
#[derive(Debug)]
pub(crate) struct Screen {
    drawn: usize,
    coloured: bool,
}

impl Screen {
    /// Hides the cursor. From then on an interrupt ends the process at once and restores the
    /// terminal.
    pub(crate) fn open() -> Result<Screen> {
        std::thread::Builder::new()
            .name("interrupt".to_owned())
            .spawn(end_on_interrupt)
            .context("cannot start a thread")?;
        write_stdout(HIDE_CURSOR)?;
        let coloured =
            anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never;
        Ok(Screen { drawn: 0, coloured })
    }

    pub(crate) fn draw(&mut self, text: &str) -> Result<()> {
        let plain = anstream::adapter::strip_str(text).to_string();
        let size = terminal_size::terminal_size().map_or((80, 24), |(width, height)| {
            (width.0.into(), height.0.into())
        });
        let lines = fitting(if self.coloured { text } else { &plain }, size);
        let mut frame = if self.drawn > 0 {
            format!("\x1b[{}A\r", self.drawn)
        } else {
            String::new()
        };
        lines
            .iter()
            .for_each(|line| frame.push_str(&format!("{line}\x1b[K\n")));
        frame.push_str("\x1b[J");
        self.drawn = lines.len();
        write_stdout(frame.as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, the error cannot be reported.
        _ = write_stdout(SHOW_CURSOR);
    }
}

/// Runs in its own thread, so that it never waits for the runtime.
fn end_on_interrupt() {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return;
    };
    let signals = runtime.block_on(async {
        let (mut term, mut interrupt) = (
            signal(SignalKind::terminate()).ok()?,
            signal(SignalKind::interrupt()).ok()?,
        );
        tokio::select! {
            biased;
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        Some(())
    });
    if signals.is_some() {
        let mut stdout = std::io::stdout().lock();
        _ = stdout.write_all(SHOW_CURSOR).and_then(|()| stdout.flush());
        std::process::exit(0);
    }
}

/// The first lines that fit the terminal, each truncated to its width. One line is left for the
/// cursor.
fn fitting(text: &str, (width, height): (usize, usize)) -> Vec<String> {
    let all: Vec<&str> = text.lines().collect();
    let room = height.saturating_sub(1).max(1);
    let mut lines: Vec<String> = all.iter().take(room).map(|line| cut(line, width)).collect();
    if all.len() > room {
        lines.pop();
        lines.push(cut(
            &format!("… {} more lines", all.len() - lines.len()),
            width,
        ));
    }
    lines
}

/// Truncates a line. Escape sequences have no width.
fn cut(line: &str, width: usize) -> String {
    if anstream::adapter::strip_str(line)
        .to_string()
        .chars()
        .count()
        <= width
    {
        return line.to_owned();
    }
    let (mut text, mut column, mut in_style) = (String::new(), 0, false);
    for c in line.chars() {
        match (in_style, c) {
            (true, _) => in_style = c != 'm',
            (false, '\x1b') => in_style = true,
            (false, _) if column + 1 >= width => break,
            (false, _) => column += 1,
        }
        text.push(c);
    }
    let reset = if line.contains('\x1b') { "\x1b[0m" } else { "" };
    format!("{text}…{reset}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_where_the_terminal_ends() {
        assert_eq!(cut("12345", 5), "12345");
        assert_eq!(cut("123456", 5), "1234…");
        assert_eq!(cut("\x1b[1m12345\x1b[0m", 5), "\x1b[1m12345\x1b[0m");
        assert_eq!(cut("\x1b[1m123456\x1b[0m", 5), "\x1b[1m1234…\x1b[0m");
    }

    #[test]
    fn what_has_no_room_is_counted() {
        assert_eq!(fitting("a\nb\nc\n", (80, 4)), ["a", "b", "c"]);
        assert_eq!(fitting("a\nb\nc\n", (80, 3)), ["a", "… 2 more lines"]);
    }

    #[test]
    fn effects_begin_in_one_column() {
        let all = [
            Line::of("short".to_owned(), "x".to_owned()),
            Line::of("a bit longer".to_owned(), "y".to_owned()),
        ];
        let text = anstream::adapter::strip_str(&lines(&all)).to_string();
        assert_eq!(
            text,
            format!("  {:28}  x\n  {:28}  y\n", "short", "a bit longer")
        );
    }
}
