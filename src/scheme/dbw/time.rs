//! The time until the `k`-th gradient of a version comes.

/// Rows and columns of a table at most: with more workers, neighbouring counts share a cell.
const CELLS_MAX: usize = 64;

/// Samples that a cell remembers: later ones push earlier ones out, exponentially, so that a cluster that changes is
/// noticed. Not in the paper, which says nothing of forgetting.
const MEMORY: f64 = 20.0;

/// The weight of an empty cell beside a sample: nearly nothing.
const EMPTY: f64 = 1e-6;

/// Rounds of projections before it is good enough; where cells are many they get no closer than noise anyway.
const ROUNDS_MAX: usize = 200;

/// Estimates of `T(h, k)`: the time from publishing a version to the `k`-th gradient of it, after an update that `h`
/// gradients went into, so that `h` workers were idle at once and the others still busy.
///
/// The estimate is the one nearest to the means of the samples, weighted by their numbers, among those that do not
/// fall with `k` (waiting for more takes longer) and do not rise with `h` (more idle workers are sooner done): an
/// isotonic regression in two dimensions, by Dykstra's alternating projections. A cell without samples takes the
/// smallest value that the order leaves it, with next to no weight: what was never tried looks cheap, is tried, and is
/// known from then on.
///
/// With `rows == 1`, where no worker is busy when a version comes out because all are interrupted, `h` does not
/// matter and one pass does. Otherwise a fit costs the square of the workers, and above [`CELLS_MAX`] workers
/// neighbouring counts share cells so that it stays there.
#[derive(Debug)]
pub(super) struct Times {
    workers: usize,
    by_busy: bool,
    rows: usize,
    columns: usize,
    means: Vec<f64>,
    counts: Vec<f64>,
    fit: Vec<f64>,
    scratch: Scratch,
}

#[derive(Debug, Default)]
struct Scratch {
    targets: Vec<f64>,
    weights: Vec<f64>,
    along_rows: Vec<f64>,
    along_columns: Vec<f64>,
    line: Vec<f64>,
    line_weights: Vec<f64>,
    blocks: Vec<Block>,
}

/// Neighbours in a line that have one value.
#[derive(Clone, Copy, Debug)]
struct Block {
    sum: f64,
    weight: f64,
    len: usize,
}

impl Block {
    fn mean(&self) -> f64 {
        self.sum / self.weight
    }
}

