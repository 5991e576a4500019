//! Optimisers: the effect of one step on one parameter, in the order of operations that every code path keeps.

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

    /// Checks the ranges of its constants.
    pub(crate) fn check(&self) -> Result<(), ConstantError> {
        let from_0_to_1 = |value: &f32| (0.0..1.0).contains(value);
        let from_0 = |value: &f32| value.is_finite() && *value >= 0.0;
        let expect = |is_good: bool, option, value, reason| match is_good {
            true => Ok(()),
            false => Err(ConstantError { option, value, reason }),
        };
        let weight_decay = match *self {
            Optimizer::Sgd { weight_decay } => weight_decay,
            Optimizer::Momentum { momentum, weight_decay } => {
                expect(from_0_to_1(&momentum), "momentum", momentum, BELOW_1)?;
                weight_decay
            }
            Optimizer::Adam(adam) | Optimizer::AdamW(adam) => {
                expect(from_0_to_1(&adam.beta1), "beta1", adam.beta1, BELOW_1)?;
                expect(from_0_to_1(&adam.beta2), "beta2", adam.beta2, BELOW_1)?;
                expect(from_0(&adam.epsilon), "epsilon", adam.epsilon, FINITE)?;
                adam.weight_decay
            }
        };
        expect(from_0(&weight_decay), "weight_decay", weight_decay, FINITE)
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

const BELOW_1: &str = "use 0 to below 1";
const FINITE: &str = "use 0, or a finite number above it";

/// A constant of an optimiser that is out of its range.
#[derive(Debug)]
pub(crate) struct ConstantError {
    /// The name of the constant.
    pub(crate) option: &'static str,
    pub(crate) value: f32,
    /// The values that it can have, in words.
    pub(crate) reason: &'static str,
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
    /// PyTorch's defaults for Adam: no decay. The defaults for AdamW have a decay of 0.01.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_out_of_their_range_are_named() {
        let momentum = |momentum| Optimizer::Momentum { momentum, weight_decay: 0.0 };
        let adam = AdamParameters::default();
        for good in
            [momentum(0.0), momentum(0.99), Optimizer::Sgd { weight_decay: 0.0 }, Optimizer::AdamW(adam)]
        {
            assert!(good.check().is_ok(), "{good:?}");
        }
        for (bad, name) in [
            (momentum(1.0), "momentum"),
            (momentum(-0.1), "momentum"),
            (momentum(f32::NAN), "momentum"),
            (Optimizer::Momentum { momentum: 0.5, weight_decay: -1.0 }, "weight_decay"),
            (Optimizer::Sgd { weight_decay: f32::INFINITY }, "weight_decay"),
            (Optimizer::Adam(AdamParameters { beta1: 1.0, ..adam }), "beta1"),
            (Optimizer::AdamW(AdamParameters { beta2: f32::NAN, ..adam }), "beta2"),
            (Optimizer::Adam(AdamParameters { epsilon: -1e-8, ..adam }), "epsilon"),
            (Optimizer::AdamW(AdamParameters { weight_decay: f32::NAN, ..adam }), "weight_decay"),
        ] {
            assert_eq!(bad.check().unwrap_err().option, name, "{bad:?}");
        }
    }
}
