//! The digits, learnt under BSP by a server and two workers: folds and gradients on the GPU against those of
//! processors.

use std::net::Ipv4Addr;

use slackline::gpu::Gpu;
use slackline::internals::cuda::{GpuLayer, GpuModel};
use slackline::optim::Optimizer;
use slackline::scheme::SchemeConfig;
use slackline::{
    ElementType, Job, JobPlan, JobStep, Placement, RendezvousEndpoint, ServerOptions, Table, TransportKind,
    WorkerOptions,
};

use super::claims::Scene;
use super::peer::{Outcome, PATIENCE};

const WORKERS: u32 = 2;
const BATCH: usize = 24;
const LEARNING_RATE: f32 = 0.05;
/// How far losses and gradients of the kernels may be from those of processors, relative to the largest.
const TOLERANCE: f32 = 1e-5;
/// How many of the test examples may be classified otherwise after as many steps.
const OTHERWISE: f32 = 0.01;

/// Images of eight by eight pixels, and the digits that they show.
struct LabelledImages {
    inputs: Vec<f32>,
    labels: Vec<u32>,
}

/// A perceptron with one hidden layer.
const HIDDEN: GpuLayer = GpuLayer { start: 0, units: 16, columns: 64 };
const OUTPUT: GpuLayer = GpuLayer { start: 16 * 65, units: 10, columns: 16 };
const PARAMETERS: usize = 16 * 65 + 10 * 17;

impl LabelledImages {
    /// The examples to learn from, and every fifth one to judge by.
    fn read() -> Outcome<[LabelledImages; 2]> {
        let mut parts = [(); 2].map(|()| LabelledImages { inputs: Vec::new(), labels: Vec::new() });
        for (row, line) in include_str!("../../lab/data/digits.csv").lines().enumerate() {
            let (pixels, label) = line.rsplit_once(',').ok_or("a line without a label")?;
            let part = &mut parts[usize::from(row % 5 == 0)];
            for pixel in pixels.split(',') {
                part.inputs.push(pixel.parse::<f32>()? / 16.0);
            }
            part.labels.push(label.trim().parse()?);
        }
        Ok(parts)
    }

    fn input(&self, row: usize) -> &[f32] {
        &self.inputs[row * HIDDEN.columns..][..HIDDEN.columns]
    }

    /// The examples of a worker's batch.
    fn rows(&self, worker: u32, clock: u64) -> Vec<usize> {
        let first = (clock as usize * WORKERS as usize + worker as usize) * BATCH;
        (first..first + BATCH).map(|number| number * 37 % self.labels.len()).collect()
    }
}

fn initial() -> Vec<f32> {
    (0..PARAMETERS).map(|at| ((at * 7919 % 1009) as f32 / 1009.0 - 0.5) * 0.4).collect()
}

/// What the units of a layer put out before they are rectified, in f64.
fn forward(layer: GpuLayer, parameters: &[f32], inputs: &[f64]) -> Vec<f64> {
    let own = &parameters[layer.start..];
    let unit = |unit: usize| {
        let weights = own[unit * layer.columns..].iter().zip(inputs);
        let sum: f64 = weights.map(|(weight, input)| f64::from(*weight) * input).sum();
        sum + f64::from(own[layer.units * layer.columns + unit])
    };
    (0..layer.units).map(unit).collect()
}

/// Adds what an example gives to the gradient of a layer.
fn add(layer: GpuLayer, gradient: &mut [f64], inputs: &[f64], deltas: &[f64]) {
    for (unit, delta) in deltas.iter().enumerate() {
        for (column, input) in inputs.iter().enumerate() {
            gradient[layer.start + unit * layer.columns + column] += delta * input;
        }
        gradient[layer.start + layer.units * layer.columns + unit] += delta;
    }
}

