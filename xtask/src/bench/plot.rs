//! Lines over a logarithmic axis of sizes or numbers, as SVG that reads well on light and on dark pages.

use std::fmt::Write;

use super::figures::Summary;
use super::suite::size;

/// A figure: panels beside each other, on the same scales.
#[derive(Debug)]
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    /// What a reader has to know, in small letters.
    pub(crate) note: &'static str,
    pub(crate) x: &'static str,
    pub(crate) ticks: Ticks,
    pub(crate) y: &'static str,
    pub(crate) rise: Rise,
    pub(crate) panels: Vec<Panel>,
}

/// What stands at the axis from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ticks {
    /// Bytes, four octaves apart, so that the labels do not meet.
    Sizes,
    /// Every power of two.
    Numbers,
}

/// How the axis upwards goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rise {
    /// From nothing, in equal steps.
    Linear,
    /// In powers of ten.
    Logarithmic,
}

#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// A line with its label at its end.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) label: &'static str,
    /// What the style below knows it by.
    pub(crate) class: &'static str,
    /// Bytes or a number, and what was measured there, in order.
    pub(crate) points: Vec<(u64, Summary)>,
}

// Pixels.
const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 60.0;
/// Room for the labels at the ends of lines.
const LABELS: f64 = 156.0;
const LABEL_HEIGHT: f64 = 15.0;

/// What is drawn, on light and on dark pages: colours that those who see fewer of them tell apart.
const COLOURS: [(&str, &str, &str); 4] = [
    ("ours", "#0067b5", "#58b0ff"),
    ("limit", "#00795a", "#3fc79a"),
    ("rival", "#c04f00", "#ff9d5c"),
    ("peer", "#6e7781", "#9198a1"),
];

/// Text, notes, grid and page, in the same two ways.
const PAPER: [[&str; 4]; 2] =
    [["#1f2328", "#59636e", "#d1d9e0", "#ffffff"], ["#e6edf3", "#9198a1", "#30363d", "#0d1117"]];

/// From figures to pixels.
struct Scales {
    /// Powers of two.
    from: f64,
    to: f64,
    /// What was measured, or its powers of ten.
    bottom: f64,
    top: f64,
    rise: Rise,
}

impl Plot {
    pub(crate) fn to_svg(&self) -> String {
        let scales = Scales::of(self);
        let stride = LEFT + WIDTH + LABELS;
        #[expect(clippy::cast_precision_loss, reason = "a few panels")]
        let (width, height) = (stride * self.panels.len() as f64, TOP + HEIGHT + BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n<style>{style}</style>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n<text class=\"title\" x=\"{LEFT}\" \
             y=\"24\">{title}</text>\n<text class=\"note\" x=\"{}\" y=\"24\" text-anchor=\"end\">{}</text>\n",
            width - LABELS,
            escape(self.note),
            title = escape(self.title),
            style = style()
        );
        let mut left = LEFT;
        for panel in &self.panels {
            // Writing to a string does not fail.
            let _ = writeln!(svg, "<g transform=\"translate({left} {TOP})\">");
            self.axes(&mut svg, panel, &scales);
            panel.draw(&mut svg, &scales);
            svg += "</g>\n";
            left += stride;
        }
        svg + "</svg>\n"
    }

