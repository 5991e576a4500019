//! Optimisers: what one step does to one parameter, in the order of operations that every code path keeps.

use serde::{Deserialize, Serialize};

/// The rule by which a summed gradient moves the parameters. Formulas and defaults are PyTorch's (`torch.optim`),
/// in single precision, each operation rounded on its own (no fused multiply-add), so that every code path and a
/// plain serial loop give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Optimizer {
    /// `g += decay * p; p -= rate * g`.
    Sgd {
        /// L2 penalty.
        weight_decay: f32,
    },
    /// `g += decay * p; m = momentum * m + g; p -= rate * m`.
    Momentum {
        /// The share of the last step that is kept.
        momentum: f32,
        /// L2 penalty.
        weight_decay: f32,
    },
    /// `g += decay * p; m = b1*m + (1-b1)*g; v = b2*v + ((1-b2)*g)*g;`
    /// `p -= (rate / (1-b1^t)) * (m / (sqrt(v) / sqrt(1-b2^t) + eps))`
    /// (Kingma and Ba, 2015).
    Adam(AdamParameters),
    /// Adam with the decay taken from the parameter itself: `p -= (rate * decay) * p` first, `g` as it is
    /// (Loshchilov and Hutter, 2019).
    AdamW(AdamParameters),
}

impl Optimizer {
    /// The step size of plain SGD that gets as far in the long run as steps of `rate` do: with momentum each gradient
    /// goes on to count in the steps that follow. `None` where that depends on the gradients.
    #[doc(hidden)]
    pub fn step_of_sgd(&self, rate: f32) -> Option<f64> {
        match self {
            Optimizer::Sgd { .. } => Some(f64::from(rate)),
            Optimizer::Momentum { momentum, .. } => Some(f64::from(rate) / (1.0 - f64::from(*momentum))),
            Optimizer::Adam(_) | Optimizer::AdamW(_) => None,
        }
    }

    /// Its name in lower case, without its constants.
    #[doc(hidden)]
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd { .. } => "sgd",
            Optimizer::Momentum { .. } => "momentum",
            Optimizer::Adam(_) => "adam",
            Optimizer::AdamW(_) => "adamw",
        }
    }
}

/// Constants of Adam and AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamParameters {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Keeps the denominator from zero.
    pub epsilon: f32,
    /// Weight decay.
    pub weight_decay: f32,
}

impl AdamParameters {
    pub(crate) const DEFAULT: AdamParameters =
        AdamParameters { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
}

impl Default for AdamParameters {
    /// PyTorch's defaults for Adam: no decay. Those for AdamW have a decay of 0.01.
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Optimizer {
    /// Arrays of state beside the parameters: none, the momentum, or two moments. All begin as zeros.
    #[doc(hidden)]
    pub const fn states(&self) -> usize {
        match self {
            Optimizer::Sgd { .. } => 0,
            Optimizer::Momentum { .. } => 1,
            Optimizer::Adam(_) | Optimizer::AdamW(_) => 2,
        }
    }
}
