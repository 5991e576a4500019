//! Options that say what `train` learns: the model and its data.

use std::path::PathBuf;

use clap::ValueEnum;
use slackline_lab::data::TaskKind;
use slackline_lab::model::{
    self, HIDDEN_DEFAULT, ModelFileError, ModelKind, ModelSpec, RANK_DEFAULT, Shards,
};

use crate::failure::Failure;
use crate::optimizer_name::OptimizerName;

/// The model and its data.
#[derive(clap::Args, Debug)]
pub(crate) struct ModelArgs {
    /// Kind of model [default: mlp, or the kind in --load]
    #[arg(long, help_heading = "Model and data", value_enum)]
    pub(crate) model: Option<Model>,

    /// Hidden units of mlp and convnet, of several layers with commas: 128,64 [default: 64, or those in --load]
    ///
    /// For a factorisation this is the rank [default: 4, or the rank in --load].
    #[arg(long, help_heading = "Model and data", value_name = "UNITS", value_delimiter = ',')]
    pub(crate) hidden: Vec<usize>,

    /// Weight of the L2 penalty of a factorisation, for each entry and its two factors [default: 0]
    #[arg(long, help_heading = "Model and data", value_name = "WEIGHT")]
    pub(crate) penalty: Option<f32>,

    /// CSV, LIBSVM, IDX or CIFAR-10 file, also gzipped [default: the built-in digits]
    ///
    /// For a factorisation it is CSV with row, column and value in each line, or LIBSVM with a row of the matrix in
    /// each [default: a built-in matrix].
    #[arg(long, help_heading = "Model and data", value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,

    /// How examples are dealt out to workers: iid, sorted (by label) or dirichlet(A), the more uneven the smaller A
    ///
    /// Entries of a matrix are sorted by row.
    #[arg(long, help_heading = "Model and data", value_name = "SHARDS", default_value_t = Shards::Iid)]
    pub(crate) shards: Shards,

    /// Begin with the parameters of a model that --save wrote
    #[arg(long, help_heading = "Model and data", value_name = "FILE")]
    pub(crate) load: Option<PathBuf>,

    /// Decides the initial parameters and the order of the examples
    #[arg(long, help_heading = "Model and data", value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Model {
    /// Softmax regression: one linear layer
    Softmax,
    /// A perceptron
    Mlp,
    /// Two convolutions with batch normalisation and pooling, then a perceptron
    #[value(name = "convnet")]
    ConvNet,
    /// Factors of a matrix, from the entries that are known; its loss is the mean squared error
    Factorisation,
}

impl From<Model> for ModelKind {
    fn from(model: Model) -> ModelKind {
        match model {
            Model::Softmax => ModelKind::Softmax,
            Model::Mlp => ModelKind::Mlp,
            Model::ConvNet => ModelKind::ConvNet,
            Model::Factorisation => ModelKind::Factorisation,
        }
    }
}

/// A model that was read from a file.
pub(crate) type Loaded = (ModelSpec, Vec<f32>);

impl ModelArgs {
    /// The kind of model, and the model that --load names.
    pub(crate) fn kind(&self) -> Result<(ModelKind, Option<Loaded>), Failure> {
        let loaded = self.load.as_ref().map(model::load).transpose();
        let loaded = loaded.map_err(|error| Failure::refused(&error).after("--load"))?;
        let found = loaded.as_ref().map(|(spec, _)| spec.kind());
        let asked = self.model.map(ModelKind::from);
        // Hidden units say which kind it is, but to a factorisation, whose rank they are.
        let has_units = !self.hidden.is_empty() && found != Some(ModelKind::Factorisation);
        let asked = asked.or(has_units.then_some(ModelKind::Mlp));
        Ok((asked.or(found).unwrap_or(ModelKind::Mlp), loaded))
    }

    /// Whether this kind of model can do what the options ask for.
    pub(crate) fn check(&self, kind: ModelKind, has_target: bool) -> Result<(), Failure> {
        let refuse = |what: &str, help| Err(Failure::usage(what).help(help));
        if !self.hidden.is_empty() && kind == ModelKind::Softmax {
            return refuse("softmax has no hidden units", "leave --hidden out, or use --model mlp");
        }
        if kind == ModelKind::Factorisation && has_target {
            return refuse("--target-accuracy: a factorisation tells no classes", "leave it out");
        }
        let Some(penalty) = self.penalty else { return Ok(()) };
        if kind != ModelKind::Factorisation {
            return refuse(
                "--penalty: only a factorisation has one",
                "leave it out, or use --optimizer adamw",
            );
        }
        if !penalty.is_finite() || penalty < 0.0 {
            let help = "use a number from 0 up, such as 0.01";
            return Err(Failure::usage(format!("--penalty cannot be {penalty}")).help(help));
        }
        Ok(())
    }

    /// The shape of the model for examples of this shape, and its parameters where they come from a file.
    pub(crate) fn spec(
        &self,
        kind: ModelKind,
        loaded: Option<Loaded>,
        (inputs, outputs): (usize, usize),
    ) -> Result<(ModelSpec, Option<Vec<f32>>), Failure> {
        let found = loaded.as_ref().map(|(spec, _)| spec);
        let default = if kind == ModelKind::Factorisation { RANK_DEFAULT } else { HIDDEN_DEFAULT };
        let hidden = [&self.hidden[..], found.map_or(&[], ModelSpec::hidden), &[default]];
        let hidden = hidden.into_iter().find(|hidden| !hidden.is_empty()).unwrap_or_default();
        let spec = ModelSpec::new(kind, inputs, outputs, hidden).map_err(|error| Failure::refused(&error))?;
        match (loaded, &self.load) {
            (Some((found, _)), Some(path)) if found != spec => {
                let (file, found, expected) = (path.clone(), Box::new(found), Box::new(spec));
                let error = ModelFileError::OtherModel { file, found, expected };
                Err(Failure::refused(&error).after("--load"))
            }
            (loaded, _) => {
                let parameters = loaded.map(|(_, parameters)| parameters);
                Ok((spec.with_penalty(self.penalty.unwrap_or(0.0)), parameters))
            }
        }
    }
}

/// The usual step size, which learns the digits under every scheme. With momentum, 0.03 did too and 0.05 diverged for
/// some seeds under ssp(3): staleness and momentum add up, so some room is left.
///
/// Of the factors of a matrix each gradient moves a few rows alone, and each of these by its part of the mean: with a
/// batch of 32 one entry takes steps of plain SGD until they are longer than 32 / (|l|^2 + |r|^2), which is about 8 for
/// the matrix that comes with the program.
pub(crate) fn learning_rate(optimizer: OptimizerName, kind: ModelKind) -> f32 {
    match (optimizer, kind.task()) {
        (OptimizerName::Sgd, TaskKind::Classes) => 0.5,
        (OptimizerName::Momentum, TaskKind::Classes) => 0.02,
        (OptimizerName::Adam | OptimizerName::AdamW, TaskKind::Classes) => 0.002,
        (OptimizerName::Sgd, TaskKind::Values) => 2.0,
        (OptimizerName::Momentum, TaskKind::Values) => 0.2,
        (OptimizerName::Adam | OptimizerName::AdamW, TaskKind::Values) => 0.02,
    }
}
