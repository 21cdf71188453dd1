//! Aligned text tables.

/// Lays out rows under a heading: columns as wide as their widest cell, two spaces between, nothing at line ends.
///
/// Cells in the columns that `right` names are aligned to the right, as numbers are.
pub(crate) fn render(heading: &[&str], rows: &[Vec<String>], right: &[usize]) -> String {
    let heading = heading.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
    let width = |column: usize| {
        std::iter::once(&heading)
            .chain(rows)
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths = (0..heading.len()).map(width).collect::<Vec<_>>();
    let rule = widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>();
    let mut text = String::new();
    for row in [&heading, &rule].into_iter().chain(rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            let (before, after) = if right.contains(&column) { (&*padding, "") } else { ("", &*padding) };
            line.push_str(before);
            line.push_str(cell);
            line.push_str(after);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A duration as a table shows it.
pub(crate) fn seconds(time: std::time::Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_end_with_text() {
        let rows = [
            vec!["a".to_owned(), "1".to_owned(), "ok".to_owned()],
            vec!["longer".to_owned(), "12".to_owned(), String::new()],
        ];
        let text = render(&["row", "n", "result"], &rows, &[1]);
        assert_eq!(text, "row      n  result\n------  --  ------\na        1  ok\nlonger  12\n");
    }

    #[test]
    fn width_counts_characters_and_not_bytes() {
        let text = render(&["é"], &[vec!["ab".to_owned()]], &[]);
        assert_eq!(text, "é\n--\nab\n");
    }
}
