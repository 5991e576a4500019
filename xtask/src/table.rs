//! Plain text tables.

/// Lays out rows in columns as wide as their widest cell, two blanks apart; the first row is the heading.
pub(crate) fn layout<const N: usize>(rows: &[[String; N]]) -> String {
    let width: [usize; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(width).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_no_line_ends_in_a_blank() {
        let rows = [["step", "result"], ["clippy", "ok"]].map(|row| row.map(String::from));
        assert_eq!(layout(&rows), "step    result\nclippy  ok\n");
    }
}
