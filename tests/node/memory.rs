//! Memory of the caller's that workers and readers use where it lies.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use slackline::scheme::SchemeConfig;
use slackline::weights::{DeltaOptions, Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{Address, CallerMemory, ElementType, Error, Shm, Table, Tcp, Transport, VersionTag, Worker};

use crate::only_worker::{ELEMENTS, TIMEOUT, with_worker};

/// Memory that is never freed, so that a test may look whether it is still used.
struct Tensor {
    pointer: NonNull<u8>,
    bytes: usize,
    owner: Arc<()>,
}

impl Tensor {
    fn new(bytes: usize) -> Tensor {
        let words: &'static mut [u64] = vec![0; bytes.div_ceil(8)].leak();
        Tensor { pointer: NonNull::from(words).cast(), bytes, owner: Arc::new(()) }
    }

    fn lend(&self) -> CallerMemory {
        // SAFETY: the memory is never freed, and nothing but the worker or reader accesses it while it is lent.
        unsafe { CallerMemory::new(self.pointer, self.bytes, Arc::clone(&self.owner)) }
    }

    fn is_lent(&self) -> bool {
        Arc::strong_count(&self.owner) > 1
    }
}

/// Trains for so many steps, of which each halves the parameters. `work` looks at the worker before each step.
fn train<T: Transport + Clone>(
    transport: T,
    address: &Address,
    steps: usize,
    mut work: impl FnMut(usize, &mut Worker<T>),
) -> Vec<f32> {
    with_worker(transport, address, SchemeConfig::Bsp, |worker| {
        for step in 0..steps {
            work(step, worker);
            let mut step = worker.step(TIMEOUT).unwrap();
            let (parameters, gradient) = step.borrow().unwrap();
            gradient.copy_from_slice(parameters);
            // Not waited for: the next look at the worker comes while it is on its way.
            step.start_publish(None).unwrap();
        }
    })
}

pub(crate) fn a_worker_computes_in_memory_of_the_caller<T: Transport + Clone>(
    transport: T,
    address: &Address,
) {
    let tensors: Vec<[Tensor; 2]> = (0..3).map(|_| [(); 2].map(|()| Tensor::new(ELEMENTS * 4))).collect();
    let parameters = train(transport, address, 9, |step, worker| {
        if step % 3 == 0 {
            let [parameters, gradient] = &tensors[step / 3];
            worker.use_memory(Some(parameters.lend()), Some(gradient.lend())).unwrap();
            return;
        }
        let mut step_at_hand = worker.step(TIMEOUT).unwrap();
        let (parameters, gradient) = step_at_hand.borrow().unwrap();
        let at = [parameters.as_ptr().cast::<u8>(), gradient.as_ptr().cast()];
        assert_eq!(at, tensors[step / 3].each_ref().map(|tensor| tensor.pointer.as_ptr().cast_const()));
        drop(step_at_hand);
        let lent: Vec<_> = tensors.iter().map(|[parameters, _]| parameters.is_lent()).collect();
        assert_eq!(lent, [0, 1, 2].map(|index| index == step / 3), "what was replaced is given back");
    });
    assert_eq!(parameters, [0.5f32.powi(9); ELEMENTS], "no gradient was changed under way");
    assert!(tensors.iter().flatten().all(|tensor| !tensor.is_lent()), "all is given back in the end");
}

#[test]
fn a_worker_computes_in_memory_of_the_caller_over_shared_memory() {
    a_worker_computes_in_memory_of_the_caller(Shm::new(), &Address::random());
}

#[test]
fn a_worker_computes_in_memory_of_the_caller_over_tcp() {
    a_worker_computes_in_memory_of_the_caller(Tcp::new(), &"127.0.0.1:0".parse().unwrap());
}

#[test]
fn a_worker_refuses_memory_that_does_not_fit_and_goes_on_with_its_own() {
    let (short, good) = (Tensor::new(8), Tensor::new(ELEMENTS * 4));
    let mut odd = Tensor::new(ELEMENTS * 4 + 8);
    // SAFETY: there are 8 bytes more.
    odd.pointer = unsafe { odd.pointer.add(4) };
    odd.bytes -= 8;
    let parameters = train(Shm::new(), &Address::random(), 2, |_, worker| {
        let error = worker.use_memory(Some(short.lend()), None).unwrap_err();
        assert!(matches!(error, Error::Length { given: 8, expected: 4000, .. }), "{error}");
        let error = worker.use_memory(Some(good.lend()), Some(odd.lend())).unwrap_err();
        assert!(error.to_string().contains("multiple of 8"), "{error}");
        assert!(![&short, &good, &odd].iter().any(|tensor| tensor.is_lent()));
    });
    assert_eq!(parameters, [0.25; ELEMENTS]);
}

/// Its owner may write it between two refreshes: differences would be applied to what is no version.
#[test]
fn a_copy_in_memory_of_the_caller_is_never_brought_on_by_differences() {
    let table = Table::flat(64, ElementType::Bf16).unwrap();
    let options = PublisherOptions { deltas: Some(DeltaOptions::default()), ..PublisherOptions::default() };
    let publisher = Publisher::new(Shm::new(), &Address::random(), table, options).unwrap();
    let publisher = publisher.into_background().unwrap();
    let mut reader =
        Reader::connect(Shm::new(), &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let tensor = Tensor::new(128);
    reader.use_memory(tensor.lend()).unwrap();
    for number in 1..=3 {
        let mut bytes = [7; 128];
        bytes[0] = number;
        let version = publisher.publish(&bytes, VersionTag::default(), TIMEOUT).unwrap();
        reader.refresh_to(version, TIMEOUT).unwrap();
        assert_eq!(reader.bytes().unwrap(), bytes);
        // SAFETY: no refresh is under way, and no slice of the memory is alive.
        unsafe { tensor.pointer.add(100).write(0) };
    }
}

/// Its owner may write it between two refreshes, and read it while something else is pulled.
#[test]
fn a_pull_neither_reads_nor_writes_the_memory_that_refreshes_go_to() {
    let table = Table::flat(64, ElementType::Bf16).unwrap();
    let at = "127.0.0.1:0".parse().unwrap();
    let publisher = Publisher::new(Tcp::new(), &at, table, PublisherOptions::default()).unwrap();
    let publisher = publisher.into_background().unwrap();
    let publish = |number: u8| publisher.publish(&[number; 128], VersionTag::default(), TIMEOUT).unwrap();
    let mut reader =
        Reader::connect(Tcp::new(), &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let tensor = Tensor::new(128);
    reader.use_memory(tensor.lend()).unwrap();
    publish(1);
    reader.refresh(0, TIMEOUT).unwrap();
    // SAFETY: no refresh is under way, and no slice of the memory is alive.
    unsafe { tensor.pointer.write(9) };
    for number in 1..=2 {
        let mut pulled = [0; 128];
        let wanted = Wanted::newest().max_staleness(0);
        assert_eq!(reader.pull_into(&mut pulled, wanted, TIMEOUT).unwrap().version.get(), u64::from(number));
        assert_eq!(pulled, [number; 128]);
        // SAFETY: as above.
        assert_eq!(unsafe { [tensor.pointer.read(), tensor.pointer.add(1).read()] }, [9, 1]);
        publish(2);
    }
}

#[test]
fn a_reader_refreshes_memory_of_the_caller_and_gives_back_what_it_had() {
    let table = Table::flat(64, ElementType::Bf16).unwrap();
    let address = Address::random();
    let mut publisher = Publisher::new(Shm::new(), &address, table, PublisherOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut reader =
                Reader::connect(Shm::new(), &address, ReaderOptions::default(), TIMEOUT).unwrap();
            let tensors = [(); 2].map(|()| Tensor::new(128));
            let error = reader.use_memory(Tensor::new(64).lend()).unwrap_err();
            assert!(matches!(error, Error::Length { given: 64, expected: 128, .. }), "{error}");
            for tensor in [&tensors[0], &tensors[1], &tensors[0]] {
                reader.use_memory(tensor.lend()).unwrap();
                assert!(matches!(reader.bytes(), Err(Error::OutOfTurn { .. })), "nothing is in it yet");
                assert_eq!(tensors.iter().filter(|tensor| tensor.is_lent()).count(), 1);
                reader.refresh(0, TIMEOUT).unwrap();
                assert_eq!(reader.bytes().unwrap(), [7; 128]);
                assert_eq!(reader.bytes().unwrap().as_ptr(), tensor.pointer.as_ptr().cast_const());
            }
        });
        publisher.publish(&[7; 128], TIMEOUT).unwrap();
        publisher
            .drive(|publisher| publisher.joined() == 1 && publisher.readers().is_empty(), TIMEOUT)
            .unwrap();
        reading.join().unwrap();
    });
}
