//! The screen of a terminal, and keys.

use std::io;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::{DefaultTerminal, Frame};

use crate::commands::top::screen::{LineKind, List, Screen};

/// A terminal that shows screens until this is dropped. It is given back at a panic, too.
#[derive(Debug)]
pub(crate) struct Terminal {
    terminal: DefaultTerminal,
    has_colours: bool,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Quit,
    /// Threads instead of functions, or the other way round.
    List,
    Pause,
    /// Nothing, or the terminal has another size.
    Other,
}

impl Terminal {
    /// Takes hold of the terminal.
    ///
    /// # Errors
    ///
    /// If it cannot be set up.
    pub(crate) fn open() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Ok(Self { terminal, has_colours })
    }

    /// Shows a screen.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub(crate) fn show(&mut self, screen: &Screen, list: List, is_paused: bool) -> io::Result<()> {
        let has_colours = self.has_colours;
        self.terminal.draw(|frame| draw(frame, screen, list, is_paused, has_colours))?;
        Ok(())
    }

    /// Waits for a key.
    ///
    /// # Errors
    ///
    /// If the terminal is gone.
    pub(crate) fn key(&self, time: Duration) -> io::Result<Option<Key>> {
        if !event::poll(time)? {
            return Ok(None);
        }
        Ok(Some(match event::read()? {
            Event::Key(key) => meaning(key),
            _ => Key::Other,
        }))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn meaning(key: KeyEvent) -> Key {
    match key.code {
        _ if key.kind == KeyEventKind::Release => Key::Other,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('t') => Key::List,
        KeyCode::Char('p' | ' ') => Key::Pause,
        _ => Key::Other,
    }
}

/// The keys, where there is room for them.
const KEYS: &str = "q quit  t threads  p pause";

fn draw(frame: &mut Frame<'_>, screen: &Screen, list: List, is_paused: bool, has_colours: bool) {
    let area = frame.area();
    let width = usize::from(area.width);
    let mut line = |at: u16, kind: LineKind, text: &str| {
        if at < area.height {
            let place = Rect { y: area.y.saturating_add(at), height: 1, ..area };
            frame.render_widget(Line::styled(fitted(text, width), style(kind, has_colours)), place);
        }
    };
    let mark = if is_paused { "[paused] " } else { "" };
    let mut head = format!("{mark}{}", screen.head());
    let room = width.saturating_sub(columns(&head));
    if let Some(between) = room.checked_sub(KEYS.len()).filter(|&between| between > 0) {
        head = format!("{head}{:between$}{KEYS}", "");
    }
    line(0, LineKind::Plain, &head);
    let foot = area.height.saturating_sub(1);
    let lines = screen.body(list, usize::from(foot.saturating_sub(1)));
    for (at, shown) in (1..foot).zip(&lines) {
        line(at, shown.kind, &shown.text);
    }
    let shown = screen.foot();
    line(foot, shown.kind, &shown.text);
}

/// Text in this many columns. Where it is cut, it says so.
fn fitted(text: &str, width: usize) -> String {
    let after = width.checked_sub(columns(text));
    if let Some(after) = after {
        return format!("{text}{:after$}", "");
    }
    let mut shown = String::new();
    let mut room = width.saturating_sub(1);
    for letter in text.chars() {
        let Some(left) = room.checked_sub(columns(letter.encode_utf8(&mut [0; 4]))) else { break };
        room = left;
        shown.push(letter);
    }
    shown.push('…');
    shown
}

fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

fn style(kind: LineKind, has_colours: bool) -> Style {
    let style = Style::new();
    match kind {
        LineKind::Head => style.add_modifier(Modifier::REVERSED),
        LineKind::Plain => style,
        LineKind::Kernel if has_colours => style.fg(Color::Yellow),
        LineKind::Kernel => style,
        LineKind::Wrong if has_colours => style.fg(Color::Red).add_modifier(Modifier::BOLD),
        LineKind::Wrong => style.add_modifier(Modifier::BOLD),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;
    use unwind_profile::session::ledger::Ledger;

    use crate::commands::top::window::Window;
    use crate::commands::top::window::tests::slice;

    use super::*;

    fn screen() -> Screen {
        let long = "f".repeat(600);
        let wide = "漢".repeat(100);
        let stacks: &[(&[&str], u64)] = &[
            (&["main", &long], 500),
            (&["main", "\u{1b}[2J\u{202e}\nevil"], 300),
            (&["main", &wide], 200),
        ];
        let mut window = Window::default();
        window.add(slice(stacks, 2));
        let ledger = Ledger { written: 1000, complete: 998, unmatched: 2, ..Ledger::new() };
        Screen { whom: "process 4711".to_owned(), window, ledger, waiting: 7 }
    }

    fn drawn(
        screen: &Screen,
        (width, height): (u16, u16),
        has_colours: bool,
    ) -> (Vec<String>, bool) {
        let mut terminal = ratatui::Terminal::new(TestBackend::new(width, height)).unwrap();
        let list = List::Functions;
        terminal.draw(|frame| draw(frame, screen, list, false, has_colours)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells: Vec<_> = buffer.content().chunks(usize::from(width)).collect();
        let is_coloured = buffer.content().iter().any(|cell| cell.fg != Color::Reset);
        let line = |cells: &&[ratatui::buffer::Cell]| {
            let text: String = cells.iter().map(|cell| cell.symbol()).collect();
            text.trim_end().to_owned()
        };
        (cells.iter().map(line).collect(), is_coloured)
    }

    #[test]
    fn d14_names_that_are_long_wide_or_hostile_leave_the_screen_whole() {
        let (lines, _) = drawn(&screen(), (80, 24), true);
        assert_eq!(lines.len(), 24);
        assert!(lines[0].starts_with("unwind top: process 4711, 2.0 s, 1000 samples"), "{lines:?}");
        assert!(lines[0].ends_with(KEYS), "{lines:?}");
        let is_cut = |line: &str| line.ends_with('…');
        assert!(lines[2].starts_with("  50.0 %  50.0 %  ffff") && is_cut(&lines[2]), "{lines:?}");
        let evil = r"  30.0 %  30.0 %  \x1b[2J\xe2\x80\xae\nevil";
        assert_eq!(lines[3], evil, "{lines:?}");
        assert!(lines[4].starts_with("  20.0 %  20.0 %  漢") && is_cut(&lines[4]), "{lines:?}");
        assert_eq!(lines[5], "   0.0 % 100.0 %  main", "{lines:?}");
        assert!(lines[6].starts_with("   share  2 threads"), "{lines:?}");
        let foot = "1000 samples: 99.8 % complete, 0.2 % unmatched; 7 to be walked";
        assert_eq!(lines[23], foot);
        assert!(!lines.concat().contains(|letter: char| letter.is_control()), "{lines:?}");
    }

    #[test]
    fn d14_a_ledger_that_does_not_add_up_says_so_and_colours_can_be_left_out() {
        let mut wrong = screen();
        wrong.ledger.written = 999;
        let (lines, is_coloured) = drawn(&wrong, (80, 24), true);
        assert!(lines[23].starts_with("the ledger does not add up"), "{lines:?}");
        assert!(is_coloured);
        assert!(!drawn(&wrong, (80, 24), false).1);
    }

    #[test]
    fn d14_a_terminal_can_be_of_any_size() {
        for size in [(1, 1), (1, 5), (5, 2), (20, 3), (300, 100)] {
            assert_eq!(drawn(&screen(), size, true).0.len(), usize::from(size.1));
        }
    }
}
