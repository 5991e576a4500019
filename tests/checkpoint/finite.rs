//! Gradients that hold a NaN or an infinity: counted, and left out where the options say so.

use slackline::checkpoint::CheckpointError;
use slackline::{Address, NonFinite, Server, ServerOptions, Shm, Version, Worker, scheme::SchemeConfig};

use super::job::{PATIENCE, Serving, checkpointing, table, worker};

const ELEMENTS: usize = 5000;

fn serve(options: ServerOptions) -> Serving {
    Serving::start(
        Server::new(Shm::new(), &Address::random(), table(ELEMENTS), &[0.0; ELEMENTS], options).unwrap(),
    )
}

/// Publishes a gradient that is `value` everywhere, and `odd` at one index.
fn publish(worker: &mut Worker<Shm>, value: f32, odd: f32) {
    let mut step = worker.step(PATIENCE).unwrap();
    step.gradient().unwrap().fill(value);
    step.gradient().unwrap()[ELEMENTS - 7] = odd;
    step.publish(None, PATIENCE).unwrap();
}

#[test]
fn a_gradient_that_is_not_finite_is_counted_and_left_out_where_asked_for() {
    for (non_finite, threads) in
        [NonFinite::Allow, NonFinite::Drop, NonFinite::Refuse].into_iter().flat_map(|n| [(n, 1), (n, 3)])
    {
        let options = ServerOptions {
            non_finite,
            threads,
            ..ServerOptions::new(SchemeConfig::Ssp { staleness: 1 }, 2, -1.0)
        };
        let serving = serve(options);
        let join = || worker(&serving.address, SchemeConfig::Ssp { staleness: 1 });
        let (mut good, mut bad) = std::thread::scope(|scope| {
            let joining = scope.spawn(join);
            (join(), joining.join().unwrap())
        });
        publish(&mut bad, 1.0, f32::NAN);
        let serving = serving.until("the bad one", |status| status.non_finite == 1);
        publish(&mut good, 2.0, 2.0);
        good.flush(PATIENCE).unwrap();
        let server = serving.stop();
        let (status, parameters) = (server.status(), server.parameters().unwrap());
        let finite = parameters.iter().all(|parameter| parameter.is_finite());
        let case = format!("{non_finite:?} on {threads} threads: {status:?}");
        assert_eq!(status.non_finite, 1, "{case}");
        match non_finite {
            NonFinite::Allow => {
                assert_eq!((status.folded, status.dropped, finite), (2, 0, false), "{case}");
                assert!(status.diverged >= Some(Version::new(1)), "{case}");
            }
            NonFinite::Drop | NonFinite::Refuse => {
                let evicted = u64::from(non_finite == NonFinite::Refuse);
                assert_eq!((status.folded, status.dropped, finite), (1, 1, true), "{case}");
                assert_eq!((status.misbehaved, status.left), (evicted, evicted), "{case}");
                assert_eq!((status.diverged, status.voided), (None, 0), "{case}");
                assert!(parameters.iter().all(|parameter| *parameter == parameters[0] && *parameter > 0.0));
            }
        }
        if non_finite == NonFinite::Drop {
            // Its slot is free again, and its next gradient counts.
            let serving = Serving::start(server);
            bad.flush(PATIENCE).unwrap();
            publish(&mut bad, 1.0, 1.0);
            bad.flush(PATIENCE).unwrap();
            assert_eq!(serving.stop().status().folded, 2, "{case}");
        }
    }
}

#[test]
fn a_server_that_has_diverged_writes_no_checkpoint_over_a_good_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let mut options = checkpointing(ServerOptions::new(SchemeConfig::Asp, 1, -1.0), &path);
    options.checkpoint.as_mut().unwrap().every = Some(1);
    let serving = serve(options);
    let mut worker = worker(&serving.address, SchemeConfig::Asp);
    publish(&mut worker, 1.0, 1.0);
    let serving = serving.until("a checkpoint", |status| status.checkpointed == Some(Version::new(1)));
    publish(&mut worker, 1.0, f32::INFINITY);
    let serving = serving.until("a failure", |status| status.checkpoints_failed > 0);
    let mut server = serving.stop();
    assert_eq!(server.status().diverged, Some(Version::new(2)));
    let why = server.finish_checkpoint(PATIENCE).unwrap_err();
    let slackline::Error::Checkpoint(why) = why else { panic!("{why}") };
    assert!(matches!(why, CheckpointError::NotFinite { since: 2, .. }), "{why}");
    assert_eq!(slackline::checkpoint::Checkpoint::read(&path).unwrap().version(), Version::new(1));
}
