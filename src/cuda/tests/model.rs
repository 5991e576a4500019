//! Gradients of models over the scripted driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::scripted::Scripted;
use super::super::sys::Code;
use super::super::{Gpu, GpuError, GpuLayer, GpuModel};

const EXAMPLES: usize = 7;
const BATCH: usize = 4;

/// Layers of these widths, one behind the other.
fn layers(widths: &[usize]) -> Vec<GpuLayer> {
    let mut start = 0;
    let pairs = widths.windows(2).map(|pair| {
        let layer = GpuLayer { start, units: pair[1], columns: pair[0] };
        start += pair[1] * (pair[0] + 1);
        layer
    });
    pairs.collect()
}

/// Numbers of no pattern, from -1 to 1.
fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|at| ((at + 3) * (salt + 7919) % 1009) as f32 / 504.5 - 1.0).collect()
}

fn model(gpu: &Gpu, layers: Vec<GpuLayer>) -> Result<GpuModel, GpuError> {
    let labels: Vec<u32> =
        (0..EXAMPLES).map(|example| (example % layers[layers.len() - 1].units) as u32).collect();
    let inputs = numbers(EXAMPLES * layers[0].columns, 1);
    GpuModel::new(gpu, layers, &inputs, &labels, BATCH)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The loss of a batch whose work is done as it is asked for.
fn loss(driver: &Scripted, model: &mut GpuModel, parameters: &[f32], rows: &[usize]) -> f32 {
    driver.set_bytes(model.parameters().pointer(), &bytes(parameters));
    model.begin(rows).unwrap();
    assert_eq!(model.loss().unwrap(), None, "nothing is done yet");
    driver.finish();
    model.loss().unwrap().expect("all is done")
}

#[test]
fn a_gradient_is_the_slope_of_the_loss_for_each_depth_and_batch() {
    for widths in [&[5, 3][..], &[5, 4, 3], &[5, 4, 6, 3]] {
        for rows in [&[2][..], &[6, 0, 3], &[1, 5, 4, 2]] {
            let driver = Arc::new(Scripted::new());
            let (gpu, ..) = driver.open_gpu();
            let layers = layers(widths);
            let count = layers.iter().map(|layer| layer.units * (layer.columns + 1)).sum();
            let mut model = model(&gpu, layers).unwrap();
            driver.finish();
            let mut parameters = numbers(count, 2);
            loss(&driver, &mut model, &parameters, rows);
            let gradient = driver.bytes(model.gradient().pointer(), 4 * count);
            for (at, bytes) in gradient.as_chunks().0.iter().enumerate() {
                let (ours, own, step) = (f32::from_le_bytes(*bytes), parameters[at], 1.0 / 256.0);
                let mut at_distance = |distance: f32| {
                    parameters[at] = own + distance;
                    f64::from(loss(&driver, &mut model, &parameters, rows))
                };
                let slope = (at_distance(step) - at_distance(-step)) / f64::from(2.0 * step);
                parameters[at] = own;
                let difference = (f64::from(ours) - slope).abs();
                assert!(difference < 1e-3, "{widths:?}, {rows:?}, element {at}: {ours} instead of {slope}");
            }
        }
    }
}

#[test]
fn the_rows_of_a_batch_stay_until_the_gpu_has_copied_them() {
    let driver = Arc::new(Scripted::new());
    let (gpu, ..) = driver.open_gpu();
    let mut model = model(&gpu, layers(&[5, 3])).unwrap();
    driver.finish();
    driver.set_bytes(model.parameters().pointer(), &bytes(&numbers(18, 2)));
    // A gradient that is given up.
    model.begin(&[0, 1]).unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| model.begin(&[2, 3]).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!next.is_finished(), "the rows before are not copied yet");
        let _working = driver.work_in_a_thread();
        next.join().unwrap();
    });
}