    fn axes(&self, svg: &mut String, panel: &Panel, scales: &Scales) {
        let _ = writeln!(
            svg,
            "<text class=\"panel\" y=\"-12\">{}</text>\n\
             <text class=\"note\" x=\"{WIDTH}\" y=\"-12\" text-anchor=\"end\">{}</text>\n\
             <text class=\"note\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            escape(panel.title),
            escape(self.y),
            WIDTH / 2.0,
            HEIGHT + 42.0,
            escape(self.x)
        );
        for value in scales.steps() {
            let y = scales.y(value);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"note\" x=\"-8\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                y + 4.0,
                round(value)
            );
        }
        let mut power = scales.from.ceil();
        while power <= scales.to {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a power of two below 64"
            )]
            let (x, number) = (scales.x(power), 1u64 << (power as u32).min(63));
            let _ = writeln!(
                svg,
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{HEIGHT}\" y2=\"{}\"/>\
                 <text class=\"note\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                HEIGHT + 5.0,
                HEIGHT + 20.0,
                match self.ticks {
                    Ticks::Sizes => size(number),
                    Ticks::Numbers => number.to_string(),
                }
            );
            power += if self.ticks == Ticks::Sizes { 4.0 } else { 1.0 };
        }
        let _ =
            writeln!(svg, "<line class=\"axis\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{HEIGHT}\" y2=\"{HEIGHT}\"/>");
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, scales: &Scales) {
        let mut labels = Vec::new();
        // The first is what the figure is about: it lies on top.
        for line in self.lines.iter().rev().filter(|line| !line.points.is_empty()) {
            let class = line.class;
            let at = line.points.iter().map(|(bytes, summary)| (scales.x(log2(*bytes)), *summary));
            let at = at.collect::<Vec<_>>();
            let path = at.iter().map(|(x, summary)| format!("{x:.1},{:.1}", scales.y(summary.median)));
            let path = path.collect::<Vec<_>>().join(" ");
            let _ = writeln!(svg, "<polyline class=\"line {class}\" points=\"{path}\"/>");
            for (x, summary) in &at {
                let (low, high) = (scales.y(summary.min), scales.y(summary.max));
                let _ = writeln!(
                    svg,
                    "<line class=\"range {class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>\
                     <circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2.5\"/>",
                    scales.y(summary.median)
                );
            }
            if let Some((x, summary)) = at.last() {
                labels.push((scales.y(summary.median), *x, line, summary.median));
            }
        }
        labels.sort_by(|one, other| one.0.total_cmp(&other.0));
        let places = spread(&labels.iter().map(|label| label.0).collect::<Vec<_>>());
        for ((_, x, line, value), y) in labels.into_iter().zip(places) {
            let _ = writeln!(
                svg,
                "<text class=\"label {}\" x=\"{:.1}\" y=\"{:.1}\">{} {}</text>",
                line.class,
                x + 8.0,
                y + 4.0,
                escape(line.label),
                round(value)
            );
        }
    }
}

/// Plain rules, without variables: not everything that shows SVG is a browser.
fn style() -> String {
    let mut rules = "text{font:12px system-ui,sans-serif}.title{font-size:15px;font-weight:600}\
                     .panel{font-weight:600}.line{fill:none;stroke-width:2;stroke-linejoin:round}\
                     .line.ours{stroke-width:3}.line.peer{stroke-width:1.5;stroke-dasharray:5 4}"
        .to_owned();
    let colours = |dark: bool| {
        let [text, note, grid, page] = PAPER[usize::from(dark)];
        let mut rules = format!(
            "text{{fill:{text}}}.note{{fill:{note}}}.grid{{stroke:{grid}}}.axis{{stroke:{note}}}.page{{fill:{page}}}"
        );
        for (class, light_colour, dark_colour) in COLOURS {
            let colour = if dark { dark_colour } else { light_colour };
            rules += &format!(
                ".line.{class},.range.{class}{{stroke:{colour}}}.dot.{class},text.{class}{{fill:{colour}}}"
            );
        }
        rules
    };
    rules += &colours(false);
    rules += &format!("@media(prefers-color-scheme:dark){{{}}}", colours(true));
    rules
}

/// Heights of labels, in order, moved apart so that none covers another, and up again where they would leave the panel.
fn spread(wanted: &[f64]) -> Vec<f64> {
    let mut places = wanted.to_vec();
    for index in 1..places.len() {
        places[index] = places[index].max(places[index - 1] + LABEL_HEIGHT);
    }
    let mut lowest = HEIGHT;
    for place in places.iter_mut().rev() {
        *place = place.min(lowest);
        lowest = *place - LABEL_HEIGHT;
    }
    places
}

impl Scales {
    fn of(plot: &Plot) -> Self {
        let points = plot.panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
        let (mut from, mut to) = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for (number, summary) in points {
            (from, to) = (from.min(log2(*number)), to.max(log2(*number)));
            (least, most) = (least.min(summary.min), most.max(summary.max));
        }
        if from >= to {
            // One size or none: in the middle of an octave on each side.
            let middle = if from.is_finite() { from } else { 12.0 };
            (from, to) = (middle - 1.0, middle + 1.0);
        }
        let (bottom, top) = match plot.rise {
            Rise::Linear if most > 20.0 => (0.0, (most / 10.0).ceil() * 10.0),
            Rise::Linear => (0.0, most.max(1e-6)),
            Rise::Logarithmic if least > 0.0 && least.is_finite() => {
                let bottom = least.log10().floor();
                (bottom, most.log10().ceil().max(bottom + 1.0))
            }
            // Nothing that has a power of ten.
            Rise::Logarithmic => (0.0, 1.0),
        };
        Self { from, to, bottom, top, rise: plot.rise }
    }

