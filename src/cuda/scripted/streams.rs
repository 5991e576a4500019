//! Streams of the scripted driver, and the order in which their work is done.

use std::collections::VecDeque;

use super::super::driver::{Context, DevicePointer, StreamHandle};
use super::super::sys::Code;
use super::work::StreamWork;
use super::{INVALID_HANDLE, ScriptedState};

pub(super) struct Stream {
    pub(super) context: Context,
    pub(super) is_callers: bool,
    pub(super) is_capturing: bool,
    /// No call names it any more. The work that it has is done all the same.
    is_ended: bool,
    pub(super) work: VecDeque<StreamWork>,
}

impl Stream {
    pub(super) fn new(context: Context, is_callers: bool) -> Stream {
        Stream { context, is_callers, is_capturing: false, is_ended: false, work: VecDeque::new() }
    }

    /// True if the library has to end it yet.
    pub(super) fn is_open(&self) -> bool {
        !self.is_callers && !self.is_ended
    }
}

impl ScriptedState {
    pub(super) fn add_stream(&mut self, context: Context, is_callers: bool) -> StreamHandle {
        let handle = self.handle();
        self.streams.insert(handle, Stream::new(context, is_callers));
        StreamHandle(handle)
    }

    pub(super) fn stream(&mut self, stream: StreamHandle) -> Result<&mut Stream, Code> {
        let stream = self.streams.get_mut(&stream.0).filter(|stream| !stream.is_ended);
        stream.ok_or(INVALID_HANDLE)
    }

    /// Puts work of the library's on a stream. Fails the test if that is one of the caller's, which gets events alone.
    /// On the default stream the programs for a GPU have work of their own (`BareGpu`).
    pub(super) fn put(&mut self, stream: StreamHandle, work: StreamWork) -> Result<(), Code> {
        let is_callers = stream != StreamHandle(0) && self.stream(stream)?.is_callers;
        let orders = matches!(work, StreamWork::Record(_) | StreamWork::Wait(_));
        assert!(orders || !is_callers, "a stream of the caller's gets more than events");
        self.put_of_caller(stream, work)
    }

    /// Puts work on a stream, as the caller may do.
    pub(super) fn put_of_caller(&mut self, stream: StreamHandle, work: StreamWork) -> Result<(), Code> {
        let context = self.stream(stream)?.context;
        work.expect_locked(&self.registered, self.device_of(context));
        self.stream(stream)?.work.push_back(work);
        self.more.notify_all();
        Ok(())
    }

    /// Ends a stream, which does not wait for its work.
    pub(super) fn end_stream(&mut self, stream: StreamHandle) -> Result<(), Code> {
        self.stream(stream)?.is_ended = true;
        self.forget_stream(stream.0);
        Ok(())
    }

    /// Forgets a stream that is ended once it has no work.
    fn forget_stream(&mut self, stream: usize) {
        let is_over = |stream: &mut Stream| stream.is_ended && stream.work.is_empty();
        if self.streams.get_mut(&stream).is_some_and(is_over) {
            self.streams.remove(&stream);
        }
    }

    /// Work that is to be done yet: that of devices which have failed never is.
    pub(super) fn work_to_do(&self) -> impl Iterator<Item = &StreamWork> {
        let is_alive = |stream: &&Stream| !self.faults.contains_key(&self.device_of(stream.context));
        self.streams.values().filter(is_alive).flat_map(|stream| &stream.work)
    }

    /// Fails the test if work that is to be done yet uses memory that is given back: neither `cuMemUnmap` nor
    /// `cuMemHostUnregister` promises to wait for it. A test that fails already is left to do so.
    pub(super) fn expect_unused(&self, begin: DevicePointer, bytes: usize) {
        let range = begin..begin + bytes as u64;
        let uses = |work: &StreamWork| work.addresses().iter().any(|address| range.contains(address));
        let is_used = self.work_to_do().any(uses);
        assert!(
            !is_used || std::thread::panicking(),
            "memory is given back that work of a stream still uses"
        );
    }

    /// True if the work before this record of an event is not done.
    pub(super) fn is_ahead(&self, record: u64) -> bool {
        let is_it = |work: &StreamWork| matches!(work, StreamWork::Record(other) if *other == record);
        record == u64::MAX || self.streams.values().any(|stream| stream.work.iter().any(is_it))
    }

    fn is_ready(&self, stream: &Stream) -> bool {
        match stream.work.front() {
            None => false,
            Some(_) if self.faults.contains_key(&self.device_of(stream.context)) => false,
            Some(StreamWork::Wait(record)) => !self.is_ahead(*record),
            Some(_) => true,
        }
    }

    /// True if a stream has work that may be done.
    pub(super) fn has_work(&self) -> bool {
        self.streams.values().any(|stream| self.is_ready(stream))
    }

    /// Does one piece of work of a stream that chance picks.
    pub(super) fn work(&mut self) -> bool {
        let ready = self.streams.iter().filter(|(_, stream)| self.is_ready(stream));
        let mut ready: Vec<usize> = ready.map(|(handle, _)| *handle).collect();
        ready.sort_unstable();
        if ready.is_empty() {
            return false;
        }
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let handle = ready[(self.random % ready.len() as u64) as usize];
        let stream = self.streams.get_mut(&handle).expect("the stream");
        let (context, mut work) = (stream.context, stream.work.pop_front().expect("work"));
        let device = self.device_of(context);
        self.device.working = Some(device);
        // Where the test is failed, the GPU has failed, too: what waits for it is told.
        self.faults.insert(device, Code::ILLEGAL_ADDRESS);
        let is_done = self.piece(device, &mut work);
        match is_done {
            Ok(_) => self.faults.remove(&device),
            Err(code) => self.faults.insert(device, code),
        };
        self.device.working = None;
        if is_done == Ok(false) {
            self.streams.get_mut(&handle).expect("the stream").work.push_front(work);
        }
        self.forget_stream(handle);
        true
    }
}
