//! Gradients that are sums over several workers: a server that stands for its host hands them on.

use super::{FoldSource, Server, ServerOptions, WorkerState};
use crate::node::folder::FoldMetadata;
use crate::param::SlotHeader;
use crate::scheme::{Damping, GradientId, SchemeConfig, Share};
use crate::transport::Transport;

/// The weight of gradients that are sums over several workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// The scheme weighs the gradients of single workers.
    Refused,
    /// Updates add up: a sum counts whole, as each gradient in it would.
    Whole,
    /// The same for each worker: one part in the number of all of them.
    Mean,
}

/// How a worker breaks the protocol whose gradient is a sum where none is taken.
const REFUSED: &str = "its gradient is a sum over several workers, which this server's scheme cannot weigh";

/// The most workers whose gradients may be in a sum, beside the worker that publishes it: without a bound, one faulty
/// word would take the weight of all others away.
pub(super) const OTHERS_MAX: u32 = u16::MAX as u32;

impl Sums {
    pub(super) fn under(options: &ServerOptions) -> Sums {
        match (options.scheme.built_in(), options.damping) {
            (_, damping) if !matches!(damping, Damping::None) => Sums::Refused,
            _ if options.additive => Sums::Whole,
            (Some(SchemeConfig::Bsp), _) => Sums::Mean,
            _ => Sums::Refused,
        }
    }

    /// Returns how a worker breaks the protocol whose gradient is a sum over so many others, if it does.
    pub(super) fn fault(self, others: u32) -> Option<&'static str> {
        match others {
            0 => None,
            _ if self == Sums::Refused => Some(REFUSED),
            1..=OTHERS_MAX => None,
            _ => Some("its gradient is a sum over more workers than there may be"),
        }
    }
}

/// The workers beside its own that are in the latest gradient of a worker that is in.
fn others_in(workers: &[Option<WorkerState>], gradient: GradientId) -> u32 {
    workers.get(gradient.worker.index()).and_then(Option::as_ref).map_or(0, |state| state.others)
}

impl<T: Transport> Server<T> {
    /// Gives each worker the same weight in the shares at hand if some of them are sums. A fold in hope takes each for
    /// a sum over as many workers as the one before.
    pub(super) fn weigh_sums(&mut self) {
        if self.sums != Sums::Mean {
            return;
        }
        let of = |share: &Share| u64::from(others_in(&self.workers, share.gradient).min(OTHERS_MAX));
        let others: u64 = self.shares.iter().map(of).sum();
        if others > 0 {
            let weight = 1.0 / (self.shares.len() as u64 + others) as f32;
            self.shares.iter_mut().for_each(|share| share.weight = weight);
        }
    }

    /// Keeps with a fold, which counts from here on, how many workers its gradients are sums over.
    pub(super) fn bind_sums(&mut self) {
        let workers = &self.workers;
        for (share, source) in self.work.shares.iter().zip(&mut self.work.sources) {
            source.others = others_in(workers, share.gradient);
        }
    }

    /// The number of workers, beside its own, whose gradients are in one gradient of a fold that counts. Where weights
    /// depend on it, it is the number of the announcement. Under other schemes the worker may have announced its next
    /// gradient since, so its header is read again there, and the number only goes into counters.
    pub(super) fn others(&self, source: &FoldSource, header: Option<SlotHeader>) -> u64 {
        let others = match self.sums {
            Sums::Refused => 0,
            Sums::Mean => source.others,
            Sums::Whole => header.map_or(0, |header| header.others),
        };
        u64::from(others.min(OTHERS_MAX))
    }

    /// The metadata of the gradients of the current fold, as their headers say.
    pub(super) fn metadata(&self) -> FoldMetadata {
        let epoch = self.shard.frames.epoch();
        let (mut metadata, mut sum, mut with_loss) = (FoldMetadata::default(), 0.0, 0);
        for (share, source) in self.work.shares.iter().zip(&self.work.sources) {
            let header = source.inbox.header_again(share.gradient.clock, epoch);
            let workers = 1 + self.others(source, header);
            metadata.workers += workers;
            // The loss of a gradient that is not folded in does not belong to this version, and may not be finite.
            let is_folded = !self.work.left_out.contains(&share.gradient);
            if let Some(loss) = header.and_then(|header| header.loss).filter(|_| is_folded) {
                sum += workers as f64 * f64::from(loss);
                with_loss += workers;
            }
        }
        metadata.loss = (with_loss > 0).then(|| sum / with_loss as f64);
        metadata
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::node::server::NonFinite;
    use crate::node::{Worker, WorkerOptions};
    use crate::table::{ElementType, Table};
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn sums_are_weighed_under_bsp_or_where_updates_add_up_and_never_damped() {
        let under = |scheme, damping, additive| {
            let options = ServerOptions { damping, additive, ..ServerOptions::new(scheme, 2, 0.1) };
            Sums::under(&options)
        };
        let (bsp, ssp) = (SchemeConfig::Bsp, SchemeConfig::Ssp { staleness: 1 });
        assert_eq!(under(bsp, Damping::None, false), Sums::Mean);
        assert_eq!(under(bsp, Damping::Inverse, false), Sums::Refused);
        assert_eq!(under(ssp, Damping::None, false), Sums::Refused);
        assert_eq!(under(ssp, Damping::None, true), Sums::Whole);
        assert_eq!(under(ssp, Damping::Inverse, true), Sums::Refused);
    }

    #[test]
    fn a_sum_over_more_workers_than_there_may_be_breaks_the_protocol() {
        assert!(Sums::Refused.fault(0).is_none() && Sums::Refused.fault(1).is_some());
        for sums in [Sums::Mean, Sums::Whole] {
            assert!(sums.fault(OTHERS_MAX).is_none() && sums.fault(OTHERS_MAX + 1).is_some());
        }
    }

    /// One gradient of the two holds a NaN, and so does its loss.
    #[test]
    fn a_gradient_that_is_left_out_has_no_loss_and_leaves_others_their_weight() {
        let address = Address::random();
        let table = Table::flat(16, ElementType::F32).unwrap();
        let options =
            ServerOptions { non_finite: NonFinite::Drop, ..ServerOptions::new(SchemeConfig::Bsp, 2, 1.0) };
        let mut server = Server::new(Shm::new(), &address, table, &[0.0; 16], options).unwrap();
        std::thread::scope(|scope| {
            for value in [0.25, f32::NAN] {
                let address = address.clone();
                scope.spawn(move || {
                    let options = WorkerOptions::new(SchemeConfig::Bsp);
                    let mut worker = Worker::connect(Shm::new(), &[address], options, PATIENCE).unwrap();
                    let mut step = worker.step(PATIENCE).unwrap();
                    step.gradient().unwrap().fill(value);
                    step.publish(Some(value), PATIENCE).unwrap();
                    worker.flush(PATIENCE).unwrap();
                });
            }
            assert!(server.drive(|server| server.status().left == 2, PATIENCE).unwrap());
        });
        let status = server.status();
        assert_eq!((status.version.get(), status.gradients, status.loss), (1, 1, Some(0.25)));
        assert_eq!(server.parameters().unwrap(), [-0.25 / 2.0; 16]);
    }
}