/// Hidden units and scores of an example.
fn run(parameters: &[f32], input: &[f32]) -> [Vec<f64>; 3] {
    let input: Vec<f64> = input.iter().map(|value| f64::from(*value)).collect();
    let hidden: Vec<f64> =
        forward(HIDDEN, parameters, &input).into_iter().map(|value| value.max(0.0)).collect();
    let scores = forward(OUTPUT, parameters, &hidden);
    [input, hidden, scores]
}

/// Mean loss and gradient by a processor.
fn loss_and_gradient(data: &LabelledImages, parameters: &[f32], rows: &[usize], gradient: &mut [f32]) -> f32 {
    let (mut sums, mut loss) = (vec![0.0; PARAMETERS], 0.0);
    let share = 1.0 / rows.len() as f64;
    for row in rows {
        let [input, hidden, scores] = run(parameters, data.input(*row));
        let label = data.labels[*row] as usize;
        let highest = scores.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - highest).exp()).sum();
        loss += (sum.ln() - (scores[label] - highest)) * share;
        let mut deltas: Vec<f64> = scores.iter().map(|score| (score - highest).exp() / sum * share).collect();
        deltas[label] -= share;
        add(OUTPUT, &mut sums, &hidden, &deltas);
        let weights = &parameters[OUTPUT.start..];
        let back = |unit: usize| -> f64 {
            let by =
                |(class, delta): (usize, &f64)| delta * f64::from(weights[class * OUTPUT.columns + unit]);
            if hidden[unit] > 0.0 { deltas.iter().enumerate().map(by).sum() } else { 0.0 }
        };
        let before: Vec<f64> = (0..HIDDEN.units).map(back).collect();
        add(HIDDEN, &mut sums, &input, &before);
    }
    gradient.iter_mut().zip(sums).for_each(|(value, sum)| *value = sum as f32);
    loss as f32
}

/// The part of the examples that is classified as it should be.
fn accuracy(data: &LabelledImages, parameters: &[f32]) -> f32 {
    let is_right = |row: &usize| {
        let [_, _, scores] = run(parameters, data.input(*row));
        let best = (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other]));
        best == Some(data.labels[*row] as usize)
    };
    (0..data.labels.len()).filter(is_right).count() as f32 / data.labels.len() as f32
}

/// Has a server fold on `gpu`, if there is one, what two workers compute, each of which makes its steps by what `begin`
/// gives for its number. The parameters at the end.
fn train<S: FnMut(JobStep<'_>) -> Outcome<()>>(
    gpu: Option<&Gpu>,
    clocks: u64,
    begin: impl Fn(u32) -> Outcome<S> + Sync,
) -> Outcome<Vec<f32>> {
    let point = RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into())?;
    let join = |rank: u32| -> Outcome<Job> {
        let plan = JobPlan::servers(1).clocks(clocks).timeout(PATIENCE).transport(TransportKind::Shm);
        let rendezvous = Some(point.clone());
        let placement = Placement { rank, world: 1 + WORKERS, rendezvous, ..Placement::default() };
        let job = Job::join(plan, &placement, None)?;
        Ok(gpu.into_iter().fold(job, Job::with_gpu))
    };
    let serve = || -> Outcome<Vec<f32>> {
        let table = Table::flat(PARAMETERS as u64, ElementType::F32)?;
        let optimizer = Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 };
        let options = ServerOptions::new(SchemeConfig::Bsp, WORKERS as usize, LEARNING_RATE);
        let served = join(0)?.serve(table, &initial(), ServerOptions { optimizer, ..options })?;
        assert_eq!(served.status.version.get(), clocks);
        Ok(served.parameters)
    };
    let work = |worker: u32| -> Outcome<()> {
        let job = join(1 + worker)?;
        let mut worker_of_job = job.worker(WorkerOptions::new(SchemeConfig::Bsp))?;
        let mut one = begin(worker)?;
        while let Some(step) = worker_of_job.next_step()? {
            one(step)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let told = |error: Box<dyn std::error::Error>| error.to_string();
        let serving = scope.spawn(move || serve().map_err(told));
        let work = &work;
        let working: Vec<_> =
            (0..WORKERS).map(|worker| scope.spawn(move || work(worker).map_err(told))).collect();
        for worker in working {
            worker.join().expect("a worker that has not panicked")?;
        }
        Ok(serving.join().expect("a server that has not panicked")?)
    })
}

