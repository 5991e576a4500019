//! The cost of one event in a scheme, with few workers and with many. The cost may not grow with their number.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use slackline::internals::clock::WorkerId;
use slackline::{
    Clock, Instant, Version,
    scheme::{GradientId, SchemeConfig, ServerAction, ServerEvent, Share, Statistics, WorkerEvent},
};

const NOW: Instant = Instant::ORIGIN;

/// One clock of all workers: an event is a gradient that arrives, with all that follows from it.
fn server(c: &mut Criterion) {
    let mut group = c.benchmark_group("server");
    for config in [
        SchemeConfig::Bsp,
        SchemeConfig::Bap { staleness: 3 },
        SchemeConfig::Asp,
        SchemeConfig::Essp { staleness: 3 },
    ] {
        for workers in [4u32, 1_000, 10_000] {
            group.throughput(Throughput::Elements(u64::from(workers)));
            group.bench_function(BenchmarkId::new(config.name(), workers), |b| {
                let mut server = config.server(workers as usize).unwrap();
                for id in 0..workers {
                    server.handle_event(
                        NOW,
                        ServerEvent::Joined { worker: WorkerId(id), clock: Clock::new(0), returns: false },
                    );
                }
                let mut shares: Vec<Share> = Vec::new();
                let (mut clock, mut version) = (Clock::new(0), Version::new(0));
                b.iter(|| {
                    for id in 0..workers {
                        let gradient = GradientId { worker: WorkerId(id), clock };
                        server.handle_event(
                            NOW,
                            ServerEvent::Arrived { gradient, base: version, loss: None, magnitude: None },
                        );
                        while let Some(action) = server.poll_action(&mut shares) {
                            if action == ServerAction::Apply {
                                version = version.next();
                                let statistics = Statistics::default();
                                server.handle_event(NOW, ServerEvent::Applied { version, statistics });
                            }
                        }
                    }
                    clock = clock.next();
                    assert_eq!(server.smallest_clock(), clock);
                });
            });
        }
    }
}

/// One clock of one worker: a copy taken, a gradient published.
fn worker(c: &mut Criterion) {
    let mut group = c.benchmark_group("worker");
    for config in [SchemeConfig::Bsp, SchemeConfig::Ssp { staleness: 3 }] {
        group.bench_function(config.name(), |b| {
            let mut worker = config.worker();
            let mut clock = Clock::new(0);
            worker.handle_event(NOW, WorkerEvent::Joined { clock });
            b.iter(|| {
                while worker.poll_action().is_some() {
                    let (version, smallest_clock) = (Version::new(clock.get()), clock);
                    worker.handle_event(NOW, WorkerEvent::Holds { version, smallest_clock });
                }
                worker.handle_event(NOW, WorkerEvent::Published { magnitude: None });
                clock = clock.next();
            });
        });
    }
}

criterion_group!(benches, server, worker);
criterion_main!(benches);
