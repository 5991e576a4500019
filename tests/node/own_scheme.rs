//! A scheme that is written outside of the library, and how a worker comes to its scheme.

use std::time::Duration;

use slackline::checkpoint::{Checkpoint, CheckpointOptions};
use slackline::{
    Address, Clock, ConnectError, ElementType, Error, Instant, Server, ServerOptions, Shm, Table, Tcp,
    Worker, WorkerOptions,
    scheme::{
        AnyScheme, Bound, Needs, Registry, Scheme, SchemeConfig, SchemeConfigError, ServerAction,
        ServerEvent, ServerScheme, Share, Start, WorkerAction, WorkerEvent, WorkerScheme,
    },
    sim::fabric::{self, FabricOptions},
    sim::{Cluster, Distribution, SimError},
};

use crate::custom_scheme::{NAME, SCHEME, ShrinkingSsp, train};
use crate::only_worker::TIMEOUT;

/// A server of one shard, and its address.
fn server(scheme: impl Into<AnyScheme>, shard: (u16, u16)) -> (Server<Shm>, Address) {
    let table = Table::flat(64, ElementType::F32).unwrap();
    let options = ServerOptions { shard, ..ServerOptions::new(scheme, 1, 0.1) };
    let values = vec![0.0; 64 / usize::from(shard.1)];
    let server = Server::new(Shm::new(), &Address::random(), table, &values, options).unwrap();
    let address = server.address();
    (server, address)
}

/// Has a worker with these options connect to the servers, which are driven meanwhile.
fn connect(servers: Vec<(Server<Shm>, Address)>, options: WorkerOptions) -> Result<Worker<Shm>, Error> {
    let (mut servers, addresses): (Vec<_>, Vec<_>) = servers.into_iter().unzip();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| Worker::connect(Shm::new(), &addresses, options, TIMEOUT));
        while !connecting.is_finished() {
            for server in &mut servers {
                server.poll(slackline::now()).unwrap();
            }
            std::thread::yield_now();
        }
        connecting.join().unwrap()
    })
}

#[test]
fn a_worker_gets_as_many_slots_as_any_setting_of_its_scheme_needs() {
    for scheme in ["bap(1024)", "delay(1024)"] {
        let scheme: SchemeConfig = scheme.parse().unwrap();
        connect(vec![server(scheme, (0, 1))], WorkerOptions::new(scheme)).unwrap();
    }
}

#[test]
fn a_scheme_from_outside_trains_over_shared_memory_and_tcp() {
    let tcp = "127.0.0.1:0".parse().unwrap();
    for parameters in [train(Shm::new, Address::random()), train(Tcp::new, tcp)] {
        let parameters = parameters.unwrap();
        assert!(parameters.iter().all(|value| (value - 1.0).abs() < 0.05), "{parameters:?}");
    }
}

#[test]
fn a_scheme_from_outside_is_simulated_and_held_to_what_it_promises() {
    let jittery = |scheme: AnyScheme| {
        let mut cluster = Cluster::new(scheme, 8, 1);
        cluster.compute = Distribution::Exponential { mean: 1.0 };
        cluster.run()
    };
    let report = jittery(SCHEME.into()).unwrap();
    assert_eq!((report.scheme.as_str(), report.gradients), ("shrinking-ssp(4, 10)", 800));
    // After clock 40 it is BSP for the workers: slower than one that keeps its bound.
    let keeps = jittery(SchemeConfig::Ssp { staleness: 4 }.into()).unwrap();
    assert!(report.end > keeps.end, "{} and {}", report.end, keeps.end);
    assert_eq!(SCHEME.bound(Clock::new(39)), 1);
}

/// Promises SSP of a bound by one smaller than it keeps.
struct Loose;

impl Scheme for Loose {
    fn name(&self) -> &str {
        "loose"
    }

    fn needs(&self) -> Needs {
        Needs { staleness: Some(1), ..Needs::default() }
    }

    fn server(&self, start: Start) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
        Scheme::server(&SchemeConfig::Asp, start)
    }

    fn worker(&self) -> Box<dyn WorkerScheme> {
        SchemeConfig::Ssp { staleness: 2 }.worker()
    }
}

#[test]
fn the_simulated_fabric_holds_a_scheme_from_outside_to_its_needs() {
    let options = FabricOptions { scheme: Some(SCHEME.into()), ..FabricOptions::default() };
    let summary = fabric::run_all(0..40, &options, 0, &|_| {}).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(summary.versions > 400, "{summary:?}");
    let loose = FabricOptions { scheme: Some(Loose.into()), spare_nodes: true, ..FabricOptions::default() };
    let failure = fabric::run_all(0..40, &loose, 0, &|_| {}).unwrap_err();
    assert!(failure.what.contains("clocks stale under loose"), "{failure}");
}

