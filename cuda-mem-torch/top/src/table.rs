//! The view as lines of text, for a terminal and for a pipe alike.

use std::fmt::Write as _;

use crate::figures::Part;
use crate::view::{DeviceView, ProcessView, View};

/// What a line is of, by which a terminal colours it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Titles,
    Process,
    Part,
    Note,
}

/// A line.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// How many streams and pools of a process are shown, the largest ones.
const PARTS: usize = 12;

/// The lines of a view; with `details`, those of streams and pools too.
pub(crate) fn lines(view: &View, details: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    for device in &view.devices {
        lines.push(Line { kind: Kind::Device, text: title(device) });
        if device.processes.is_empty() {
            lines.push(Line { kind: Kind::Note, text: "  no process".to_owned() });
            continue;
        }
        lines.push(Line { kind: Kind::Titles, text: titles() });
        for process in &device.processes {
            lines.push(Line { kind: Kind::Process, text: of_process(process) });
            if let Some(own) = process.own.as_ref().filter(|_| details) {
                add_parts(&mut lines, &own.parts);
            }
        }
    }
    lines.extend(view.notes.iter().map(|note| Line { kind: Kind::Note, text: note.clone() }));
    lines
}

fn title(device: &DeviceView) -> String {
    let mut text = format!("{}  {}", device.title, device.uuid);
    // Text that goes into a String cannot fail; so below.
    if let Some((used, total)) = device.memory {
        let _ = write!(text, "  {} of {} used", size(used), size(total));
    }
    if let Some(busy) = device.busy {
        let _ = write!(text, "  {busy} % busy");
    }
    text
}

fn titles() -> String {
    row(["PID", "USER", "MEMORY", "RESERVED", "LIVE", "PEAK LIVE", "RETRIES", "OOM"], "COMMAND")
}

fn row(cells: [&str; 8], command: &str) -> String {
    let [pid, user, memory, reserved, live, peak, retries, oom] = cells;
    format!(
        "{pid:>9}  {user:<12} {memory:>10} {reserved:>10} {live:>10} {peak:>10} {retries:>7} {oom:>5}  {command}"
    )
}

fn of_process(process: &ProcessView) -> String {
    let (pid, memory) = (process.pid.to_string(), process.memory.map_or_else(unknown, size));
    let user: String = process.user.chars().take(12).collect();
    let Some(own) = &process.own else {
        return row([&pid, &user, &memory, "–", "–", "–", "–", "–"], &process.command);
    };
    let [reserved, live, peak] = [own.reserved, own.live, own.peak_live].map(size);
    let [retries, oom] = [own.retries, own.out_of_memory].map(|count| count.to_string());
    row([&pid, &user, &memory, &reserved, &live, &peak, &retries, &oom], &process.command)
}

fn unknown() -> String {
    "–".to_owned()
}

/// The largest first.
fn add_parts(lines: &mut Vec<Line>, parts: &[Part]) {
    let mut parts: Vec<&Part> = parts.iter().collect();
    parts.sort_by_key(|part| (std::cmp::Reverse(part.reserved), part.stream));
    let (shown, rest) = parts.split_at(parts.len().min(PARTS));
    let mut add = |name: &str, reserved: u64, live: u64| {
        let text = row(["", "", "", &size(reserved), &size(live), "", "", ""], name);
        lines.push(Line { kind: Kind::Part, text });
    };
    for part in shown {
        add(&name(part), part.reserved, part.live);
    }
    if !rest.is_empty() {
        let sum =
            |figure: fn(&Part) -> u64| rest.iter().map(|part| figure(part)).fold(0, u64::saturating_add);
        add(&format!("{} more", rest.len()), sum(|part| part.reserved), sum(|part| part.live));
    }
}

fn name(part: &Part) -> String {
    let mut text = match part.stream {
        0 => "default stream".to_owned(),
        2 => "thread's stream".to_owned(),
        stream => format!("stream {stream:#x}"),
    };
    if let Some(tag) = &part.tag {
        // Its pool is its own.
        let _ = write!(text, " tag {tag}");
    } else if let Some((first, second)) = part.pool {
        let _ = write!(text, " pool {first}.{second}");
    }
    text
}

/// Bytes as people read them.
#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::view::tests::{device, figures};

    #[test]
    fn columns_stand_under_their_titles() {
        let mut view = View { devices: vec![device(1, 71)], notes: vec!["a note".into()] };
        let first = &lines(&view, true)[2].text;
        assert_eq!(
            first,
            "       71  alice         10.00 GiB          –          –          –       –     –  python train.py"
        );
        view.devices[0].processes[0].own = Some(figures(1));
        let told: Vec<_> = lines(&view, true).into_iter().map(|line| line.text).collect();
        assert_eq!(
            told[0],
            "GPU 0  NVIDIA H100  GPU-01010101-0101-0101-0101-010101010101  12.00 GiB of 80.00 GiB used  37 % busy"
        );
        assert_eq!(
            told[1],
            "      PID  USER             MEMORY   RESERVED       LIVE  PEAK LIVE RETRIES   OOM  COMMAND"
        );
        assert_eq!(
            told[2],
            "       71  alice         10.00 GiB   9.00 GiB   7.00 GiB   8.00 GiB       0     0  python train.py"
        );
        assert_eq!(
            told[3],
            "                                     8.00 GiB   6.00 GiB                           default stream"
        );
        assert_eq!(
            told[4],
            "                                     1.00 GiB   1.00 GiB                           stream 0x7f10 tag kv"
        );
        assert_eq!(told[5], "a note");
        assert_eq!(lines(&view, false).len(), 4, "without streams and pools");
        let pool = Part { tag: None, ..view.devices[0].processes[0].own.as_ref().unwrap().parts[1].clone() };
        assert_eq!(name(&pool), "stream 0x7f10 pool 0.2");
    }

    #[test]
    fn what_is_too_much_is_summed() {
        let mut view = View { devices: vec![device(1, 71)], notes: Vec::new() };
        let mut own = figures(1);
        own.parts = (0..20)
            .map(|at| Part { stream: 16 + at, reserved: 1 + at, live: 1, ..Part::default() })
            .collect();
        view.devices[0].processes[0].own = Some(own);
        let told = lines(&view, true);
        assert_eq!(told.len(), 3 + PARTS + 1);
        assert!(told[3].text.contains("stream 0x23") && told[3].text.contains("20 B"), "{:?}", told[3]);
        let last = &told.last().unwrap().text;
        assert!(last.contains("8 more") && last.contains("36 B") && last.contains(" 8 B"), "{last}");
    }

    #[test]
    fn a_device_without_processes_says_so() {
        let mut view = View { devices: vec![device(1, 71)], notes: Vec::new() };
        view.devices[0].processes.clear();
        assert_eq!(lines(&view, true)[1].text, "  no process");
    }
}