#[test]
fn a_call_that_fails_while_a_model_is_made_is_told_or_done_without() {
    for fail in Scripted::FAILURES {
        let (mut failures, mut told) = (0, 0);
        loop {
            let driver = Arc::new(Scripted::new());
            fail(&driver, failures, Code::OUT_OF_MEMORY);
            let made = Gpu::with_driver(driver.clone(), 0).and_then(|gpu| model(&gpu, layers(&[5, 4, 3])));
            if !driver.has_failed() {
                assert!(made.is_ok());
                break;
            }
            driver.finish();
            told += u32::from(made.is_err());
            // Without words that a stream writes there are events.
            if let Ok(mut model) = made {
                model.begin(&[0, 6]).unwrap();
                driver.finish();
                let loss = (0..1000).find_map(|_| model.loss().transpose()).expect("it ends");
                assert!(loss.is_ok(), "call {failures} failed, and the model computes nothing");
            }
            failures += 1;
        }
        assert!(failures > 60 && told > failures / 2, "{told} of {failures} calls");
    }
}

#[test]
fn each_call_of_a_gradient_that_fails_is_told_and_leaves_nothing() {
    let run =
        |driver: &Arc<Scripted>, failing: u32, fail: fn(&Scripted, u32, Code)| -> Result<(), GpuError> {
            let gpu = Gpu::with_driver(driver.clone(), 0)?;
            let mut model = model(&gpu, layers(&[5, 4, 3]))?;
            driver.finish();
            fail(driver, failing, Code::OUT_OF_MEMORY);
            let begun = model.begin(&[0, 6]);
            driver.finish();
            begun?;
            let ended = (0..1000).find_map(|_| model.loss().transpose());
            ended.expect("it ends").map(drop)
        };
    for (is_late, fail) in [false, true].into_iter().zip(Scripted::FAILURES) {
        let mut failures = 0;
        loop {
            let driver = Arc::new(Scripted::new());
            let outcome = run(&driver, failures, fail);
            if !driver.has_failed() {
                assert!(outcome.is_ok());
                break;
            }
            assert!(outcome.is_err() || driver.open() <= 1, "call {failures} failed and was not told");
            let left = driver.open();
            assert!(left <= usize::from(outcome.is_ok() || is_late), "call {failures}: {left} left");
            failures += 1;
        }
        assert!(failures > 40, "only {failures} calls");
    }
}

#[test]
fn a_fault_of_the_gpu_ends_the_wait_for_a_loss() {
    let driver = Arc::new(Scripted::new());
    let (gpu, ..) = driver.open_gpu();
    let mut model = model(&gpu, layers(&[5, 3])).unwrap();
    driver.finish();
    model.begin(&[0]).unwrap();
    driver.fault(Code::ILLEGAL_ADDRESS);
    let ended = (0..1000).find_map(|_| model.loss().transpose());
    assert!(matches!(ended, Some(Err(GpuError::Faulted { .. }))), "{ended:?}");
}

#[test]
fn a_driver_that_does_not_answer_for_seconds_ends_the_wait_for_a_loss() {
    for driver in [Scripted::new(), Scripted::new().without_stream_words()] {
        let driver = Arc::new(driver);
        let (gpu, ..) = driver.open_gpu();
        let mut model = model(&gpu, layers(&[5, 3])).unwrap();
        driver.finish();
        driver.set_bytes(model.parameters().pointer(), &bytes(&numbers(18, 2)));
        model.begin(&[0]).unwrap();
        let begun = Instant::now() - Duration::from_secs(20);
        // Of many looks for the end one asks the driver.
        let ask = |model: &mut GpuModel, seconds| {
            let at = begun + Duration::from_secs(seconds);
            (0..1000).find_map(|_| model.loss_at(at).transpose())
        };
        driver.set_unanswered(Some(Code::UNKNOWN));
        assert_eq!((ask(&mut model, 0), ask(&mut model, 4)), (None, None));
        // Once it has answered, the time begins again.
        driver.set_unanswered(None);
        assert_eq!(ask(&mut model, 9), None);
        driver.set_unanswered(Some(Code::UNKNOWN));
        assert_eq!(ask(&mut model, 10), None);
        let told = ask(&mut model, 16).expect("it would wait without end").unwrap_err();
        assert!(matches!(told, GpuError::NotCopied { cause: Some(_), .. }), "{told}");
        assert!(told.to_string().contains("within 6s: ") && told.to_string().contains("error 999"), "{told}");
        // The next gradient waits for this one no longer.
        let refused = model.begin(&[1]).unwrap_err();
        assert!(matches!(refused, GpuError::NotCopied { cause: Some(_), .. }), "{refused}");
        driver.set_unanswered(None);
        driver.finish();
        assert!(model.loss().unwrap().is_some(), "what was given up is done after all");
    }
}
