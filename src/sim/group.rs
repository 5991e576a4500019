//! Workers that average their parameters among themselves, without a server.

use std::collections::BTreeMap;

use super::agenda::AgendaEvent;
use super::engine::SimEngine;
use super::model::{Model, Payload, mean, payload};
use super::network::AverageTime;
use super::{SimError, Until};
use crate::clock::{Clock, ClockTable, WorkerId};
use crate::scheme::{ServerAction, ServerEvent, ServerScheme, Share, WorkerEvent};
use crate::time::Instant;

/// Function that lists the workers that average with a worker in a round.
pub(super) type GroupMembers<'a> = &'a dyn Fn(usize, u64) -> Vec<usize>;

/// The server that such jobs do without.
pub(super) struct Nobody;

impl ServerScheme for Nobody {
    fn handle_event(&mut self, _now: Instant, _event: ServerEvent) {}

    fn poll_action(&mut self, _shares: &mut Vec<Share>) -> Option<ServerAction> {
        None
    }

    fn smallest_clock(&self) -> Clock {
        Clock::new(0)
    }
}

/// State of the workers of such a job, instead of a server's.
pub(super) struct Peers<'a> {
    members: GroupMembers<'a>,
    /// The model of each worker; none on time alone.
    models: Vec<Model>,
    /// The round that each worker averages next.
    rounds: Vec<u64>,
    /// Groups that do not have their mean yet, by round and smallest member.
    gatherings: BTreeMap<(u64, usize), Gathering>,
    /// The number of rounds that each worker that is in has averaged.
    averaged: ClockTable,
}

struct Gathering {
    /// The members, in order.
    members: Vec<usize>,
    /// The members that are ready, each with its incarnation.
    ready: BTreeMap<usize, u32>,
    /// None of the members before this index is missing.
    checked: usize,
    /// The members whose parts are on their way, once they are. A member that comes later is none of them, and keeps
    /// its parameters.
    parts: Option<Vec<(usize, u32)>>,
    /// None on time alone.
    mean: Option<Payload>,
}

impl<'a> Peers<'a> {
    pub(super) fn new(members: GroupMembers<'a>, models: Vec<Model>, workers: usize) -> Peers<'a> {
        let rounds = vec![0; workers];
        Peers { members, models, rounds, gatherings: BTreeMap::new(), averaged: ClockTable::default() }
    }

    /// Takes a worker in: it begins at the round of the workers that are furthest, with their parameters. Returns
    /// that round.
    pub(super) fn enter(&mut self, id: usize, is_in: impl Fn(usize) -> bool, blank: Option<Model>) -> u64 {
        let others = (0..self.rounds.len()).filter(|other| *other != id && is_in(*other));
        let furthest = others.max_by_key(|other| (self.rounds[*other], std::cmp::Reverse(*other)));
        if let (Some(other), Some(mut model)) = (furthest, blank) {
            model.put(payload(&self.models[other].values()));
            self.models[id] = model;
        }
        self.rounds[id] = furthest.map_or(self.rounds[id], |other| self.rounds[other]);
        self.averaged.join_at(WorkerId(id as u32), Clock::new(self.rounds[id]));
        self.rounds[id]
    }

    pub(super) fn leave(&mut self, id: usize) {
        self.averaged.leave(WorkerId(id as u32));
    }

    pub(super) fn model(&mut self, id: usize) -> Option<&mut Model> {
        self.models.get_mut(id)
    }

    pub(super) fn model_values(&self, id: usize) -> Option<Vec<f32>> {
        self.models.get(id).map(Model::values)
    }

    /// The mean of all workers for which `is_in`, and the root of the mean of the squared distances from it.
    pub(super) fn mean(&self, is_in: impl Fn(usize) -> bool) -> Option<(Vec<f32>, f64)> {
        let models = || self.models.iter().enumerate().filter(|(id, _)| is_in(*id)).map(|(_, model)| model);
        let count = models().count();
        let mut mean = vec![0.0; self.models.first()?.values().len()];
        for model in models() {
            mean.iter_mut().zip(model.values()).for_each(|(sum, value)| *sum += f64::from(value));
        }
        mean.iter_mut().for_each(|sum| *sum /= count.max(1) as f64);
        let distance = |model: &Model| -> f64 {
            mean.iter().zip(model.values()).map(|(mean, value)| (f64::from(value) - mean).powi(2)).sum()
        };
        let spread = models().map(distance).sum::<f64>() / count.max(1) as f64;
        Some((mean.into_iter().map(|mean| mean as f32).collect(), spread.sqrt()))
    }
}

impl SimEngine<'_> {
    /// A worker has its gradient: it makes its own step.
    pub(super) fn step_locally(&mut self, id: usize, gradient: Option<Payload>) -> Result<(), SimError> {
        let version = self.workers[id].clock + 1;
        let model = self.peers.as_mut().and_then(|peers| peers.model(id));
        if let (Some(model), Some(gradient)) = (model, gradient) {
            let fold = model.fold(version, &[(gradient, 1.0)], false);
            fold.map_err(|source| SimError::Fold { version, source })?;
        }
        Ok(())
    }

