//! The output of perftest.

/// A figure of one of its programs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) name: String,
    /// Of one message.
    pub(super) bytes: u64,
    pub(super) value: f64,
    pub(super) unit: &'static str,
}

/// Reads along with one program's output, line by line.
#[derive(Debug)]
pub(super) struct Perftest {
    pub(super) name: String,
    /// The column that has the figure, and the figure's unit.
    column: Option<(usize, &'static str)>,
}

impl Perftest {
    pub(super) fn new(name: &str) -> Perftest {
        Perftest { name: name.into(), column: None }
    }

    /// The figure: the average bandwidth, or the typical latency.
    pub(super) fn hear(&mut self, line: &str) -> Option<Figure> {
        if line.trim_start().starts_with("#bytes") {
            self.column = match line {
                // It counts 2^20 bytes as one MB.
                _ if line.contains("BW average[MB/sec]") => Some((3, "MiB/s")),
                _ if line.contains("BW average[MiB/sec]") => Some((3, "MiB/s")),
                _ if line.contains("t_typical[usec]") => Some((4, "us")),
                _ => None,
            };
            return None;
        }
        let (column, unit) = self.column?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let bytes = words.first()?.parse().ok()?;
        let value = words.get(column)?.parse().ok()?;
        (value > 0.0).then(|| Figure { name: self.name.clone(), bytes, value, unit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(said: &str) -> Option<Figure> {
        let mut perftest = Perftest::new("a");
        said.lines().find_map(|line| perftest.hear(line))
    }

    #[test]
    fn the_figure_is_the_average_bandwidth_or_the_typical_latency() {
        let said = "                    RDMA_Write BW Test\n Mtu             : 4096[B]\n\
             #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
             65536      500              72.83              68.09  \t\t   0.001089\n";
        let found = figure(said).unwrap();
        assert_eq!((found.bytes, found.value, found.unit), (65536, 68.09, "MiB/s"));
        let said = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
             t_stdev[usec]\n 8       1000          11.47          1186.52      13.60 \t       15.09 \t55.50\n";
        assert_eq!(figure(said).unwrap().value, 13.6);
    }

    #[test]
    fn what_is_no_figure_is_none() {
        assert_eq!(figure("65536 500 72.83 68.09 0.001089"), None, "without a heading");
        assert_eq!(
            figure("#bytes #iterations BW peak[MB/sec] BW average[MB/sec]\n 65536 500 0.00 0.00"),
            None
        );
        assert_eq!(figure("#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]\n 65536 500 1.0 1.0"), None);
        assert_eq!(figure("Couldn't connect to 10.9.9.2:18515"), None);
    }
}