impl Times {
    /// `by_busy`: whether it matters how many workers were busy.
    pub(super) fn new(by_busy: bool) -> Times {
        Times {
            workers: 0,
            by_busy,
            rows: 0,
            columns: 0,
            means: Vec::new(),
            counts: Vec::new(),
            fit: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Makes room for so many workers. A table that must grow begins from the start; returns true then.
    pub(super) fn make_room(&mut self, workers: usize) -> bool {
        if workers <= self.workers {
            return false;
        }
        self.workers = workers;
        (self.rows, self.columns) =
            if self.by_busy { (workers.min(CELLS_MAX), workers.min(CELLS_MAX)) } else { (1, workers) };
        let cells = self.rows * self.columns;
        let scratch = &mut self.scratch;
        let tables = [&mut self.means, &mut self.counts, &mut self.fit, &mut scratch.targets];
        let more = [&mut scratch.weights, &mut scratch.along_rows, &mut scratch.along_columns];
        for table in tables.into_iter().chain(more) {
            table.clear();
            table.resize(cells, 0.0);
        }
        true
    }

    fn cell(&self, h: usize, k: usize) -> usize {
        let bucket = |count: usize, cells: usize| (count.clamp(1, self.workers) - 1) * cells / self.workers;
        bucket(h, self.rows) * self.columns + bucket(k, self.columns)
    }

    /// The `k`-th gradient came so late, in seconds, after an update out of `h`.
    pub(super) fn add(&mut self, h: usize, k: usize, seconds: f64) {
        if self.workers == 0 {
            return;
        }
        let cell = self.cell(h, k);
        self.counts[cell] = (self.counts[cell] + 1.0).min(MEMORY);
        self.means[cell] += (seconds - self.means[cell]) / self.counts[cell];
    }

    /// `T(h, k)` for `k` in `1..=workers`, into `times`.
    pub(super) fn estimate(&mut self, h: usize, workers: usize, times: &mut Vec<f64>) {
        times.clear();
        if self.workers == 0 {
            times.resize(workers, 0.0);
            return;
        }
        self.fit();
        times.extend((1..=workers).map(|k| self.fit[self.cell(h, k)]));
    }

    fn fit(&mut self) {
        self.fill();
        let (rows, columns, scratch) = (self.rows, self.columns, &mut self.scratch);
        self.fit.copy_from_slice(&scratch.targets);
        scratch.along_rows.fill(0.0);
        scratch.along_columns.fill(0.0);
        let scale = self.fit.iter().copied().fold(0.0, f64::max);
        for _ in 0..ROUNDS_MAX {
            let mut moved: f64 = 0.0;
            for row in 0..rows {
                moved = moved.max(scratch.project(&mut self.fit, row * columns, 1, columns, true));
            }
            if rows == 1 {
                break;
            }
            for column in 0..columns {
                let last = (rows - 1) * columns + column;
                moved = moved.max(scratch.project(&mut self.fit, last, columns, rows, false));
            }
            if moved <= 1e-10 * scale {
                break;
            }
        }
    }

    /// Targets and weights of all cells: means where there are samples, else what the order leaves at least.
    fn fill(&mut self) {
        for row in (0..self.rows).rev() {
            for column in 0..self.columns {
                let cell = row * self.columns + column;
                let left = if column > 0 { self.scratch.along_rows[cell - 1] } else { 0.0 };
                let below =
                    if row + 1 < self.rows { self.scratch.along_rows[cell + self.columns] } else { 0.0 };
                let least = left.max(below);
                let (target, weight) = match self.counts[cell] {
                    0.0 => (least, EMPTY),
                    count => (self.means[cell], count),
                };
                (self.scratch.targets[cell], self.scratch.weights[cell]) = (target, weight);
                self.scratch.along_rows[cell] = least.max(target);
            }
        }
    }
}

impl Scratch {
    /// One of Dykstra's projections, of a line of `table` that begins at `first`: along a row upwards, or from the
    /// last row of a column upwards, so that values must not fall in either. Returns how far anything moved that the
    /// correction of the round before had not foreseen.
    fn project(
        &mut self,
        table: &mut [f64],
        first: usize,
        stride: usize,
        len: usize,
        along_row: bool,
    ) -> f64 {
        let at = |index: usize| if along_row { first + index * stride } else { first - index * stride };
        let corrections = if along_row { &mut self.along_rows } else { &mut self.along_columns };
        self.line.clear();
        self.line.extend((0..len).map(|index| table[at(index)] + corrections[at(index)]));
        self.line_weights.clear();
        self.line_weights.extend((0..len).map(|index| self.weights[at(index)]));
        self.blocks.clear();
        for (value, weight) in self.line.iter().zip(&self.line_weights) {
            let mut block = Block { sum: value * weight, weight: *weight, len: 1 };
            while let Some(before) = self.blocks.last().filter(|before| before.mean() > block.mean()) {
                block.sum += before.sum;
                block.weight += before.weight;
                block.len += before.len;
                self.blocks.pop();
            }
            self.blocks.push(block);
        }
        let mut moved: f64 = 0.0;
        let values = self.blocks.iter().flat_map(|block| std::iter::repeat_n(block.mean(), block.len));
        for ((index, value), target) in values.enumerate().zip(&self.line) {
            moved = moved.max((table[at(index)] - value).abs());
            table[at(index)] = value;
            corrections[at(index)] = target - value;
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[Option<f64>]]) -> Times {
        let mut times = Times::new(true);
        times.make_room(rows.len());
        for (h, row) in rows.iter().enumerate() {
            for (k, value) in row.iter().enumerate() {
                if let Some(value) = value {
                    times.add(h + 1, k + 1, *value);
                }
            }
        }
        times.fit();
        times
    }

    fn is_ordered(times: &Times) -> bool {
        let (rows, columns) = (times.rows, times.columns);
        let value = |row: usize, column: usize| times.fit[row * columns + column];
        (0..rows).all(|row| (1..columns).all(|k| value(row, k - 1) <= value(row, k) + 1e-9))
            && (1..rows).all(|row| (0..columns).all(|k| value(row, k) <= value(row - 1, k) + 1e-9))
    }

    #[test]
    fn what_is_in_order_stays() {
        let times = table(&[&[Some(2.0), Some(4.0)], &[Some(1.0), Some(3.0)]]);
        assert_eq!(times.fit, [2.0, 4.0, 1.0, 3.0]);
    }

    #[test]
    fn what_is_not_is_averaged_by_weight() {
        let mut times = Times::new(false);
        times.make_room(3);
        for (k, seconds, count) in [(1, 1.0, 1), (2, 6.0, 3), (3, 2.0, 1)] {
            (0..count).for_each(|_| times.add(1, k, seconds));
        }
        times.fit();
        assert_eq!(times.fit, [1.0, 5.0, 5.0]);
    }

    #[test]
    fn a_cell_without_samples_takes_the_least_that_the_order_leaves() {
        let times = table(&[&[None, None], &[Some(1.0), Some(3.0)]]);
        assert_eq!(times.fit, [1.0, 3.0, 1.0, 3.0]);
        let times = table(&[&[Some(2.0), None], &[Some(1.0), Some(3.0)]]);
        assert_eq!(times.fit, [2.0, 3.0, 1.0, 3.0]);
    }

    #[test]
    fn a_table_that_grows_begins_anew_and_large_ones_share_cells() {
        let mut times = Times::new(true);
        assert!(times.make_room(2) && !times.make_room(2) && !times.make_room(1));
        times.add(1, 1, 5.0);
        assert!(times.make_room(1_000));
        assert_eq!((times.rows, times.columns), (CELLS_MAX, CELLS_MAX));
        for k in 1..=1_000 {
            times.add(1_000, k, k as f64);
        }
        let mut row = Vec::new();
        times.estimate(1_000, 900, &mut row);
        assert_eq!(row.len(), 900);
        assert!(row.is_sorted() && (row[899] - 900.0).abs() < 16.0, "{}", row[899]);
    }

    /// The conditions that name the nearest ordered table: it is ordered, and no step that keeps the order, tried at
    /// random, comes nearer to the means.
    #[test]
    fn the_fit_is_ordered_and_nothing_near_it_is_nearer_to_the_samples() {
        let mut state = 7_u64;
        let mut unit = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1_u64 << 31) as f64
        };
        for size in [2, 3, 5] {
            for _ in 0..20 {
                let mut times = Times::new(true);
                times.make_room(size);
                for _ in 0..4 * size * size {
                    let (h, k) = (1 + (unit() * size as f64) as usize, 1 + (unit() * size as f64) as usize);
                    times.add(h, k, unit() * 3.0 + k as f64 - 0.3 * h as f64);
                }
                times.fit();
                assert!(is_ordered(&times), "{:?}", times.fit);
                let distance = |fit: &[f64]| {
                    let off = |cell: usize| (fit[cell] - times.scratch.targets[cell]).powi(2);
                    (0..fit.len()).map(|cell| times.scratch.weights[cell] * off(cell)).sum::<f64>()
                };
                let best = distance(&times.fit);
                for _ in 0..200 {
                    // Convex: towards any ordered table, a little.
                    let mut other = Times::new(true);
                    other.make_room(size);
                    for cell in 0..size * size {
                        other.add(1 + cell / size, 1 + cell % size, unit() * 4.0 + (cell % size) as f64);
                    }
                    other.fit();
                    for part in [1e-3, 0.1] {
                        let mixed: Vec<f64> = times
                            .fit
                            .iter()
                            .zip(&other.fit)
                            .map(|(a, b)| (1.0 - part) * a + part * b)
                            .collect();
                        assert!(distance(&mixed) >= best - 1e-7, "{} < {best}", distance(&mixed));
                    }
                }
            }
        }
    }
}
