//! The learned state of ABS, for the server's next incarnation: only the first loss of the whole run tells the progress
//! of training.

use serde::{Deserialize, Serialize};

use super::{AbsServer, WaitFor};

/// The number of updates that a version waits for, and the loss `F0` that later ones are measured against.
#[derive(Serialize, Deserialize)]
struct AbsLearned {
    k: u64,
    first_loss: f64,
}

impl AbsServer {
    /// The text that [`take_up`](Self::take_up) takes; none before the first loss, and where the number is fixed.
    pub(super) fn to_text(&self) -> Option<String> {
        let first_loss = self.first_loss.filter(|_| !matches!(self.rules.wait_for, WaitFor::Fixed(_)))?;
        serde_json::to_string(&AbsLearned { k: self.k, first_loss }).ok()
    }

    /// Continues from the learned state of before; from nothing if that is not possible.
    pub(super) fn take_up(&mut self, text: &str) {
        let learned = serde_json::from_str::<AbsLearned>(text).ok();
        if let Some(AbsLearned { k, first_loss }) =
            learned.filter(|learned| learned.first_loss.is_finite() && learned.first_loss > 0.0)
        {
            (self.k, self.first_loss) = (k.max(1), Some(first_loss));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Rules, Shrink};
    use super::*;
    use crate::clock::{Clock, Version, WorkerId};
    use crate::scheme::{ServerEvent, ServerScheme};
    use crate::time::Instant;

    const BY_LOSS: WaitFor = WaitFor::LossRatio(2);

    fn server(wait_for: WaitFor, version: u64) -> AbsServer {
        let rules = Rules { wait_for, staleness: Some(6), shrink: Shrink::WithK };
        let mut server = AbsServer::new(8, Clock::new(version), Version::new(version), rules);
        for worker in (0..8).map(WorkerId) {
            let clock = Clock::new(version);
            server.handle_event(Instant::ORIGIN, ServerEvent::Joined { worker, clock, returns: false });
        }
        server
    }

    #[test]
    fn k_and_the_first_loss_outlive_an_incarnation_and_k_does_not_fall() {
        let mut before = server(BY_LOSS, 0);
        assert_eq!(before.learned(), None, "nothing is learned yet");
        [4.0, 1.0].into_iter().for_each(|loss| before.adapt(Instant::ORIGIN, Some(loss)));
        let learned = before.learned().unwrap();

        let mut after = server(BY_LOSS, 9);
        after.recall(&learned);
        assert_eq!((after.waits_for(), after.staleness_bound()), (Some(4), Some(3)));
        after.adapt(Instant::ORIGIN, Some(2.0));
        assert_eq!(after.waits_for(), Some(4), "it is no first loss");
        after.adapt(Instant::ORIGIN, Some(0.5));
        assert_eq!(after.waits_for(), Some(6), "2 sqrt(4 / 0.5) is 5.7");
    }

    #[test]
    fn what_cannot_have_been_learned_is_left_out() {
        for text in [
            "",
            "4",
            "{}",
            r#"{"k":-1,"first_loss":1.0}"#,
            r#"{"k":4,"first_loss":0.0}"#,
            r#"{"k":4,"first_loss":-1.0}"#,
            r#"{"k":4,"first_loss":1e999}"#,
        ] {
            let mut after = server(BY_LOSS, 0);
            after.recall(text);
            assert_eq!((after.k, after.first_loss), (2, None), "{text}");
        }
        let mut after = server(BY_LOSS, 0);
        for k in [0, u64::MAX] {
            after.recall(&format!(r#"{{"k":{k},"first_loss":1.0}}"#));
            assert_eq!(after.waits_for(), Some(k.clamp(1, 8)));
            assert!(after.staleness_bound().is_some_and(|bound| bound <= 6));
        }
    }

    #[test]
    fn a_fixed_number_is_nothing_learned() {
        let mut fixed = server(WaitFor::Fixed(4), 0);
        fixed.adapt(Instant::ORIGIN, Some(4.0));
        assert_eq!(fixed.learned(), None);
    }
}
