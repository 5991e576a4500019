//! Four schemes in virtual time: the same problem, the same random delays, and how long each takes to the same loss.

use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, Distribution, Quadratic, Until};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    for scheme in ["bsp", "bap(4)", "ssp(4)", "essp(4)"] {
        let mut cluster = Cluster::new(scheme.parse::<SchemeConfig>()?, 8, 1);
        cluster.compute = Distribution::Exponential { mean: 1.0 };
        cluster.problem = Some(Box::new(Quadratic::new(100, 10.0, 1.0, 1)));
        cluster.until = Until::Loss { target: 0.1, within: 10_000.0 };
        let report = cluster.run()?;
        let reached = report.reached.ok_or("the loss was not reached")?;
        println!("{scheme:8} {reached:6.1} s, {} versions, {} gradients", report.versions, report.gradients);
    }
    Ok(())
}
