//! What people read: a table a question, everybody in a column, ours first.

use super::super::figures::Figures;
use super::super::report::short;
use super::super::suite::size;
use super::cases::{
    CHURNERS, HITS, HITTERS, LARGEST, PATTERNS, PRESSURE, RANDOM, RANDOMISERS, REMOTE, STREAMERS, STREAMS,
    THREADS, churn, hit, random, remote, streams,
};
use super::goals::fastest_rmm;
use super::{OURS, TORCH};
use crate::table;

/// What a row is called, and its case.
type Row = (Vec<String>, String);

/// A column: its heading, and what stands in it for a case.
type Column<'a> = (String, Box<dyn Fn(&str) -> Option<f64> + 'a>);

pub(super) fn render(figures: &Figures) -> String {
    let tables = [
        ("One free and one allocation, 64 live blocks a thread: ns", churns(figures)),
        ("The same: how many times ours the others take", ratios(figures)),
        ("The same: what is held", held(figures)),
        ("One allocation and its free, of one size: ns (mean, half, 99 of 100)", hits(figures)),
        ("Allocated on one thread, freed on another: ns (allocation + free)", remotes(figures)),
        ("RMM's random allocations: ms", randoms(figures)),
        ("RMM's multi-stream benchmark: µs", all_streams(figures)),
    ];
    let mut text = tables
        .into_iter()
        .filter(|(_, table)| table.lines().count() > 2)
        .map(|(title, table)| format!("{title}\n{table}\n"))
        .collect::<String>();
    let pressure = |metric| figures.median(PRESSURE, OURS, metric).map(short);
    if let (Some(slowdown), Some(blocks)) = (pressure("slowdown"), pressure("allocations")) {
        text += &format!(
            "A memory-bound kernel beside {blocks} allocations under pressure: {slowdown} × alone\n"
        );
    }
    text
}

/// Cells that are empty where nothing was measured; rows and columns without a figure are left out.
fn grid(heading: &[&str], rows: impl IntoIterator<Item = Row>, columns: Vec<Column<'_>>) -> String {
    let rows = rows
        .into_iter()
        .map(|(names, case)| (names, columns.iter().map(|(_, value)| value(&case)).collect::<Vec<_>>()));
    let rows = rows.filter(|(_, values)| values.iter().any(Option::is_some)).collect::<Vec<_>>();
    let used = |column: &usize| rows.iter().any(|(_, values)| values[*column].is_some());
    let used = (0..columns.len()).filter(used).collect::<Vec<_>>();
    let mut heading = heading.to_vec();
    let right = (heading.len()..heading.len() + used.len()).collect::<Vec<_>>();
    heading.extend(used.iter().map(|column| &*columns[*column].0));
    let cells = rows.into_iter().map(|(names, values)| {
        let shown = used.iter().map(|column| values[*column].map_or_else(String::new, short));
        names.into_iter().chain(shown).collect()
    });
    table::render(&heading, &cells.collect::<Vec<_>>(), &right)
}

/// A metric of everybody.
fn everybody<'a>(figures: &'a Figures, participants: &[&'a str], metric: &'a str) -> Vec<Column<'a>> {
    let column = |who: &&'a str| -> Column<'a> {
        let who = *who;
        (who.to_owned(), Box::new(move |case| figures.median(case, who, metric)))
    };
    participants.iter().map(column).collect()
}

fn churn_rows() -> impl Iterator<Item = Row> {
    PATTERNS.into_iter().flat_map(|pattern| {
        THREADS.map(|threads| (vec![pattern.name.to_owned(), threads.to_string()], churn(pattern, threads)))
    })
}

fn churns(figures: &Figures) -> String {
    grid(&["blocks", "threads"], churn_rows(), everybody(figures, CHURNERS, "op"))
}

