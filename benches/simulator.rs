//! The cost of a simulated job, by the number of workers. The cost of an event may grow only with the logarithm of
//! that number.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, Distribution, Until};

fn cluster(scheme: SchemeConfig, workers: usize) -> Cluster {
    let mut cluster = Cluster::new(scheme, workers, 1);
    cluster.compute = Distribution::Exponential { mean: 1.0 };
    cluster.network.latency = Distribution::Exponential { mean: 0.1 };
    cluster.until = Until::Clocks(20);
    cluster
}

/// Time alone, 20 clocks of all workers. An element is an event: something computed, sent or arrived.
fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("simulator");
    group.sample_size(10);
    for scheme in [SchemeConfig::Bsp, SchemeConfig::Ssp { staleness: 3 }, SchemeConfig::Essp { staleness: 3 }]
    {
        for workers in [100, 1_000, 10_000] {
            let events = cluster(scheme, workers).run().unwrap().counts.events;
            group.throughput(Throughput::Elements(events));
            group.bench_function(BenchmarkId::new(scheme.name(), workers), |b| {
                b.iter(|| cluster(scheme, workers).run().unwrap());
            });
        }
    }
}

criterion_group!(benches, events);
criterion_main!(benches);
