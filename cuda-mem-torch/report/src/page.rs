//! The page: text and figures as they are, and scripts that draw the rest of it.

use std::fmt::Write;

use anyhow::Result;

use super::encode;
use super::history::{Figures, History, ratio};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// In the order in which they need each other.
const SCRIPTS: [&str; 6] = [
    include_str!("data.js"),
    include_str!("format.js"),
    include_str!("chart.js"),
    include_str!("map.js"),
    include_str!("table.js"),
    include_str!("main.js"),
];

/// Draws a recording called `name`.
pub(super) fn draw(history: &History, name: &str, kind: &str) -> Result<String> {
    let series = history.series()?;
    let figures = history.figures(&series);
    // A script ends where `</` stands in it.
    let data = encode::encode(history, &series)?.to_string().replace('<', "\\u003c");
    let mut notes = String::new();
    for note in &history.notes {
        let _ = writeln!(notes, "<p class=\"note\">{}</p>", escape(note));
    }
    // Each text takes the place of its mark, once, from the end, so that no text is searched for marks.
    let parts = [
        ("{{name}}", escape(name)),
        ("{{style}}", STYLE.to_owned()),
        ("{{name}}", escape(name)),
        ("{{kind}}", subtitle(history, kind)),
        ("{{figures}}", cards(history, &figures)),
        ("{{notes}}", notes),
        ("{{data}}", data),
        ("{{scripts}}", SCRIPTS.concat()),
    ];
    let mut page = String::new();
    let mut rest = TEMPLATE;
    for (mark, text) in parts {
        let Some((before, after)) = rest.split_once(mark) else { continue };
        page.push_str(before);
        page.push_str(&text);
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}

fn subtitle(history: &History, kind: &str) -> String {
    let mut text = format!("{}: {} {}", escape(kind), count(history.events as usize), history.what);
    if let Some(last) = history.times.last() {
        let _ = write!(text, " in {}", duration(*last));
    }
    text
}

/// The figures, for people and, in attributes, for programs.
fn cards(history: &History, figures: &Figures) -> String {
    let mut cards = Cards(String::new());
    cards.bytes("peak-live", "Peak live", Some(figures.peak_live), "most that the program held at once");
    if figures.peak_active != figures.peak_live {
        cards.bytes(
            "peak-active",
            "Peak active",
            Some(figures.peak_active),
            "with blocks that a stream still used",
        );
    }
    match figures.peak_reserved {
        Some(bytes) => {
            cards.bytes("peak-reserved", "Peak reserved", Some(bytes), "most that was taken from the device")
        }
        None => cards.bytes("peak-reserved", "Peak reserved", None, "a trace does not say; its replay does"),
    }
    match figures.ratio {
        Some(value) => cards.one(
            "ratio",
            "Reserved ÷ active",
            &format!("{value:.3}"),
            &value.to_string(),
            "1 would be no waste",
        ),
        None => cards.one("ratio", "Reserved ÷ active", "–", "", "needs reserved memory"),
    }
    cards.one(
        "allocations",
        "Allocations",
        &count(figures.allocations),
        &figures.allocations.to_string(),
        "within the recording",
    );
    let oom = figures.out_of_memory;
    let text = if oom == 0 { "none".to_owned() } else { count(oom) };
    cards.one("out-of-memory", "Out of memory", &text, &oom.to_string(), "allocations that failed");
    for reference in &history.references {
        let of = ratio(reference.bytes, figures.peak_active);
        let about = of.map_or_else(String::new, |of| format!("{of:.3} of peak active"));
        cards.bytes(reference.id, &format!("Reserved by {}", reference.name), Some(reference.bytes), &about);
    }
    cards.0
}

struct Cards(String);

impl Cards {
    fn bytes(&mut self, id: &str, name: &str, bytes: Option<u64>, about: &str) {
        let (text, value) = match bytes {
            Some(bytes) => (size(bytes), bytes.to_string()),
            None => ("not recorded".to_owned(), String::new()),
        };
        self.one(id, name, &text, &value, about);
    }

    fn one(&mut self, id: &str, name: &str, text: &str, value: &str, about: &str) {
        let _ = writeln!(
            self.0,
            "<div class=\"card\"><dt>{}</dt><dd id=\"{id}\" data-value=\"{value}\">{text}</dd><dd class=\"about\">{}</dd></div>",
            escape(name),
            escape(about)
        );
    }
}

/// Bytes as people read them.
#[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn duration(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} µs"),
        1000..1_000_000 => format!("{:.2} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}

/// A number with its thousands apart.
fn count(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::history::NEVER;
    use super::super::history::tests::block;
    use super::*;

    #[test]
    fn figures_have_units_and_attributes() {
        let mut history = History::empty("events", 2);
        history.blocks = vec![block(3 << 30, 1, NEVER, NEVER)];
        let page = draw(&history, "a.csv", "a trace").unwrap();
        assert!(page.contains("id=\"peak-live\" data-value=\"3221225472\">3.00 GiB<"));
        assert!(page.contains("id=\"peak-reserved\" data-value=\"\">not recorded<"));
        assert_eq!(
            (count(7), count(1_234_567), size(1023)),
            ("7".into(), "1,234,567".into(), "1023 B".into())
        );
    }

    #[test]
    fn every_mark_is_filled_and_nothing_comes_from_outside() {
        let page = draw(&History::empty("events", 0), "a", "a trace").unwrap();
        for mark in ["{{", "http://", "https://", "src=", "<link", "@import", "url("] {
            assert!(!page.contains(mark), "{mark}");
        }
    }

    #[test]
    fn names_and_frames_are_text_and_never_markup() {
        let mut history = History::empty("events", 1);
        let mut one = block(512, 1, NEVER, NEVER);
        one.stack = Some(0);
        history.blocks = vec![one];
        history.stacks = vec![vec!["</script><script>alert(1)</script>{{scripts}}".to_owned()]];
        let page = draw(&history, "<b>&\"", "a trace").unwrap();
        assert!(!page.contains("<script>alert") && page.contains("&lt;b&gt;&amp;&quot;"));
        // The marks of the page stand in its template alone: text is never searched for them.
        assert_eq!(page.matches("{{scripts}}").count(), 1);
    }
}
