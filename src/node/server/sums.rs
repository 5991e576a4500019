//! Gradients that are sums over several workers: those that a server hands on which stands for its host.

use super::{Server, ServerOptions};
use crate::node::folder::FoldMetadata;
use crate::scheme::{Damping, SchemeConfig};
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
pub(super) const REFUSED: &str =
    "its gradient is a sum over several workers, which this server's scheme cannot weigh";

impl Sums {
    pub(super) fn under(options: &ServerOptions) -> Sums {
        match (options.scheme.built_in(), options.damping) {
            _ if options.additive => Sums::Whole,
            (Some(SchemeConfig::Bsp), Damping::None) => Sums::Mean,
            _ => Sums::Refused,
        }
    }
}

impl<T: Transport> Server<T> {
    /// Gives each worker the same weight in the shares at hand if some of them are sums. A fold in hope takes each for
    /// a sum over as many workers as the one before.
    pub(super) fn weigh_sums(&mut self) {
        if self.sums != Sums::Mean {
            return;
        }
        let others =
            |index: usize| self.workers.get(index).and_then(Option::as_ref).map_or(0, |state| state.others);
        let others: u64 =
            self.shares.iter().map(|share| u64::from(others(share.gradient.worker.index()))).sum();
        if others > 0 {
            let weight = 1.0 / (self.shares.len() as u64 + others) as f32;
            self.shares.iter_mut().for_each(|share| share.weight = weight);
        }
    }

    /// What the gradients of the fold at hand came with, as their headers say.
    pub(super) fn metadata(&self) -> FoldMetadata {
        let epoch = self.shard.frames.epoch();
        let (mut metadata, mut sum, mut with_loss) = (FoldMetadata::default(), 0.0, 0);
        for (share, source) in self.work.shares.iter().zip(&self.work.sources) {
            let header = source.inbox.header_again(share.gradient.clock, epoch);
            let workers = 1 + header.map_or(0, |header| u64::from(header.others));
            metadata.workers += workers;
            if let Some(loss) = header.and_then(|header| header.loss) {
                sum += workers as f64 * f64::from(loss);
                with_loss += workers;
            }
        }
        metadata.loss = (with_loss > 0).then(|| sum / with_loss as f64);
        metadata
    }
}
