//! Folds whose parts do not go together.

use super::*;
use crate::cuda::{BareGpu, GpuFold};
use crate::table::Encoding;

const ELEMENTS: usize = BYTES / 4;

const MOMENTUM: Optimizer = Optimizer::Momentum { weight_decay: 0.0, momentum: 0.5 };

/// A fold of all elements, by a kernel that has an array of state.
fn fold(gpu: &Gpu, gradients: usize) -> GpuFold {
    let array = || GpuMemory::allocate(gpu, BYTES).unwrap().whole();
    let gradient = array();
    GpuFold {
        optimizer: MOMENTUM,
        learning_rate: 1.0,
        step: 1,
        encoding: Encoding::F32,
        gradients: (0..gradients).map(|_| (gradient.clone(), 1.0)).collect(),
        arrays: [(array(), array()), (array(), array())].into_iter().collect(),
        elements: 0..ELEMENTS,
    }
}

#[test]
fn a_fold_whose_parts_do_not_go_together_is_refused_and_never_launched() {
    let Scene { driver, gpu, .. } = scene(Scripted::new()).unwrap();
    let _working = driver.work_in_a_thread();
    let kernels = GpuKernels::load_measuring(&gpu, &MOMENTUM).unwrap();
    let mut bare = BareGpu::new(&gpu, BYTES).unwrap();
    type Spoil<'a> = &'a dyn Fn(&mut GpuFold);
    let spoilt: [(&str, Spoil<'_>); 9] = [
        ("256 gradients", &|wrong| *wrong = fold(&gpu, 257)),
        ("other arrays", &|wrong| drop(wrong.arrays.pop())),
        ("other arrays", &|wrong| wrong.arrays.push(wrong.arrays[0].clone())),
        ("another optimiser", &|wrong| wrong.optimizer = Optimizer::Sgd { weight_decay: 0.0 }),
        ("shorter", &|wrong| wrong.elements.end += 1),
        ("shorter", &|wrong| wrong.arrays[1].1 = wrong.arrays[1].1.slice(0, BYTES - 1).unwrap()),
        ("shorter", &|wrong| wrong.gradients[2].0 = wrong.gradients[2].0.slice(4, BYTES - 4).unwrap()),
        ("inside an element", &|wrong| {
            (wrong.elements, wrong.encoding) = (0..1, Encoding::F16);
            wrong.gradients[0].0 = wrong.gradients[0].0.slice(1, 2).unwrap();
        }),
        ("inside an element", &|wrong| {
            wrong.elements = 0..1;
            wrong.arrays[0].0 = wrong.arrays[0].0.slice(2, 4).unwrap();
        }),
    ];
    let before = driver.launches();
    for (reason, spoil) in spoilt {
        let wrong = || {
            let mut wrong = fold(&gpu, 3);
            spoil(&mut wrong);
            wrong
        };
        let mut copies = Tickets::default();
        let refused = [
            kernels.launch(wrong(), &mut copies),
            kernels.launch_measured(wrong(), 0, &mut copies),
            bare.launch(&kernels, wrong()),
        ];
        for refused in refused {
            let Err(error @ GpuError::Fold { .. }) = refused else { panic!("{reason}: {refused:?}") };
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
    assert_eq!(driver.launches(), before);
    kernels.launch(fold(&gpu, 256), &mut Tickets::default()).unwrap();
    bare.launch(&kernels, GpuFold { encoding: Encoding::F16, ..fold(&gpu, 3) }).unwrap();
    assert_eq!(driver.launches(), before + 2);
}
