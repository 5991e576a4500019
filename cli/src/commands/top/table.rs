//! Rows as text.

use super::row::Row;

const COLUMNS: [&str; 18] = [
    "NODE",
    "ROLE",
    "RANK",
    "VERSION",
    "CLOCK",
    "RATE/S",
    "STALE p50/max",
    "WAIT %",
    "IN/S",
    "OUT/S",
    "LOSS",
    "K/BOUND",
    "NORM^2",
    "VARIANCE",
    "RETRIES",
    "TIMEOUTS",
    "UP/LOST",
    "PATH",
];

/// Columns of text, which begin at the left; numbers end at the right.
const TEXTS: [usize; 3] = [0, 1, 17];

/// Draws a table: a line of names, then one for each node.
pub(super) fn draw(rows: &[Row]) -> String {
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = cells.iter().flatten().map(|cells| cells[column].chars().count());
        let names = rows.iter().filter(|_| column == 0).map(|row| row.address.chars().count());
        cells.chain(names).chain([COLUMNS[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    let mut text = String::new();
    line(&mut text, &COLUMNS.map(String::from), &widths);
    for (row, cells) in rows.iter().zip(&cells) {
        match (cells, &row.unreachable) {
            (Some(cells), _) => line(&mut text, cells, &widths),
            (None, reason) => {
                let reason = reason.as_deref().unwrap_or_default();
                let reason: String = reason.chars().filter(|c| !c.is_control()).collect();
                text.push_str(&format!("{:1$}  unreachable: {reason}\n", row.address, widths[0]));
            }
        }
    }
    text
}

fn line(text: &mut String, cells: &[String; COLUMNS.len()], widths: &[usize; COLUMNS.len()]) {
    let begin = text.len();
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let gap = if column == 0 { "" } else { "  " };
        text.push_str(&match TEXTS.contains(&column) {
            true => format!("{gap}{cell:width$}"),
            false => format!("{gap}{cell:>width$}"),
        });
    }
    let end = begin + text[begin..].trim_end().len();
    text.truncate(end);
    text.push('\n');
}

fn cells(row: &Row) -> Option<[String; COLUMNS.len()]> {
    if !row.is_reachable() {
        return None;
    }
    let dash = || "-".to_owned();
    let whole = |value: Option<u64>| value.map_or_else(dash, |value| value.to_string());
    let staleness = match (row.staleness_p50, row.staleness_max) {
        (Some(median), Some(most)) => format!("{median}/{most}"),
        _ => dash(),
    };
    let waits = match (row.waits_for, row.staleness_bound) {
        (Some(k), Some(bound)) => format!("{k}/{bound}"),
        (k, _) => whole(k),
    };
    let measured = |value: Option<f64>| value.map_or_else(dash, |value| format!("{value:.2e}"));
    let mut path = if row.paths.is_empty() { dash() } else { row.paths.join("+") };
    if let Some(seconds) = row.stalled_s {
        path.push_str(&format!("  stalled for {seconds:.0} s"));
    }
    Some([
        row.address.clone(),
        row.role.clone().unwrap_or_else(dash),
        whole(row.rank),
        whole(row.version),
        whole(row.clock),
        row.rate_per_s.map_or_else(dash, |rate| format!("{rate:.1}")),
        staleness,
        row.wait_share.map_or_else(dash, |share| format!("{:.0}", 100.0 * share)),
        row.in_bytes_per_s.map_or_else(dash, bytes),
        row.out_bytes_per_s.map_or_else(dash, bytes),
        row.loss.map_or_else(dash, |loss| format!("{loss:.4}")),
        waits,
        measured(row.mean_norm_squared),
        measured(row.variance),
        whole(row.pull_retries),
        whole(row.timeouts),
        format!("{}/{}", row.peers_up, row.peers_lost),
        path,
    ])
}

fn bytes(bytes: f64) -> String {
    match bytes {
        ..1e3 => format!("{bytes:.0} B"),
        ..1e6 => format!("{:.1} kB", bytes / 1e3),
        ..1e9 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.1} GB", bytes / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_under_their_names_and_who_is_away_keeps_a_line() {
        let rows = [
            Row {
                address: "localhost:9100".into(),
                role: Some("worker".into()),
                rank: Some(2),
                clock: Some(1234),
                staleness_p50: Some(1),
                staleness_max: Some(3),
                wait_share: Some(0.256),
                waits_for: Some(12),
                staleness_bound: Some(5),
                variance: Some(0.001234),
                in_bytes_per_s: Some(12_345_678.0),
                paths: vec!["shm".into(), "tcp".into()],
                ..Row::default()
            },
            Row { address: "b:1".into(), unreachable: Some("no\u{1b}".into()), ..Row::default() },
        ];
        let text = draw(&rows);
        let lines: Vec<_> = text.lines().collect();
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        for (name, value) in [
            ("CLOCK", "1234"),
            ("p50/max", "1/3"),
            ("WAIT %", "26"),
            ("IN/S", "12.3 MB"),
            ("K/BOUND", "12/5"),
            ("VARIANCE", "1.23e-3"),
        ] {
            assert_eq!(end(lines[0], name), end(lines[1], value), "{text}");
        }
        assert!(lines[1].ends_with("shm+tcp"), "{text}");
        assert_eq!(lines[2], "b:1             unreachable: no");
    }
}
