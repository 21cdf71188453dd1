//! The view on a terminal, again and again until a key ends it.

use std::io;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line as Text;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};

use crate::error::Error;
use crate::table::{Kind, Line, lines};
use crate::view::View;

const KEYS: &str = " q quit   ↑ ↓ scroll   s streams and pools   space now ";

/// What the keys have set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    details: bool,
    /// The first line that is shown.
    top: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Quit,
    Now,
    Draw,
}

/// Shows the view until a key ends it, gathered anew after each `interval`.
pub(crate) fn show(interval: Duration) -> Result<(), Error> {
    // Before the terminal is taken: an error is read where the user types.
    let view = View::gather()?;
    let mut terminal = ratatui::try_init()?;
    let shown = show_on(&mut terminal, view, interval);
    ratatui::restore();
    shown
}

fn show_on(terminal: &mut DefaultTerminal, mut view: View, interval: Duration) -> Result<(), Error> {
    let mut state = State { details: true, top: 0 };
    loop {
        let gathered = Instant::now();
        loop {
            let lines = lines(&view, state.details);
            state.top = state.top.min(lines.len().saturating_sub(1));
            terminal.draw(|frame| draw(frame, &lines, state, interval))?;
            let left = interval.saturating_sub(gathered.elapsed());
            match wait(left, &mut state)? {
                Some(Wish::Quit) => return Ok(()),
                Some(Wish::Draw) => {}
                Some(Wish::Now) | None => break,
            }
        }
        view = View::gather()?;
    }
}

/// Waits for a key or another size of the terminal; none when the time is up.
fn wait(time: Duration, state: &mut State) -> io::Result<Option<Wish>> {
    if !event::poll(time)? {
        return Ok(None);
    }
    Ok(Some(match event::read()? {
        Event::Key(key) if key.kind != KeyEventKind::Release => state.press(key),
        _ => Wish::Draw,
    }))
}

impl State {
    fn press(&mut self, key: KeyEvent) -> Wish {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::Quit,
            KeyCode::Char(' ') => return Wish::Now,
            KeyCode::Char('s') => self.details = !self.details,
            KeyCode::Down | KeyCode::Char('j') => self.top = self.top.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.top = self.top.saturating_sub(1),
            KeyCode::PageDown => self.top = self.top.saturating_add(10),
            KeyCode::PageUp => self.top = self.top.saturating_sub(10),
            KeyCode::Home => self.top = 0,
            _ => {}
        }
        Wish::Draw
    }
}

fn draw(frame: &mut Frame<'_>, lines: &[Line], state: State, interval: Duration) {
    let [body, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    let shown: Vec<Text<'_>> =
        lines.iter().skip(state.top).map(|line| Text::styled(line.text.as_str(), style(line.kind))).collect();
    frame.render_widget(Paragraph::new(shown), body);
    let text = format!("{KEYS}  every {} s", interval.as_secs_f32());
    frame.render_widget(Paragraph::new(text).style(Style::new().reversed()), foot);
}

/// By the terminal's own colours, so that dark and light ones stay as they are.
fn style(kind: Kind) -> Style {
    match kind {
        Kind::Device => Style::new().add_modifier(Modifier::BOLD).cyan(),
        Kind::Titles => Style::new().add_modifier(Modifier::UNDERLINED),
        Kind::Process => Style::new(),
        Kind::Part | Kind::Note => Style::new().add_modifier(Modifier::DIM),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::view::tests::{device, figures};

    fn drawn(state: State) -> String {
        let mut view = View { devices: vec![device(1, 71)], notes: Vec::new() };
        view.devices[0].processes[0].own = Some(figures(1));
        let mut terminal = Terminal::new(TestBackend::new(120, 6)).unwrap();
        let lines = lines(&view, state.details);
        terminal.draw(|frame| draw(frame, &lines, state, Duration::from_millis(1500))).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_terminal_shows_devices_processes_and_streams() {
        let screen = drawn(State { details: true, top: 0 });
        for text in ["NVIDIA H100", "37 % busy", "python train.py", "stream 0x7f10 tag kv", "every 1.5 s"] {
            assert!(screen.contains(text), "{text}\n{screen}");
        }
        assert!(!drawn(State { details: false, top: 0 }).contains("0x7f10"));
        assert!(!drawn(State { details: true, top: 1 }).contains("NVIDIA H100"), "it is scrolled away");
    }

    #[test]
    fn keys_do_what_the_last_line_says() {
        let mut state = State { details: true, top: 0 };
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(state.press(key(KeyCode::Char('s'))), Wish::Draw);
        assert_eq!(state.press(key(KeyCode::Down)), Wish::Draw);
        assert_eq!(state, State { details: false, top: 1 });
        state.press(key(KeyCode::Up));
        state.press(key(KeyCode::Up));
        assert_eq!(state.top, 0);
        assert_eq!(state.press(key(KeyCode::Char(' '))), Wish::Now);
        assert_eq!(state.press(key(KeyCode::Char('q'))), Wish::Quit);
        assert_eq!(state.press(key(KeyCode::Char('c'))), Wish::Draw);
        let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.press(end), Wish::Quit);
    }
}
