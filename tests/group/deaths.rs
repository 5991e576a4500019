//! Members that die, leave, or break the protocol, at every point of a round.

use std::sync::Barrier;

use slackline::Error;
use slackline::group::{GroupError, GroupOptions};
use slackline::internals::node::Absence;
use slackline::internals::param::GroupArea;

use super::fixture::{Fixture, Member, PATIENCE, assert_mean, each, fill, meet, turn, wait_for};
use super::raw::{header, meet_raw, patient};

const ELEMENTS: usize = 3001;

/// Rounds from `from` on give the mean of `alive` to all of them.
fn go_on<F: Fixture>(member: &mut Member<F>, from: u64, group: &[usize], alive: &[usize]) {
    fill::<F>(member);
    for round in from..from + 3 {
        let averaged = member.average(round, group, PATIENCE).unwrap();
        assert_eq!((averaged.round, averaged.members, averaged.skipped), (round, alive.len(), false));
    }
    assert_mean(member.parameters().unwrap(), alive);
}

pub(crate) fn the_others_go_on_without_a_member_that_died_before_the_round<F: Fixture>() {
    each::<F, _>(meet::<F>(4, ELEMENTS, GroupOptions::default()), |mut member| {
        if member.rank() != 2 {
            go_on::<F>(&mut member, 0, &[0, 1, 2, 3], &[0, 1, 3]);
            assert!(matches!(member.absence(2), Some(Absence::Closed(_) | Absence::Told { .. })));
        }
    });
}

pub(crate) fn the_others_go_on_without_a_member_that_died_after_it_sent_its_summands<F: Fixture>() {
    let has_sent = Barrier::new(4);
    each::<F, _>(meet::<F>(4, ELEMENTS, GroupOptions::default()), |mut member| {
        if member.rank() == 2 {
            member.start_average(0, &[0, 1, 2, 3]).unwrap();
            turn::<F>(&mut member).unwrap();
            has_sent.wait();
        } else {
            has_sent.wait();
            go_on::<F>(&mut member, 0, &[0, 1, 2, 3], &[0, 1, 3]);
        }
    });
}

pub(crate) fn the_others_go_on_without_a_member_that_sent_a_summand_to_only_one<F: Fixture>() {
    let group = [0, 1, 2, 3];
    let (members, mut raw) = meet_raw::<F>(4, ELEMENTS, patient());
    let payload = raw.part(4, 1, 5.0);
    raw.write(1, GroupArea::Summand, header(0, &group, &group, payload.len()), &payload);
    drop(raw);
    each::<F, _>(members, |mut member| go_on::<F>(&mut member, 0, &group, &group[..3]));
}

pub(crate) fn the_others_go_on_without_a_member_that_sent_its_mean_to_one_of_them_only<F: Fixture>() {
    let group = [0, 1, 2, 3];
    let (mut members, mut raw) = meet_raw::<F>(4, ELEMENTS, patient());
    std::thread::scope(|scope| {
        let dying = scope.spawn(move || {
            for to in 0..3 {
                let payload = raw.part(4, to, 8.0);
                raw.write(to, GroupArea::Summand, header(0, &group, &group, payload.len()), &payload);
            }
            let payload = raw.part(4, 3, 2.0);
            raw.write(0, GroupArea::Mean, header(0, &group, &group, payload.len()), &payload);
            // The others have summed by then, so that member 0 lacks nothing.
            (0..3).for_each(|from| raw.wait_for(from, GroupArea::Mean, 0));
        });
        let rounds: Vec<_> = members
            .iter_mut()
            .map(|member| {
                scope.spawn(|| {
                    member.parameters_mut().unwrap().fill(0.0);
                    member.average(0, &group, PATIENCE).unwrap()
                })
            })
            .collect();
        dying.join().unwrap();
        let ends: Vec<_> = rounds.into_iter().map(|round| round.join().unwrap()).collect();
        // Either member 0 took everything before it heard from the others, which then find the round over. Or they all
        // begin again without the dead.
        let with_all = (ends[0].members, ends[1].skipped, ends[2].skipped) == (4, true, true);
        let without = ends.iter().all(|end| end.members == 3 && !end.skipped);
        assert!(with_all || without, "{ends:?}");
    });
    for member in &members {
        let values = member.parameters().unwrap();
        // Of the mean of 0, 0, 0 and 8: nothing of it, or all.
        let (first, last) = (values[0], values[ELEMENTS - 1]);
        assert!([(0.0, 0.0), (2.0, 2.0)].contains(&(first, last)), "{first} and {last}");
        assert!(values.iter().all(|value| *value == first));
    }
    each::<F, _>(members, |mut member| go_on::<F>(&mut member, 1, &group, &group[..3]));
}

pub(crate) fn what_a_member_had_written_whole_counts_though_it_left_before_it_was_read<F: Fixture>() {
    let mut members = meet::<F>(2, ELEMENTS, GroupOptions::default());
    members.iter_mut().for_each(fill::<F>);
    let (mut first, mut second) = (members.remove(0), members.remove(0));
    second.start_average(0, &[0, 1]).unwrap();
    first.start_average(0, &[0, 1]).unwrap();
    // The second sends its mean, and then looks at nothing until the first has ended the round and left.
    let mut ended = None;
    wait_for("the first to end", || {
        if !matches!(first.statistics().rounds, 1..) {
            ended = ended.or(turn::<F>(&mut second).unwrap());
        }
        turn::<F>(&mut first).unwrap()
    });
    first.leave(PATIENCE).unwrap();
    let averaged = ended.unwrap_or_else(|| second.average(0, &[0, 1], PATIENCE).unwrap());
    assert_eq!((averaged.members, averaged.skipped), (2, false));
    assert_mean(second.parameters().unwrap(), &[0, 1]);
}