/// The same with gradients of processors.
fn train_by_processors(data: &LabelledImages, gpu: Option<&Gpu>, clocks: u64) -> Outcome<Vec<f32>> {
    train(gpu, clocks, |worker| {
        Ok(move |mut step: JobStep<'_>| {
            let rows = data.rows(worker, step.view().clock.get());
            let parameters = step.parameters()?.to_vec();
            let loss = loss_and_gradient(data, &parameters, &rows, step.gradient()?);
            step.publish(Some(loss))?;
            Ok(())
        })
    })
}

pub(crate) fn digits_folded_on_a_gpu_become_the_parameters_of_processors(scene: &Scene) -> Outcome<()> {
    let [data, test] = LabelledImages::read()?;
    let ours = train_by_processors(&data, Some(&scene.gpu), scene.clocks)?;
    let theirs = train_by_processors(&data, None, scene.clocks)?;
    let other = ours.iter().zip(&theirs).position(|(one, other)| one.to_bits() != other.to_bits());
    assert_eq!(other, None, "parameters differ");
    assert!(ours != initial());
    println!("note: {} steps, accuracy {}", scene.clocks, accuracy(&test, &ours));
    Ok(())
}

pub(crate) fn digits_learnt_on_a_gpu_have_the_losses_of_processors(scene: &Scene) -> Outcome<()> {
    let ([data, test], gpu) = (LabelledImages::read()?, &scene.gpu);
    let data = &data;
    let ours = train(Some(gpu), scene.clocks, |worker| {
        let layers = vec![HIDDEN, OUTPUT];
        let mut model = GpuModel::new(gpu, layers, &data.inputs, &data.labels, BATCH)?;
        let mut bare = slackline::internals::cuda::BareGpu::new(gpu, 4 * PARAMETERS)?;
        Ok(move |mut step: JobStep<'_>| {
            let rows = data.rows(worker, step.view().clock.get());
            let mut expected = vec![0.0; PARAMETERS];
            let expected_loss = loss_and_gradient(data, step.parameters()?, &rows, &mut expected);
            step.copy_parameters_to_gpu(0, &model.parameters(), model.stream())?;
            model.begin(&rows)?;
            let loss = loop {
                if let Some(loss) = model.loss()? {
                    break loss;
                }
                std::hint::spin_loop();
            };
            let gradient = bare.read(&model.gradient())?;
            let gradient = gradient.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            for (at, (ours, theirs)) in gradient.zip(expected).enumerate() {
                let difference = (ours - theirs).abs() / largest;
                assert!(difference <= TOLERANCE, "element {at}: {ours} instead of {theirs}");
            }
            let difference = (loss - expected_loss).abs() / expected_loss;
            assert!(difference <= TOLERANCE, "a loss of {loss} instead of {expected_loss}");
            step.publish_from_gpu(&model.gradient(), model.stream(), Some(loss))?;
            Ok(())
        })
    })?;
    let theirs = train_by_processors(data, None, scene.clocks)?;
    let accuracies = [&initial(), &ours, &theirs].map(|parameters| accuracy(&test, parameters));
    let [before, ours, theirs] = accuracies;
    assert!(ours > before + 0.2, "an accuracy of {ours} after one of {before}");
    assert!((ours - theirs).abs() <= OTHERWISE, "an accuracy of {ours} instead of {theirs}");
    println!("note: {} steps, accuracy {ours}, by processors {theirs}", scene.clocks);
    Ok(())
}
