//! Tables for a terminal and for a page.

/// Rows of text under a heading. Numbers stand to the right, words to the left.
#[derive(Clone, Debug, Default)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<H: Into<String>>(heading: impl IntoIterator<Item = H>) -> Table {
        Table { heading: heading.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row, which has as many cells as the heading.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let row: Vec<String> = cells.into_iter().map(Into::into).collect();
        debug_assert_eq!(row.len(), self.heading.len(), "a cell for each column");
        self.rows.push(row);
    }

    /// Columns in line, two blanks apart.
    pub fn text(&self) -> String {
        let widths = self.widths();
        let line = |row: &[String]| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                let padding = " ".repeat(width - cell.chars().count());
                if self.is_number(column) { padding + cell } else { cell.clone() + &padding }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        std::iter::once(&self.heading).chain(&self.rows).map(|row| line(row)).collect()
    }

    /// The same as Markdown.
    pub fn markdown(&self) -> String {
        let line = |row: &[String]| {
            let cells: Vec<_> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let columns = 0..self.heading.len();
        let ruler: Vec<_> =
            columns.map(|column| if self.is_number(column) { "---:" } else { "---" }).collect();
        let ruler = format!("| {} |\n", ruler.join(" | "));
        line(&self.heading) + &ruler + &self.rows.iter().map(|row| line(row)).collect::<String>()
    }

    fn widths(&self) -> Vec<usize> {
        let rows = || std::iter::once(&self.heading).chain(&self.rows);
        let width = |column: usize| rows().map(|row| row[column].chars().count()).max().unwrap_or(0);
        (0..self.heading.len()).map(width).collect()
    }

    /// True if what stands in the column begins like a number, wherever something stands.
    fn is_number(&self, column: usize) -> bool {
        let is_number = |cell: &str| {
            cell.is_empty()
                || cell == "-"
                || cell.starts_with(|c: char| c.is_ascii_digit() || "-+.".contains(c))
        };
        self.rows.iter().all(|row| is_number(&row[column]))
    }
}

/// A number with about three digits that count, as people write it.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => value.to_string(),
        0.0 => "0".into(),
        size if size >= 1e6 => format!("{value:.2e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.001 => {
            let decimals = 2 - size.log10().floor() as i32;
            format!("{value:.*}", decimals as usize)
        }
        _ => format!("{value:.1e}"),
    }
}

/// The shape of a histogram, a sign for each of at most `most` bars.
pub fn bars(counts: &[u64], most: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let per_bar = counts.len().div_ceil(most).max(1);
    // Of counts of any size: neither their sum nor eight times one of them fits 64 bits.
    let sum = |counts: &[u64]| counts.iter().map(|count| u128::from(*count)).sum();
    let sums: Vec<u128> = counts.chunks(per_bar).map(sum).collect();
    let highest = sums.iter().max().copied().unwrap_or(1).max(1);
    let bar = |count: &u128| match *count {
        0 => ' ',
        count => BARS[((count * 8).div_ceil(highest) - 1) as usize],
    };
    sums.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_to_the_left_and_numbers_to_the_right() {
        let mut table = Table::new(["scheme", "time"]);
        table.row(["bsp", "10.5"]);
        table.row(["essp(3)", "2"]);
        assert_eq!(table.text(), "scheme   time\nbsp      10.5\nessp(3)     2\n");
        assert_eq!(table.markdown(), "| scheme | time |\n| --- | ---: |\n| bsp | 10.5 |\n| essp(3) | 2 |\n");
    }

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0123456, "0.0123"),
            (3.456, "3.46"),
            (12345.6, "12346"),
            (-0.5, "-0.500"),
            (1e-7, "1.0e-7"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_histogram_never_grows_wide() {
        assert_eq!(bars(&[8, 0, 1], 16), "█ ▁");
        assert_eq!(bars(&[1; 100], 16).chars().count(), 15);
        assert_eq!(bars(&[], 16), "");
        assert_eq!(bars(&[u64::MAX; 4], 2), "██");
    }
}
