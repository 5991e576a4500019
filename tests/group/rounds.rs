//! The results of rounds.

use std::time::Duration;

use slackline::group::{GroupError, GroupOptions};
use slackline::{
    Error,
    scheme::{Groups, Partition},
};

use super::fixture::{
    Fixture, Member, PATIENCE, assert_mean, bits, each, fill, meet, pattern, turn, wait_for,
};

const ELEMENTS: usize = 5003;

pub(crate) fn as_many_rounds_as_there_are_digits_give_the_plain_mean_to_all<F: Fixture>() {
    for (members, rounds) in [(4, 2), (8, 3)] {
        let groups = Groups::new(members, 2, Partition::Digits).unwrap();
        let all: Vec<usize> = (0..members).collect();
        each::<F, _>(meet::<F>(members, ELEMENTS, GroupOptions::default()), |mut member| {
            fill::<F>(&mut member);
            for round in 0..rounds {
                let averaged = member.average_round(&groups, round, PATIENCE).unwrap();
                assert_eq!((averaged.round, averaged.members, averaged.skipped), (round, 2, false));
            }
            assert_mean(member.parameters().unwrap(), &all);
            let statistics = member.statistics();
            assert_eq!((statistics.rounds, statistics.skipped, statistics.restarts), (rounds, 0, 0));
            // Half of the parameters to the other one, and half of them back, in each round.
            assert_eq!(statistics.bytes.div_ceil(ELEMENTS as u64 * 4), rounds);
            member.leave(PATIENCE).unwrap();
        });
    }
}

pub(crate) fn members_of_a_group_hold_the_same_bits<F: Fixture>() {
    let group: Vec<usize> = (0..4).collect();
    let held = each::<F, _>(meet::<F>(4, ELEMENTS, GroupOptions::default()), |mut member| {
        fill::<F>(&mut member);
        for round in 0..20 {
            assert!(!member.average(round, &group, PATIENCE).unwrap().skipped);
            // Each goes its own way in between, as in training.
            let rank = member.rank();
            for (index, value) in member.parameters_mut().unwrap().iter_mut().enumerate() {
                *value += pattern(rank, index) * 0.1;
            }
        }
        member.average(20, &group, PATIENCE).unwrap();
        bits(member.parameters().unwrap())
    });
    assert!(held.iter().all(|other| *other == held[0]));
    assert!(held[0].iter().any(|bits| f32::from_bits(*bits) != 0.0));
}

pub(crate) fn uneven_groups_average_by_their_own_size<F: Fixture>() {
    let groups: [&[usize]; 2] = [&[0, 2, 4], &[1, 3]];
    each::<F, _>(meet::<F>(5, ELEMENTS, GroupOptions::default()), |mut member| {
        fill::<F>(&mut member);
        let group = groups[member.rank() % 2];
        assert_eq!(member.average(7, group, PATIENCE).unwrap().members, group.len());
        assert_mean(member.parameters().unwrap(), group);
    });
}

pub(crate) fn parts_with_checksums_give_the_same_bits_as_without<F: Fixture>() {
    let run = |checksums| {
        let options = GroupOptions { checksums, ..GroupOptions::default() };
        each::<F, _>(meet::<F>(3, ELEMENTS, options), |mut member| {
            fill::<F>(&mut member);
            assert_eq!(member.average(0, &[0, 1, 2], PATIENCE).unwrap().members, 3);
            bits(member.parameters().unwrap())
        })
    };
    assert_eq!(run(true), run(false));
}

pub(crate) fn a_group_of_one_keeps_its_parameters<F: Fixture>() {
    each::<F, _>(meet::<F>(2, ELEMENTS, GroupOptions::default()), |mut member| {
        fill::<F>(&mut member);
        let rank = member.rank();
        assert_eq!(member.average(0, &[rank], PATIENCE).unwrap().members, 1);
        assert_mean(member.parameters().unwrap(), &[rank]);
        assert_eq!(member.average(5, &[0, 1], PATIENCE).unwrap().members, 2);
    });
}

pub(crate) fn fewer_cache_lines_than_members_are_averaged<F: Fixture>() {
    for elements in [1, 17] {
        each::<F, _>(meet::<F>(3, elements, GroupOptions::default()), |mut member| {
            fill::<F>(&mut member);
            for round in 0..3 {
                assert_eq!(member.average(round, &[0, 1, 2], PATIENCE).unwrap().members, 3);
            }
            assert_mean(member.parameters().unwrap(), &[0, 1, 2]);
        });
    }
}

