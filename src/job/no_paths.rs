//! Members of a job to which no path leads by RDMA, though they have it and so has this process: one is on InfiniBand
//! and the other on Ethernet, say, or their networks do not meet. That shows when a connection is made, no earlier.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::choose::{TransportChoice, choose};
use super::member::{Conversation, JobMember};
use super::plan::JobPlan;
use super::rendezvous::{Member, MemberId};
use crate::diagnostic::Diagnostic;
use crate::transport::ConnectError;

/// The time for which a path that is missing for now is asked for again; half of the plan's timeout, if that is less.
const PATIENCE: Duration = Duration::from_secs(10);

/// The missing paths by RDMA, as far as they are known. A member that is started again has another id, and its path is
/// tried again.
#[derive(Debug, Default)]
pub(super) struct NoPaths(HashMap<MemberId, NoPath>);

#[derive(Debug)]
struct NoPath {
    /// The first attempt that found none.
    since: Instant,
    /// The reason, once the path is passed over.
    passed_over: Option<String>,
}

impl NoPaths {
    /// The reason why RDMA is passed over towards a member, if it is.
    pub(super) fn reason(&self, member: MemberId) -> Option<String> {
        self.0.get(&member)?.passed_over.clone()
    }

    /// Takes note that an attempt at `now` has found no path to a member. True if RDMA is passed over from then on: at
    /// once, or, where a path may be there later, when none was found for `patience`.
    fn note(&mut self, member: MemberId, reason: &str, patience: Option<Duration>, now: Instant) -> bool {
        let path = self.0.entry(member).or_insert(NoPath { since: now, passed_over: None });
        if patience.is_none_or(|patience| now.saturating_duration_since(path.since) >= patience) {
            path.passed_over = Some(reason.into());
        }
        path.passed_over.is_some()
    }

    /// Forgets paths that were missing for a while: connections were made.
    pub(super) fn forget_passing(&mut self) {
        self.0.retain(|_, path| path.passed_over.is_some());
    }
}

impl<C: Conversation> JobMember<C> {
    pub(super) fn no_paths(&self) -> MutexGuard<'_, NoPaths> {
        self.no_paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes RDMA over towards a member, from now on, if an attempt to connect to it has found that no path leads
    /// there, the plan requires no transport, and the member is reached over another one: that choice.
    pub(super) fn pass_over(&self, plan: &JobPlan, error: &ConnectError) -> Option<TransportChoice> {
        let (address, reason) = error.no_path()?;
        let member = self.member_at(address).filter(|_| plan.transport.is_none())?;
        let gpu = |uuid: &[u8; 16]| self.transports.maps(uuid);
        let other = choose(&self.host, &member, None, &|| Err(reason.clone()), &gpu).ok()?;
        let patience = error.retry_after().map(|_| PATIENCE.min(plan.timeout / 2));
        if !self.no_paths().note(member.id, &reason, patience, Instant::now()) {
            return None;
        }
        let Member { role, role_rank, host, .. } = member;
        let (passed_over, taken) = (address, &other.address);
        tracing::warn!(%role, role_rank, %host, %passed_over, %taken, reason, "no path by RDMA: taking another");
        Some(other)
    }
}