    /// A worker is ready to average with its group of a round.
    pub(super) fn average(&mut self, id: usize, round: u64) -> Result<(), SimError> {
        let incarnation = self.workers[id].incarnation;
        let Some(peers) = &mut self.peers else {
            return Err(self.broken(format!("worker {id} wants to average, and the job has no groups")));
        };
        let mut members = (peers.members)(id, round);
        members.sort_unstable();
        let key = (round, members.first().copied().unwrap_or_default());
        let agree = match peers.gatherings.get(&key) {
            Some(gathering) => gathering.members == members,
            None => members.iter().all(|other| {
                let mut theirs = (peers.members)(*other, round);
                theirs.sort_unstable();
                theirs == members
            }),
        };
        if peers.rounds[id] != round || !members.contains(&id) || !agree {
            return Err(self.broken(format!("worker {id} cannot average round {round} with {members:?}")));
        }
        let gathering = peers.gatherings.entry(key).or_insert_with(|| Gathering {
            members,
            ready: BTreeMap::new(),
            checked: 0,
            parts: None,
            mean: None,
        });
        gathering.ready.insert(id, incarnation);
        self.gather(key)
    }

    /// Begins to average in each group where no member is missing any more: members that are gone or further on are
    /// not missing. Call it whenever a worker came or went.
    pub(super) fn gather_all(&mut self) -> Result<(), SimError> {
        let Some(peers) = &mut self.peers else { return Ok(()) };
        let accounts = &self.server.accounts;
        for gathering in peers.gatherings.values_mut() {
            gathering
                .ready
                .retain(|id, incarnation| accounts[*id].is_in && accounts[*id].incarnation == *incarnation);
            gathering.checked = 0;
        }
        let keys: Vec<_> = peers.gatherings.keys().copied().collect();
        keys.into_iter().try_for_each(|key| self.gather(key))
    }

    fn gather(&mut self, key: (u64, usize)) -> Result<(), SimError> {
        let now = self.agenda.now();
        let Some(peers) = &mut self.peers else { return Ok(()) };
        let Some(gathering) = peers.gatherings.get_mut(&key) else { return Ok(()) };
        if gathering.parts.is_some() {
            return Ok(());
        }
        let accounts = &self.server.accounts;
        while let Some(id) = gathering.members.get(gathering.checked) {
            if accounts[*id].is_in && peers.rounds[*id] <= key.0 && !gathering.ready.contains_key(id) {
                return Ok(());
            }
            gathering.checked += 1;
        }
        if gathering.ready.is_empty() {
            peers.gatherings.remove(&key);
            return Ok(());
        }
        gathering.parts = Some(gathering.ready.iter().map(|(id, incarnation)| (*id, *incarnation)).collect());
        let members: Vec<usize> = gathering.ready.keys().copied().collect();
        if !peers.models.is_empty() {
            let parts: Vec<Vec<f32>> = members.iter().map(|id| peers.models[*id].values()).collect();
            let mean = mean(&parts);
            gathering.mean = Some(payload(&mean));
            self.judge.averages(&parts, &mean).map_err(|what| self.broken(what))?;
        }
        let time = self.wires.average(now, key, &members, self.bytes);
        let counts = &mut self.record.report.counts;
        counts.averages += 1;
        counts.carry(2 * (members.len() as u64 - 1), self.bytes);
        match time {
            AverageTime::At(at) => self.put_averaged(at, key),
            AverageTime::Ask { at, number } => self.ask_flows(at, number),
        }
        Ok(())
    }

    fn put_averaged(&mut self, at: u64, (round, first): (u64, usize)) {
        self.agenda.put(at, AgendaEvent::Averaged { round, first: first as u32 });
    }

    fn ask_flows(&mut self, at: Option<u64>, number: u64) {
        if let Some(at) = at {
            self.agenda.put(at, AgendaEvent::Flows { number });
        }
    }

    /// A ring on the links of racks begins or ends.
    pub(super) fn advance_flows(&mut self, number: u64) {
        let now = self.agenda.now();
        let Some((done, time)) = self.wires.advance(now, number) else { return };
        done.into_iter().for_each(|key| self.put_averaged(now, key));
        if let AverageTime::Ask { at, number } = time {
            self.ask_flows(at, number);
        }
    }

    /// The mean of a group has come to its members.
    pub(super) fn averaged(&mut self, round: u64, first: usize) -> Result<(), SimError> {
        let Some(peers) = &mut self.peers else { return Ok(()) };
        let Some(Gathering { mut ready, parts, mean, .. }) = peers.gatherings.remove(&(round, first)) else {
            return Ok(());
        };
        ready.retain(|id, incarnation| {
            self.workers[*id].is_in && self.workers[*id].incarnation == *incarnation
        });
        let parts = parts.unwrap_or_default();
        for (id, incarnation) in &ready {
            peers.rounds[*id] = round + 1;
            peers.averaged.advance(WorkerId(*id as u32), Clock::new(round + 1));
            let has_part = parts.binary_search(&(*id, *incarnation)).is_ok();
            if let (true, Some(mean), Some(model)) = (has_part, &mean, peers.models.get_mut(*id)) {
                model.put(std::rc::Rc::clone(mean));
            }
        }
        let version = peers.averaged.smallest().get();
        if version > self.server.version {
            (self.server.version, self.server.smallest_clock) = (version, version);
            self.measure(false);
            self.is_over |= matches!(self.cluster.until, Until::Versions(enough) if version >= enough);
        }
        for id in ready.into_keys() {
            self.record.note(8, id as u64, round);
            self.tell_worker(id, WorkerEvent::Averaged { round })?;
        }
        Ok(())
    }
}