#[test]
fn a_checkpoint_of_a_scheme_from_outside_is_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Some(CheckpointOptions::new(folder.path().join("shard")));
    let table = Table::flat(4, ElementType::F32).unwrap();
    let options = ServerOptions { checkpoint, ..ServerOptions::new(SCHEME, 1, 0.1) };
    let new = || (Shm::new(), Address::random(), options.clone());
    let (transport, address, own) = new();
    let mut server = Server::new(transport, &address, table.clone(), &[1.0; 4], own).unwrap();
    server.request_checkpoint().unwrap();
    server.finish_checkpoint(TIMEOUT).unwrap();
    drop(server);
    let written = Checkpoint::read(folder.path().join("shard")).unwrap();
    assert_eq!(written.scheme(), "shrinking-ssp(4, 10)");
    let (transport, address, own) = new();
    let resumed = Server::resume(transport, &address, table, written, own).unwrap();
    assert_eq!(resumed.parameters().unwrap(), [1.0; 4]);
}

#[test]
fn a_worker_that_does_not_know_the_scheme_says_so() {
    let error = connect(vec![server(SCHEME, (0, 1))], WorkerOptions::default()).err().unwrap();
    let named = |error: &Error, name: &str| {
        matches!(error,
        Error::SchemeConfig(SchemeConfigError::Unregistered { name: unknown }) if unknown == name)
    };
    assert!(named(&error, "shrinking-ssp"), "{error}");
    assert!(error.to_string().contains("add it to the registry"), "{error}");
}

#[test]
fn a_worker_takes_the_scheme_of_the_servers_and_comes_back_to_it() {
    for scheme in [AnyScheme::from(SchemeConfig::Essp { staleness: 2 }), SCHEME.into()] {
        let schemes = Registry::default().with(NAME, ShrinkingSsp::make);
        let options = WorkerOptions { schemes, ..WorkerOptions::default() };
        let worker = connect(vec![server(scheme.clone(), (0, 1))], options).unwrap();
        assert_eq!(*worker.scheme(), scheme);
    }
}

#[test]
fn a_worker_that_names_another_scheme_is_refused() {
    let options = WorkerOptions::new(SchemeConfig::Ssp { staleness: 4 });
    let error = connect(vec![server(SCHEME, (0, 1))], options).err().unwrap();
    let told = "the worker runs ssp(4), the server shrinking-ssp(4, 10)";
    let is_told = matches!(&error,
        Error::Connect(ConnectError::Refused { reason, .. }) if reason.contains(told));
    assert!(is_told, "{error}");
}

#[test]
fn servers_that_run_different_schemes_get_no_worker() {
    let servers = vec![server(SchemeConfig::Asp, (0, 2)), server(SchemeConfig::Bsp, (1, 2))];
    let error = connect(servers, WorkerOptions::default()).err().unwrap();
    let is_told = matches!(&error,
        Error::Connect(ConnectError::Refused { reason, .. }) if reason.contains("the worker runs asp"));
    assert!(is_told, "{error}");
}

#[test]
fn a_scheme_whose_name_no_worker_could_make_it_of_is_not_served() {
    let table = Table::flat(4, ElementType::F32).unwrap();
    for name in ["ssp", "", "a\nline", "two(2)", "two(", "two)"] {
        let scheme = Named(name);
        let options = ServerOptions::new(scheme, 1, 0.1);
        let made = Server::new(Shm::new(), &Address::random(), table.clone(), &[0.0; 4], options);
        let refused = matches!(made.err(), Some(Error::SchemeConfig(SchemeConfigError::Custom { .. })));
        assert!(refused, "{name:?}");
    }
}

#[test]
fn what_no_server_can_keep_is_made_by_no_registry() {
    let texts = [
        "ds-sync(group=2)",
        "bap(18446744073709551615)",
        "dbw(window=0)",
        "vap(bound=nan)",
        "ssp(",
        "no-such",
    ];
    for text in texts {
        assert!(Registry::default().make(text).is_err(), "{text}");
    }
    assert_eq!(Registry::default().make("ssp(3)"), Ok(SchemeConfig::Ssp { staleness: 3 }.into()));
}