#[cfg(all(test, feature = "tcp", feature = "verbs"))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::job::JobError;
    use crate::job::error_report::ErrorReport;
    use crate::job::member::End;
    use crate::job::rendezvous::{Host, Hub, HubOptions, Introduction, MemberRole};
    use crate::job::transports::flatten;
    use crate::node::{GroupOptions, Server, ServerOptions, WorkerOptions};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::transport::TransportKind;
    use crate::transport::mixed::Mixed;
    use crate::transport::verbs::Verbs;
    use crate::transport::verbs::unordered::{Neighbour, Unordered};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Sends nothing to rank 0, and keeps the choices of transports that it is to report.
    #[derive(Default)]
    struct Silent(Vec<TransportChoice>);

    impl Conversation for Silent {
        fn receive(&mut self, _: Vec<u8>) -> Option<End> {
            None
        }

        fn finished(&mut self) -> Option<Vec<u8>> {
            None
        }

        fn failed(&mut self, _: ErrorReport) -> Vec<u8> {
            Vec::new()
        }

        fn connected(&mut self, _: MemberRole, choices: Vec<(u32, TransportChoice)>) -> Option<Vec<u8>> {
            self.0 = choices.into_iter().map(|(_, choice)| choice).collect();
            None
        }
    }

    /// Ends the threads that look at it when it is dropped.
    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    type Join<'a> = &'a dyn Fn(MemberRole, &str, Verbs) -> JobMember<Silent>;

    /// Gives `test` a job that members join from hosts of any name, each with a device.
    fn of_a_job(test: impl FnOnce(Join<'_>)) {
        let mut hub = Hub::listen("127.0.0.1:0".parse().unwrap(), HubOptions::default()).unwrap();
        let (address, is_over) = (hub.address().to_string(), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    while hub.poll().is_some() {}
                    hub.wait(Duration::from_millis(5));
                }
            });
            let _over = Over(is_over);
            test(&|role, host, verbs| {
                let introduction = Introduction::new(role, Host::named(host));
                let member = JobMember::join(&address, introduction, None, Silent::default(), PATIENCE);
                let member = member.unwrap();
                member.transports.use_rdma(verbs);
                member
            });
        });
    }

    /// The server of this shard, which is announced.
    fn serve(member: &JobMember<Silent>, plan: &JobPlan, options: ServerOptions) -> Server<Mixed> {
        let shards = u64::from(options.shard.1);
        let table = Table::flat(64 * shards, ElementType::F32).unwrap();
        let server = member.make_server(&plan.transports(), table, &[4.0; 64], None, options).unwrap();
        member.announce(flatten(server.address()), None);
        server
    }

    /// The choice with which a worker connects to a server on another host.
    fn choice_of(plan: &JobPlan, at_server: Verbs, at_worker: Verbs) -> Result<TransportChoice, JobError> {
        let (mut choice, is_over) = (None, &AtomicBool::new(false));
        of_a_job(|join| {
            let members = [(MemberRole::Server, "a", at_server), (MemberRole::Worker, "b", at_worker)];
            let [serving, working] = members.map(|(role, host, verbs)| join(role, host, verbs));
            let mut server = serve(&serving, plan, ServerOptions::new(SchemeConfig::Asp, 1, 0.5));
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        server.drive(|_| false, Duration::from_millis(20)).unwrap();
                    }
                });
                let _over = Over(is_over);
                choice = Some(working.connect(plan, WorkerOptions::new(SchemeConfig::Asp)).map(|worker| {
                    let told = working.with(|silent| silent.0.clone()).unwrap().remove(0);
                    let link = worker.links().next().unwrap();
                    assert_eq!((link.address, link.transport), (told.address.clone(), "tcp"));
                    told
                }));
            });
        });
        choice.expect("it was tried")
    }

    #[test]
    fn a_worker_whose_device_has_no_path_to_the_servers_takes_tcp() {
        let devices =
            || (Unordered::new(0, false).verbs_on_infiniband(), Unordered::new(0, false).verbs(None));
        let (at_server, at_worker) = devices();
        let choice = choice_of(&JobPlan::servers(1).timeout(PATIENCE), at_server, at_worker).unwrap();
        assert_eq!(choice.kind, TransportKind::Tcp);
        assert!(choice.reason.contains("no verbs: one side is on InfiniBand"), "{}", choice.reason);
        let (at_server, at_worker) = devices();
        let required = JobPlan::servers(1).timeout(PATIENCE).transport(TransportKind::Verbs);
        let error = choice_of(&required, at_server, at_worker).unwrap_err().to_string();
        assert!(error.contains("no path") && error.contains("one side is on InfiniBand"), "{error}");
    }

    #[test]
    fn a_worker_to_which_no_path_leads_for_long_takes_tcp() {
        let device = Unordered::new(0, false);
        device.set_neighbour(Neighbour::IsGone);
        let plan = JobPlan::servers(1).timeout(PATIENCE);
        let choice = choice_of(&plan, device.verbs(None), Unordered::new(0, false).verbs(None)).unwrap();
        assert_eq!(choice.kind, TransportKind::Tcp);
        assert!(
            choice.reason.contains("no verbs: the listener's RDMA device finds no way"),
            "{}",
            choice.reason
        );
    }

    #[test]
    fn workers_whose_devices_have_no_path_to_each_other_meet_over_tcp() {
        let plan = &JobPlan::servers(0).timeout(PATIENCE);
        of_a_job(|join| {
            let first = join(MemberRole::Worker, "a", Unordered::new(0, false).verbs_on_infiniband());
            let second = join(MemberRole::Worker, "b", Unordered::new(0, false).verbs(None));
            let meet = |member: &JobMember<Silent>| {
                let (member, choices) =
                    member.meet(plan, &plan.transports(), 2, 64, GroupOptions::default()).unwrap();
                let other = &choices[1 - member.rank()];
                (member, other.kind, other.reason.clone())
            };
            let (dialled, dialling) = std::thread::scope(|scope| {
                let dialled = scope.spawn(|| meet(&first));
                (meet(&second), dialled.join().unwrap())
            });
            let [(_, kind, reason), (_, _, other_reason)] = [&dialled, &dialling];
            assert_eq!((*kind, dialling.1), (TransportKind::Tcp, TransportKind::Tcp));
            assert!(reason.contains("no verbs: one side is on InfiniBand"), "{reason}");
            assert_eq!(other_reason, "the other worker has connected over it");
        });
    }

    #[test]
    fn a_server_whose_device_has_no_path_to_the_first_follows_it_over_tcp() {
        let (plan, is_over) = (&JobPlan::servers(2).timeout(PATIENCE), &AtomicBool::new(false));
        of_a_job(|join| {
            let first = join(MemberRole::Server, "a", Unordered::new(0, false).verbs_on_infiniband());
            let second = join(MemberRole::Server, "b", Unordered::new(0, false).verbs(None));
            let scheme: SchemeConfig = "dbw".parse().unwrap();
            let [mut decides, mut follows] = [(&first, 0), (&second, 1)].map(|(member, shard)| {
                let options = ServerOptions { shard: (shard, 2), ..ServerOptions::new(scheme, 1, 0.5) };
                serve(member, plan, options)
            });
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        decides.drive(|_| false, Duration::from_millis(20)).unwrap();
                    }
                });
                let _over = Over(is_over);
                let deadline = Instant::now() + PATIENCE;
                while !follows.is_following() {
                    assert!(Instant::now() < deadline);
                    second.drive(plan, &mut follows, |_| false, PATIENCE).unwrap();
                }
            });
        });
    }

    #[test]
    fn a_path_that_may_be_there_later_is_passed_over_only_in_the_end() {
        let (mut paths, begun) = (NoPaths::default(), Instant::now());
        let (member, other) = (MemberId(1), MemberId(2));
        let note = |paths: &mut NoPaths, seconds| {
            paths.note(member, "no route", Some(super::PATIENCE), begun + Duration::from_secs(seconds))
        };
        assert!(!note(&mut paths, 0) && !note(&mut paths, 9) && paths.reason(member).is_none());
        // Connections were made: it was there again.
        paths.forget_passing();
        assert!(!note(&mut paths, 10) && !note(&mut paths, 19) && note(&mut paths, 20));
        assert_eq!(paths.reason(member).as_deref(), Some("no route"));
        assert!(paths.note(other, "another network", None, begun), "for good");
        paths.forget_passing();
        assert!(paths.reason(member).is_some() && paths.reason(other).is_some());
    }
}
