//! Schemes at their limits, where they agree bit for bit.

use slackline::scheme::Config;
use slackline::sim::{Cluster, Quadratic, Until};

use super::run;

#[test]
fn x() {
    let mut cluster = Cluster::new(Config::Bsp, 4, 1);
    cluster.problem = Some(Box::new(Quadratic::new(8, 4.0, 1.0, 1)));
    cluster.until = Until::Versions(50);
    println!("{:?}", run(cluster).curve);
}
