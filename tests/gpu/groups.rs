//! Groups whose members have their parameters on a GPU, in host memory, or in another process.

use slackline::{Address, Shm, Tcp, Transport};

use super::claims::Scene;
use super::peer::member::{ELEMENTS, GROUP, ROUNDS, average_on_gpu, bytes_of, listen, mean, values};
use super::peer::{Outcome, PATIENCE, Peer};

/// A member on a GPU, one in host memory, and one on a GPU of another process, of which the last one dials the others.
pub(crate) fn a_group_on_a_gpu_has_the_bits_of_processors(scene: &Scene) -> Outcome<()> {
    let gpu = &scene.gpu;
    average(scene, "group", [Shm::new().with_gpu(gpu), Shm::new()], Address::random)?;
    let here = || "127.0.0.1:0".parse().expect("an address");
    average(scene, "group-tcp", [Tcp::new().with_gpu(gpu), Tcp::new()], here)
}

fn average<T: Transport>(
    scene: &Scene,
    role: &str,
    transports: [T; 2],
    address: fn() -> Address,
) -> Outcome<()> {
    let [on_gpu, in_host] = transports;
    let (own, other) = (listen(on_gpu, 0, address())?, listen(in_host, 1, address())?);
    // No member dials the one of the highest rank.
    let addresses = [own.address(), other.address(), address()];
    let role = format!("{role} {} {}", addresses[0], addresses[1]);
    let mut peer = Peer::start((scene.peer)(), &role, 4 * ELEMENTS)?;
    std::thread::scope(|scope| -> Outcome<()> {
        let other = scope.spawn(|| -> Result<(), slackline::Error> {
            let mut member = other.connect(&addresses, PATIENCE)?;
            for round in 0..ROUNDS {
                member.parameters_mut()?.copy_from_slice(&values(1, round));
                assert_eq!(member.average(round, &GROUP, PATIENCE)?.members, GROUP.len());
                assert!(bytes_of(member.parameters()?) == mean(round), "round {round} has other bits");
            }
            member.leave(PATIENCE)
        });
        average_on_gpu(own.connect(&addresses, PATIENCE)?, &scene.gpu)?;
        other.join().map_err(|_| "the member in host memory failed")??;
        Ok(())
    })?;
    assert_eq!(peer.ask("end")?, "it has the bits of processors");
    Ok(())
}