pub(crate) fn two_deaths_in_one_round_leave_two_members_that_go_on<F: Fixture>() {
    let has_sent = Barrier::new(3);
    each::<F, _>(meet::<F>(4, ELEMENTS, GroupOptions::default()), |mut member| match member.rank() {
        // One before it has sent anything, one when it has sent its summands.
        1 => {}
        2 => {
            member.start_average(0, &[0, 1, 2, 3]).unwrap();
            turn::<F>(&mut member).unwrap();
            has_sent.wait();
        }
        _ => {
            has_sent.wait();
            go_on::<F>(&mut member, 0, &[0, 1, 2, 3], &[0, 3]);
            assert!(member.statistics().restarts <= 2 * 2);
        }
    });
}

pub(crate) fn the_last_one_goes_on_alone<F: Fixture>() {
    each::<F, _>(meet::<F>(3, ELEMENTS, GroupOptions::default()), |mut member| {
        if member.rank() == 1 {
            go_on::<F>(&mut member, 0, &[0, 1, 2], &[1]);
        }
    });
}

pub(crate) fn a_member_that_leaves_is_no_accident<F: Fixture>() {
    let has_met = Barrier::new(3);
    each::<F, _>(meet::<F>(3, ELEMENTS, GroupOptions::default()), |mut member| {
        fill::<F>(&mut member);
        assert_eq!(member.average(0, &[0, 1, 2], PATIENCE).unwrap().members, 3);
        if member.rank() == 0 {
            member.leave(PATIENCE).unwrap();
            has_met.wait();
        } else {
            has_met.wait();
            go_on::<F>(&mut member, 1, &[0, 1, 2], &[1, 2]);
            assert!(matches!(member.absence(0), Some(Absence::Left | Absence::Told { .. })));
        }
    });
}

pub(crate) fn whoever_is_said_to_be_gone_is_left_out_by_all_and_told_so<F: Fixture>() {
    let group = [0, 1, 2, 3];
    let (members, mut raw) = meet_raw::<F>(4, ELEMENTS, patient());
    // Member 3 tells member 0 alone that member 2 is gone, and is silent from then on.
    raw.write_gone(0, &[2]);
    let alive = [0, 1];
    std::thread::scope(|scope| {
        let threads: Vec<_> = members
            .into_iter()
            .map(|mut member| {
                scope.spawn(move || {
                    fill::<F>(&mut member);
                    let mut rounds = 0..;
                    // Member 3 averages nothing, so that it takes its death to end the round.
                    let end = loop {
                        match member.average(rounds.next().unwrap(), &group, PATIENCE) {
                            Ok(averaged) if averaged.members > 2 || averaged.skipped => {}
                            other => break other,
                        }
                    };
                    (member.rank(), end)
                })
            })
            .collect();
        // Cut off by the others, by the first of them that hears of it.
        wait_for("member 2 to be told", || {
            let gone = raw.ends[1].1.gone();
            gone.contains(2).then_some(())
        });
        drop(raw);
        for thread in threads {
            let (rank, end) = thread.join().unwrap();
            if alive.contains(&rank) {
                assert_eq!(end.unwrap().members, 2);
            } else {
                let is_cut_off =
                    |error: &Error| matches!(error, Error::Group(GroupError::CutOff { rank: 2 }));
                assert!(end.as_ref().is_err_and(is_cut_off), "{end:?}");
            }
        }
    });
}

pub(crate) fn parts_that_break_the_protocol_cost_their_author_its_membership<F: Fixture>() {
    let group = [0, 1, 2];
    let options = GroupOptions { checksums: true, ..patient() };
    // Of another length than was agreed; with a wrong checksum; with none.
    let wrongs = [(4, 0), (usize::MAX, 9), (usize::MAX, 0)];
    let areas = [GroupArea::Summand, GroupArea::Mean];
    for (area, (most, checksum)) in areas.into_iter().flat_map(|area| wrongs.map(|wrong| (area, wrong))) {
        let (members, mut raw) = meet_raw::<F>(3, ELEMENTS, options);
        std::thread::scope(|scope| {
            let threads: Vec<_> = members
                .into_iter()
                .map(|mut member| scope.spawn(move || go_on::<F>(&mut member, 0, &group, &group[..2])))
                .collect();
            for to in 0..2 {
                let index = if area == GroupArea::Summand { to } else { 2 };
                let whole = raw.part(3, index, 1.0);
                let payload = whole.slice(0, whole.len().min(most)).unwrap();
                let wrong = header(0, &group, &group, payload.len());
                if area == GroupArea::Mean {
                    let summand = raw.part(3, to, 1.0);
                    let mut right = header(0, &group, &group, summand.len());
                    right.checksum = right.checksum_of(summand.as_volatile());
                    raw.write(to, GroupArea::Summand, right, &summand);
                }
                raw.write(to, area, slackline::internals::param::PartHeader { checksum, ..wrong }, &payload);
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