fn ratios(figures: &Figures) -> String {
    let columns: Vec<Column<'_>> = vec![
        (format!("PyTorch ÷ {OURS}"), Box::new(move |case| figures.ratio(case, "op", TORCH, OURS))),
        (
            format!("fastest RMM ÷ {OURS}"),
            Box::new(move |case| Some(fastest_rmm(figures, case)? / figures.median(case, OURS, "op")?)),
        ),
    ];
    grid(&["blocks", "threads"], churn_rows(), columns)
}

fn held(figures: &Figures) -> String {
    let mut columns: Vec<Column<'_>> =
        vec![("live MiB".to_owned(), Box::new(|case| figures.median(case, OURS, "live")))];
    for who in CHURNERS {
        columns.push((
            format!("{who} reserved ÷ live"),
            Box::new(move |case| figures.median(case, who, "reserved")),
        ));
    }
    for (metric, name) in [("metadata", "metadata ÷ reserved"), ("driver_calls", "driver calls")] {
        columns.push((format!("{OURS} {name}"), Box::new(move |case| figures.median(case, OURS, metric))));
    }
    grid(&["blocks", "threads"], churn_rows(), columns)
}

fn hits(figures: &Figures) -> String {
    let metrics = [("pair", "mean"), ("p50", "half"), ("p99", "99 %")];
    let rows = HITTERS.iter().map(|who| (vec![(*who).to_owned()], (*who).to_owned()));
    let columns = HITS.into_iter().flat_map(|bytes| {
        metrics.map(|(metric, name)| -> Column<'_> {
            (format!("{} {name}", size(bytes)), Box::new(move |who| figures.median(&hit(bytes), who, metric)))
        })
    });
    grid(&["allocator"], rows, columns.collect())
}

fn remotes(figures: &Figures) -> String {
    let rows = REMOTE.iter().map(|who| (vec![(*who).to_owned()], (*who).to_owned()));
    let columns = PATTERNS[..2].iter().flat_map(|pattern| {
        [("remote_alloc", "allocation"), ("remote_free", "free")].map(|(metric, name)| -> Column<'_> {
            (
                format!("{}, {name}", pattern.name),
                Box::new(move |who| figures.median(&remote(*pattern), who, metric)),
            )
        })
    });
    grid(&["allocator"], rows, columns.collect())
}

fn randoms(figures: &Figures) -> String {
    let rows = RANDOM.into_iter().flat_map(|allocations| {
        LARGEST.map(|mib| (vec![allocations.to_string(), format!("{mib} MiB")], random(allocations, mib)))
    });
    grid(&["allocations", "up to"], rows, everybody(figures, RANDOMISERS, "random"))
}

fn all_streams(figures: &Figures) -> String {
    let rows = STREAMS.into_iter().flat_map(|count| {
        [false, true].map(|prewarmed| {
            let prewarm = if prewarmed { "yes" } else { "no" };
            (vec![count.to_string(), prewarm.to_owned()], streams(count, prewarmed))
        })
    });
    grid(&["streams", "prewarmed"], rows, everybody(figures, STREAMERS, "streams"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_who_was_measured() {
        let mut figures = Figures::default();
        let case = churn(PATTERNS[1], 16);
        for (who, op) in [
            (OURS, 40.0),
            (TORCH, 36_940.0),
            ("rmm-pool", 34_722.0),
            ("rmm-arena", 6486.0),
            ("rmm-cuda_async", 83_462.0),
        ] {
            figures.add(&case, who, "op", op);
        }
        figures.add(&hit(512), OURS, "p99", 31.0);
        let text = render(&figures);
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let lines = lines.collect::<Vec<_>>();
        for line in [
            "blocks threads ours pytorch rmm-pool rmm-arena rmm-cuda_async",
            "512 B to 512 KiB 16 40.00 36940 34722 6486 83462",
            "blocks threads PyTorch ÷ ours fastest RMM ÷ ours",
            "512 B to 512 KiB 16 923.5 162.2",
            "allocator 512 B 99 %",
            "ours 31.00",
        ] {
            assert!(lines.iter().any(|found| found == line), "no `{line}` in\n{text}");
        }
        assert!(!text.contains("multi-stream") && !text.contains("slowdown"), "{text}");
    }
}
