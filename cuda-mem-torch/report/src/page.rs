//! The page: text and figures as they are, and scripts that draw the rest of it.

use std::fmt::Write;

use super::encode;
use super::history::ratio;
use super::space::Space;
use super::stacks::Stacks;

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");

/// In the order in which they need each other.
const SCRIPTS: [&str; 11] = [
    include_str!("page/data.js"),
    include_str!("page/format.js"),
    include_str!("page/sites.js"),
    include_str!("page/bands.js"),
    include_str!("page/chart.js"),
    include_str!("page/who.js"),
    include_str!("page/events.js"),
    include_str!("page/compare.js"),
    include_str!("page/map.js"),
    include_str!("page/table.js"),
    include_str!("page/main.js"),
];

/// Draws recordings under a title; `before` are the spaces to compare with, and what that recording is called.
pub(super) fn draw(
    spaces: &[Space],
    before: Option<(&str, &[Space])>,
    stacks: &Stacks,
    title: &str,
    shown: usize,
) -> String {
    // A script ends where `</` stands in it.
    let data = encode::encode(spaces, before, stacks).to_string().replace('<', "\\u003c");
    let (mut figures, mut tabs) = (String::new(), String::new());
    for (place, space) in spaces.iter().enumerate() {
        let hidden = if place == shown { "" } else { " hidden" };
        let _ = writeln!(
            figures,
            "<div class=\"of-space\" data-space=\"{place}\"{hidden}>\n<p class=\"sub\">{}</p>\n<dl class=\"cards\" aria-label=\"Figures\">\n{}</dl>",
            subtitle(space),
            cards(space, place == shown)
        );
        for note in &space.notes {
            let _ = writeln!(figures, "<p class=\"note\">{}</p>", escape(note));
        }
        figures.push_str("</div>\n");
        let _ = writeln!(
            tabs,
            "<button type=\"button\" role=\"tab\" aria-selected=\"{}\" data-space=\"{place}\">{} <small>{}</small></button>",
            place == shown,
            escape(&space.name),
            size(space.curves.peak_active.0)
        );
    }
    // Each text takes the place of its mark, once, from the end, so that no text is searched for marks.
    let parts = [
        ("{{name}}", escape(title)),
        ("{{style}}", STYLE.to_owned()),
        ("{{name}}", escape(title)),
        ("{{tabs}}", tabs),
        ("{{figures}}", figures),
        ("{{data}}", data),
        ("{{shown}}", shown.to_string()),
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
    page
}

fn subtitle(space: &Space) -> String {
    let mut text = format!("{}: {} {}", escape(&space.kind), count(space.curves.events.into()), space.what);
    if let Some(first) = text.get(..1).map(str::to_uppercase) {
        text.replace_range(..1, &first);
    }
    if let Some(last) = space.curves.times.last() {
        let _ = write!(text, " in {}", duration(*last));
    }
    text
}

/// The figures, for people and, in attributes, for programs.
fn cards(space: &Space, named: bool) -> String {
    let curves = &space.curves;
    let mut cards = Cards(String::new(), named);
    cards.bytes("peak-live", "Peak live", Some(curves.peak_live.0), "most that the program held at once");
    if curves.peak_active.0 != curves.peak_live.0 {
        cards.bytes(
            "peak-active",
            "Peak active",
            Some(curves.peak_active.0),
            "with blocks that a stream still used",
        );
    }
    let reserved = (!curves.reserved.is_empty()).then_some(curves.peak_reserved.0);
    let about = if reserved.is_some() {
        "most that was taken from the device"
    } else if space.kind.contains("trace") {
        "a trace does not say; its replay does"
    } else {
        "mappings were not recorded"
    };
    cards.bytes("peak-reserved", "Peak reserved", reserved, about);
    if let Some(value) = reserved.and_then(|reserved| ratio(reserved, curves.peak_active.0)) {
        cards.one(
            "ratio",
            "Reserved ÷ active",
            &format!("{value:.3}"),
            &value.to_string(),
            "1 would be no waste",
        );
    }
    cards.one(
        "allocations",
        "Allocations",
        &count(space.allocations),
        &space.allocations.to_string(),
        "within the recording",
    );
    let text = if space.failed == 0 { "none".to_owned() } else { count(space.failed) };
    cards.one("out-of-memory", "Out of memory", &text, &space.failed.to_string(), "allocations that failed");
    for reference in &space.references {
        let of = ratio(reference.bytes, curves.peak_active.0);
        let about = of.map_or_else(String::new, |of| format!("{of:.3} of peak active"));
        cards.bytes(reference.id, &format!("Reserved by {}", reference.name), Some(reference.bytes), &about);
    }
    cards.0
}

/// Cards, and whether they are named for programs.
struct Cards(String, bool);

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
            "<div class=\"card\"><dt>{}</dt><dd {}=\"{id}\" data-value=\"{value}\">{text}</dd><dd class=\"about\">{}</dd></div>",
            escape(name),
            if self.1 { "id" } else { "data-figure" },
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
fn count(number: u64) -> String {
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
    use super::super::history::tests::block;
    use super::super::history::{History, NEVER};
    use super::*;

    fn page(history: History, name: &str) -> String {
        let space = Space::of_history(history, name).unwrap();
        draw(&[space], None, &Stacks::default(), name, 0)
    }

    #[test]
    fn figures_have_units_and_attributes() {
        let mut history = History::empty("events", 2);
        history.blocks = vec![block(3 << 30, 1, NEVER, NEVER)];
        let page = page(history, "a.csv");
        assert!(page.contains("id=\"peak-live\" data-value=\"3221225472\">3.00 GiB<"));
        assert!(page.contains("id=\"peak-reserved\" data-value=\"\">not recorded<"));
        assert_eq!(
            (count(7), count(1_234_567), size(1023)),
            ("7".into(), "1,234,567".into(), "1023 B".into())
        );
    }

    #[test]
    fn every_mark_is_filled_and_nothing_comes_from_outside() {
        let page = page(History::empty("events", 0), "a");
        for mark in ["{{", "http://", "https://", "src=", "<link", "@import", "url("] {
            assert!(!page.contains(mark), "{mark}");
        }
    }

    #[test]
    fn names_are_text_and_never_markup() {
        let page = page(History::empty("events", 1), "<b>&\"{{scripts}}</script>");
        assert!(page.contains("&lt;b&gt;&amp;&quot;") && !page.contains("<b>&"));
        // The marks of the page stand in its template alone: text is never searched for them.
        assert!(page.contains("{{scripts}}") && !page.contains("{{data}}"));
    }
}