    /// Where lines lie across the panel.
    fn steps(&self) -> Vec<f64> {
        let (step, unscaled): (f64, fn(f64) -> f64) = match self.rise {
            Rise::Linear if self.top > 20.0 => (10.0, |place| place),
            Rise::Linear => ((self.top / 4.0).max(f64::MIN_POSITIVE), |place| place),
            Rise::Logarithmic => (1.0, |place| 10f64.powf(place)),
        };
        let places = std::iter::successors(Some(self.bottom), |place| Some(place + step));
        places.take_while(|place| *place <= self.top).map(unscaled).collect()
    }

    fn x(&self, power: f64) -> f64 {
        (power - self.from) / (self.to - self.from) * WIDTH
    }

    fn y(&self, value: f64) -> f64 {
        let place = match self.rise {
            Rise::Linear => value,
            Rise::Logarithmic => value.log10().max(self.bottom),
        };
        HEIGHT - (place - self.bottom) / (self.top - self.bottom) * HEIGHT
    }
}

#[expect(clippy::cast_precision_loss, reason = "a place on an axis")]
fn log2(number: u64) -> f64 {
    (number.max(1) as f64).log2()
}

/// Three digits at most.
fn round(value: f64) -> String {
    match value {
        _ if value == 0.0 || value >= 100.0 => format!("{value:.0}"),
        _ if value >= 1.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ => format!("{value:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &'static str, points: &[(u64, f64)]) -> Line {
        let summary = |value: f64| Summary { median: value, min: value / 2.0, max: value };
        Line { label, class: "ours", points: points.iter().map(|(x, y)| (*x, summary(*y))).collect() }
    }

    fn plot(lines: Vec<Line>) -> Plot {
        Plot {
            title: "a < b",
            note: "",
            x: "bytes",
            ticks: Ticks::Sizes,
            y: "GB/s",
            rise: Rise::Linear,
            panels: vec![Panel { title: "up & down", lines }],
        }
    }

    #[test]
    fn the_axes_span_what_was_measured() {
        let plot = plot(vec![line("one", &[(4096, 10.0), (1 << 20, 55.0)]), line("two", &[])]);
        let scales = Scales::of(&plot);
        assert_eq!((scales.from, scales.to, scales.top), (12.0, 20.0, 60.0));
        assert_eq!((scales.x(12.0), scales.x(20.0)), (0.0, WIDTH));
        assert_eq!((scales.y(0.0), scales.y(60.0)), (HEIGHT, 0.0));
        let svg = plot.to_svg();
        for part in
            ["one 55", "4 KiB", "1 MiB", "GB/s", "a &lt; b", "up &amp; down", "prefers-color-scheme:dark"]
        {
            assert!(svg.contains(part), "no `{part}` in {svg}");
        }
        assert!(!svg.contains("two"), "a line without points has no label");
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }

    #[test]
    fn powers_of_ten_span_what_was_measured() {
        let lines = vec![line("one", &[(1, 30.0), (16, 40_000.0)])];
        let plot = Plot { ticks: Ticks::Numbers, rise: Rise::Logarithmic, ..plot(lines) };
        let scales = Scales::of(&plot);
        assert_eq!((scales.bottom, scales.top), (1.0, 5.0));
        assert_eq!(scales.steps(), [10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        assert_eq!((scales.y(10.0), scales.y(1000.0), scales.y(100_000.0)), (HEIGHT, HEIGHT / 2.0, 0.0));
        let svg = plot.to_svg();
        assert!(
            svg.contains(">16</text>") && svg.contains(">8</text>") && svg.contains(">100000</text>"),
            "{svg}"
        );
        let nothing = Plot { rise: Rise::Logarithmic, ..self::plot(vec![line("one", &[(1, 0.0)])]) }.to_svg();
        assert!(!nothing.contains("NaN") && !nothing.contains("inf"), "{nothing}");
    }

    #[test]
    fn nothing_measured_is_an_empty_plot() {
        let svg = plot(vec![line("one", &[])]).to_svg();
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn labels_keep_apart_and_stay_inside() {
        assert_eq!(spread(&[10.0, 12.0, 100.0]), [10.0, 25.0, 100.0]);
        let end = HEIGHT - 1.0;
        assert_eq!(spread(&[end, end]), [HEIGHT - LABEL_HEIGHT, HEIGHT]);
    }
}