/// It asks how large updates are in sum, which a real server does not keep.
#[test]
fn a_real_server_refuses_vap_as_published() {
    let table = Table::flat(4, ElementType::F32).unwrap();
    let scheme: SchemeConfig = "vap(strength=published)".parse().unwrap();
    let options = ServerOptions::new(scheme, 1, 0.5);
    let made = Server::new(Shm::new(), &Address::random(), table, &[0.0; 4], options);
    let error = made.err().expect("it is refused");
    assert!(matches!(error, Error::Scheme { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("keeps no updates") && said.contains("use vap with strength=weak"), "{said}");
}

#[test]
fn a_registry_takes_any_name_and_a_closure() {
    let staleness = 3;
    let schemes = Registry::default()
        .with(format!("of-{staleness}"), move |_| Ok(SchemeConfig::Ssp { staleness }.into()));
    assert_eq!(schemes.make("of-3"), Ok(SchemeConfig::Ssp { staleness: 3 }.into()));
    assert_eq!(format!("{schemes:?}"), r#"{"of-3"}"#);
    assert_ne!(schemes, Registry::default());
}

/// A scheme of which one half gives up.
#[derive(Clone, Copy, PartialEq)]
enum GivesUp {
    Server,
    Worker,
}

impl Scheme for GivesUp {
    fn name(&self) -> &str {
        "gives-up"
    }

    fn server(&self, start: Start) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
        match self {
            GivesUp::Server => Ok(Box::new(*self)),
            GivesUp::Worker => Scheme::server(&SchemeConfig::Asp, start),
        }
    }

    fn worker(&self) -> Box<dyn WorkerScheme> {
        match self {
            GivesUp::Server => SchemeConfig::Asp.worker(),
            GivesUp::Worker => Box::new(*self),
        }
    }
}

impl ServerScheme for GivesUp {
    fn handle_event(&mut self, _now: Instant, _event: ServerEvent) {}

    fn poll_action(&mut self, _shares: &mut Vec<Share>) -> Option<ServerAction> {
        Some(ServerAction::Fail { reason: "no idea".into() })
    }

    fn smallest_clock(&self) -> Clock {
        Clock::new(0)
    }
}

impl WorkerScheme for GivesUp {
    fn handle_event(&mut self, _now: Instant, _event: WorkerEvent) {}

    fn poll_action(&mut self) -> Option<WorkerAction> {
        Some(WorkerAction::Fail { reason: "no idea".into() })
    }
}

#[test]
fn a_scheme_that_gives_up_ends_the_call_that_ran_it_with_its_reason() {
    for half in [GivesUp::Server, GivesUp::Worker] {
        let error = Cluster::new(half, 2, 1).run().unwrap_err();
        assert_eq!(error.to_string(), "scheme gives-up: no idea");
    }
    let error = server(GivesUp::Server, (0, 1)).0.poll(slackline::now()).unwrap_err();
    assert_eq!(error.to_string(), "scheme gives-up: no idea");
    let mut worker =
        connect(vec![server(GivesUp::Worker, (0, 1))], WorkerOptions::new(GivesUp::Worker)).unwrap();
    let error = worker.step(TIMEOUT).err().unwrap();
    assert_eq!(error.to_string(), "scheme gives-up: no idea");
}

/// A scheme of which one half never has enough: the server pushes on, or the worker answers each copy with a refresh.
#[derive(Clone, Copy, PartialEq)]
enum Endless {
    Server,
    Worker,
}

impl Scheme for Endless {
    fn name(&self) -> &str {
        "endless"
    }

    fn server(&self, start: Start) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
        match self {
            Endless::Server => Ok(Box::new(*self)),
            Endless::Worker => Scheme::server(&SchemeConfig::Asp, start),
        }
    }

    fn worker(&self) -> Box<dyn WorkerScheme> {
        match self {
            Endless::Server => SchemeConfig::Asp.worker(),
            Endless::Worker => Box::new(Refreshes(false)),
        }
    }
}

impl ServerScheme for Endless {
    fn handle_event(&mut self, _now: Instant, _event: ServerEvent) {}

    fn poll_action(&mut self, _shares: &mut Vec<Share>) -> Option<ServerAction> {
        Some(ServerAction::Push)
    }

    fn smallest_clock(&self) -> Clock {
        Clock::new(0)
    }
}

/// It is about to refresh, or not.
struct Refreshes(bool);

impl WorkerScheme for Refreshes {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        self.0 |= matches!(event, WorkerEvent::Joined { .. } | WorkerEvent::Holds { .. });
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        std::mem::take(&mut self.0).then_some(WorkerAction::Refresh { bound: Bound::NONE })
    }
}

#[test]
fn a_scheme_that_never_has_enough_is_found_out_in_virtual_time() {
    for (half, told) in [(Endless::Server, "at one instant"), (Endless::Worker, "computes on none")] {
        let error = Cluster::new(half, 2, 1).run().unwrap_err();
        assert!(matches!(&error, SimError::Broken { what, .. } if what.contains(told)), "{error}");
    }
}

#[test]
fn a_scheme_that_never_has_enough_keeps_no_call_past_its_deadline() {
    assert!(server(Endless::Server, (0, 1)).0.poll(slackline::now()).unwrap(), "it has more to do");
    let (mut server, address) = server(Endless::Worker, (0, 1));
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let options = WorkerOptions::new(Endless::Worker);
            let mut worker = Worker::connect(Shm::new(), &[address], options, TIMEOUT).unwrap();
            worker.step(Duration::ZERO).err().unwrap()
        });
        assert!(server.drive(|_| working.is_finished(), TIMEOUT).unwrap());
        let error = working.join().unwrap();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
    });
}

struct Named(&'static str);

impl slackline::scheme::Scheme for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn server(
        &self,
        start: slackline::scheme::Start,
    ) -> Result<Box<dyn slackline::scheme::ServerScheme>, SchemeConfigError> {
        slackline::scheme::Scheme::server(&SchemeConfig::Asp, start)
    }

    fn worker(&self) -> Box<dyn slackline::scheme::WorkerScheme> {
        SchemeConfig::Asp.worker()
    }
}

#[test]
fn the_examples_run_to_their_end() {
    crate::custom_scheme::main().unwrap();
    crate::groups::main().unwrap();
    crate::publish_weights::main().unwrap();
    crate::simulate::main().unwrap();
}