pub(crate) fn a_driver_with_a_loop_of_its_own_never_waits<F: Fixture>() {
    // Both in one thread: a poll that waited for the other would wait for ever.
    let mut members = meet::<F>(2, ELEMENTS, GroupOptions::default());
    members.iter_mut().for_each(fill::<F>);
    for round in 0..5 {
        for member in &mut members {
            member.start_average(round, &[0, 1]).unwrap();
            assert!(matches!(member.parameters_mut(), Err(Error::OutOfTurn { .. })));
        }
        let mut ended = [None; 2];
        wait_for("both members", || {
            for (member, ended) in members.iter_mut().zip(&mut ended) {
                *ended = ended.or(turn::<F>(member).unwrap());
            }
            ended.iter().all(Option::is_some).then_some(())
        });
    }
    members.iter().for_each(|member| assert_mean(member.parameters().unwrap(), &[0, 1]));
}

pub(crate) fn a_late_member_is_waited_for_until_the_deadline_and_may_still_come<F: Fixture>() {
    let mut members = meet::<F>(2, ELEMENTS, GroupOptions::default());
    members.iter_mut().for_each(fill::<F>);
    let (mut late, mut member) = (members.pop().unwrap(), members.pop().unwrap());
    for _ in 0..2 {
        match member.average(0, &[0, 1], Duration::from_millis(20)) {
            Err(Error::Group(GroupError::Deadline { round: 0, missing, .. })) => assert_eq!(missing, [1]),
            other => panic!("{other:?}"),
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(!late.average(0, &[0, 1], PATIENCE).unwrap().skipped));
        assert!(!member.average(0, &[0, 1], PATIENCE).unwrap().skipped);
    });
    assert_mean(member.parameters().unwrap(), &[0, 1]);
    assert_mean(late.parameters().unwrap(), &[0, 1]);
}

pub(crate) fn a_round_that_was_given_up_is_skipped_by_all_and_the_next_one_is_whole<F: Fixture>() {
    let group = [0, 1, 2];
    each::<F, _>(meet::<F>(3, ELEMENTS, GroupOptions::default()), |mut member| {
        fill::<F>(&mut member);
        let rank = member.rank();
        if rank == 1 {
            member.start_average(0, &group).unwrap();
            let averaged = member.abandon().unwrap().unwrap();
            assert_eq!((averaged.members, averaged.skipped), (1, true));
        } else {
            let averaged = member.average(0, &group, PATIENCE).unwrap();
            assert_eq!((averaged.members, averaged.skipped), (1, true));
        }
        // Free once they are no longer being sent to any member.
        wait_for("the parameters", || {
            turn::<F>(&mut member).unwrap();
            member.parameters_mut().is_ok().then_some(())
        });
        assert_mean(member.parameters().unwrap(), &[rank]);
        assert_eq!(member.average(1, &group, PATIENCE).unwrap().members, 3);
        assert_mean(member.parameters().unwrap(), &group);
        assert_eq!((member.statistics().rounds, member.statistics().skipped), (2, 1));
    });
}

pub(crate) fn calls_that_make_no_sense_are_errors<F: Fixture>() {
    let mut members: Vec<Member<F>> = meet::<F>(2, ELEMENTS, GroupOptions::default());
    let member = &mut members[0];
    for group in [&[][..], &[1], &[1, 0], &[0, 0], &[0, 2]] {
        assert!(
            matches!(member.start_average(0, group), Err(Error::Option { option: "group", .. })),
            "{group:?}"
        );
    }
    assert_eq!(member.average(3, &[0], PATIENCE).unwrap().round, 3);
    for round in [0, 3, u64::MAX] {
        assert!(matches!(member.start_average(round, &[0]), Err(Error::OutOfTurn { .. })), "{round}");
    }
    member.start_average(4, &[0, 1]).unwrap();
    assert!(matches!(member.start_average(5, &[0, 1]), Err(Error::OutOfTurn { .. })));
    assert!(member.abandon().unwrap().unwrap().skipped);
    assert_eq!(member.abandon().unwrap(), None);
}

pub(crate) fn members_that_were_told_different_groups_hear_of_it<F: Fixture>() {
    let groups: [&[usize]; 3] = [&[0, 1], &[0, 1, 2], &[0, 1, 2]];
    let both_know = std::sync::Barrier::new(2);
    each::<F, _>(meet::<F>(3, ELEMENTS, GroupOptions::default()), |mut member| {
        let rank = member.rank();
        let end = member.average(0, groups[rank], PATIENCE);
        if rank < 2 {
            let disagree =
                |error: &Error| matches!(error, Error::Group(GroupError::Disagree { round: 0, .. }));
            assert!(end.as_ref().is_err_and(disagree), "{rank}: {end:?}");
            // Neither goes before the other has heard of it; then the third goes on alone.
            both_know.wait();
        }
    });
}
