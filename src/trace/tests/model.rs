//! Histories of a small model: a publisher and its readers, whose steps are interleaved at random.

use proptest::prelude::*;

use super::*;

/// A step of the publisher or of a reader; each takes a moment.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The publisher goes on: it stamps a version, then shows it, then notes that it is complete.
    Publish,
    /// The publisher is replaced by another, which continues its numbers.
    Replace,
    /// A reader takes its next step: it begins a read, or ends it if there is a version for it.
    Read { reader: usize, wanted: Kind, choice: u64 },
}

/// The bound of a read.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Newest,
    Stale(u64),
    AtLeast(u64),
    Exactly(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wanted = prop_oneof![
        3 => Just(Kind::Newest),
        2 => (0u64..4).prop_map(Kind::Stale),
        2 => (0u64..3).prop_map(Kind::AtLeast),
        2 => (0u64..4).prop_map(Kind::Exactly),
    ];
    let step = prop_oneof![
        12 => Just(Step::Publish),
        1 => Just(Step::Replace),
        20 => (0usize..3, wanted, any::<u64>())
            .prop_map(|(reader, wanted, choice)| Step::Read { reader, wanted, choice }),
    ];
    proptest::collection::vec(step, 40..160)
}

/// A read that has begun.
struct Begun {
    wanted: Kind,
    epoch: u64,
    began_ns: u64,
    /// The newest version that could be seen then.
    newest: u64,
    at_least: u64,
}

#[derive(Default)]
struct Reader {
    begun: Option<Begun>,
    sequence: u64,
    /// The newest version that it got, and the incarnation that it is of.
    got: (u64, u64),
}

/// Plays the steps, where each reader's clock is off by so much.
fn play(steps: &[Step], skews: [u64; 3]) -> Trace {
    let (mut now, mut origin, mut visible) = (1_000_000, 1, 0);
    let mut trace = Trace { publications: Vec::new(), reads: Vec::new() };
    // The version that is being published, and whether it can be seen.
    let mut publishing: Option<(Publication, bool)> = None;
    let mut readers: [Reader; 3] = Default::default();
    for step in steps {
        now += 1_000;
        match *step {
            Step::Publish => {
                publishing = match publishing.take() {
                    None => {
                        let digests = [("w".to_string(), digest(origin, visible + 1))].into();
                        let (version, tag) = (Version::new(visible + 1), VersionTag::step(now));
                        let published = Publication {
                            origin,
                            version,
                            tag,
                            published_ns: now,
                            complete_ns: now,
                            digests,
                        };
                        Some((published, false))
                    }
                    Some((published, false)) => {
                        visible += 1;
                        trace.publications.push(published.clone());
                        Some((published, true))
                    }
                    Some((_, true)) => {
                        trace.publications.last_mut().unwrap().complete_ns = now;
                        None
                    }
                };
            }
            Step::Replace if publishing.is_none() => {
                origin += 1;
                // Its readers connect to the next.
                readers.iter_mut().for_each(|reader| reader.begun = None);
            }
            Step::Replace => {}
            Step::Read { reader, wanted, choice } => {
                let at = now + skews[reader];
                let (name, reader) = (reader as u64, &mut readers[reader]);
                let Some(begun) = &reader.begun else {
                    let at_least = match wanted {
                        Kind::AtLeast(ahead) => visible + ahead,
                        Kind::Exactly(back) => visible.saturating_sub(back),
                        _ => 0,
                    };
                    reader.begun =
                        Some(Begun { wanted, epoch: origin, began_ns: at, newest: visible, at_least });
                    continue;
                };
                // Anything from the oldest to the newest that is promised, by the incarnation that reads it.
                let got = if reader.got.0 == origin { reader.got.1 } else { 0 };
                let least = match begun.wanted {
                    Kind::Stale(most) => visible.saturating_sub(most).max(got),
                    Kind::Exactly(_) => begun.at_least,
                    _ => begun.newest.max(begun.at_least).max(got),
                };
                if least > visible {
                    continue;
                }
                let version = match begun.wanted {
                    Kind::Exactly(_) => begun.at_least,
                    _ => least + choice % (visible - least + 1),
                };
                let of =
                    trace.publications.iter().find(|it| it.origin == origin && it.version.get() == version);
                let Some(of) = of else {
                    // Of an earlier incarnation, or the zeros before the first: a frame of this one never held it.
                    reader.begun = None;
                    continue;
                };
                reader.sequence += 1;
                trace.reads.push(Certificate {
                    reader: name,
                    sequence: reader.sequence,
                    max_staleness: if let Kind::Stale(most) = begun.wanted { Some(most) } else { None },
                    at_least: matches!(begun.wanted, Kind::AtLeast(_))
                        .then_some(Version::new(begun.at_least)),
                    exactly: matches!(begun.wanted, Kind::Exactly(_)).then_some(Version::new(begun.at_least)),
                    began_ns: begun.began_ns,
                    ended_ns: at,
                    epoch: begun.epoch,
                    origin,
                    version: of.version,
                    newest: Version::new(visible),
                    tag: of.tag,
                    published_ns: of.published_ns,
                    digests: of.digests.clone(),
                });
                reader.got = (origin, got.max(version));
                reader.begun = None;
            }
        }
    }
    if let Some((_, true)) = publishing {
        trace.publications.last_mut().unwrap().complete_ns = now + 1_000;
    }
    trace
}

const TOLERANCE: Duration = Duration::from_nanos(400_000);

/// The properties of the findings.
fn found(trace: &Trace, clock_error: Duration) -> Vec<Property> {
    trace.judged(clock_error).violations.iter().map(|violation| violation.property).collect()
}

proptest! {
    #[test]
    fn what_the_model_does_is_accepted_and_wholly_verified(steps in steps()) {
        let trace = play(&steps, [0; 3]);
        let verdict = trace.judged(Duration::ZERO);
        prop_assert_eq!(verdict.violations, []);
        prop_assert_eq!(verdict.verified, trace.reads.len() as u64);
    }

    #[test]
    fn clocks_that_differ_by_less_than_the_tolerance_raise_no_alarm(
        steps in steps(),
        skews in prop::array::uniform3(0u64..=400_000),
    ) {
        prop_assert_eq!(found(&play(&steps, skews), TOLERANCE), []);
    }

    #[test]
    fn a_single_change_of_what_was_read_is_found(steps in steps(), at in any::<prop::sample::Index>()) {
        let trace = play(&steps, [0; 3]);
        let count = trace.reads.len();
        prop_assume!(count > 0);
        let at = at.index(count);
        let with = |change: &dyn Fn(&mut Certificate)| {
            let mut changed = trace.clone();
            change(&mut changed.reads[at]);
            found(&changed, Duration::ZERO)
        };
        let digest = with(&|read| read.digests.get_mut("w").unwrap()[5] ^= 1);
        prop_assert_eq!(digest, [Property::Whole]);
        prop_assert_eq!(with(&|read| read.tag.label[9] ^= 1), [Property::Tagged]);
        prop_assert_eq!(with(&|read| read.tag.step += 1), [Property::Tagged]);
        prop_assert!(with(&|read| read.origin ^= 1).contains(&Property::Tagged));
        let of_its_owner = |one: &&Publication| one.origin == trace.reads[at].epoch;
        let last = trace.publications.iter().rfind(of_its_owner).unwrap();
        if last.published_ns > trace.reads[at].ended_ns {
            prop_assert!(with(&|read| read.newest = last.version).contains(&Property::Timely));
        }
        let early = with(&|read| {
            read.began_ns = read.published_ns - 2;
            read.ended_ns = read.published_ns - 1;
        });
        prop_assert!(early.contains(&Property::Timely));
        // Another version that was published.
        let read = &trace.reads[at];
        let is_other = |one: &&Publication| one.origin == read.origin && one.version != read.version;
        if let Some(other) = trace.publications.iter().find(is_other) {
            let changed = with(&|read| read.version = other.version);
            prop_assert!(changed.contains(&Property::Whole) && changed.contains(&Property::Tagged));
        }
    }

    #[test]
    fn a_single_change_of_what_was_published_is_found(steps in steps(), at in any::<prop::sample::Index>()) {
        let trace = play(&steps, [0; 3]);
        let count = trace.reads.len();
        prop_assume!(count > 0);
        let read = trace.reads[at.index(count)].clone();
        let with = |change: &dyn Fn(&mut Publication)| {
            let mut changed = trace.clone();
            let is_it = |one: &&mut Publication| (one.origin, one.version) == (read.origin, read.version);
            change(changed.publications.iter_mut().find(is_it).unwrap());
            found(&changed, Duration::ZERO)
        };
        prop_assert!(with(&|one| one.digests.get_mut("w").unwrap()[0] ^= 1).contains(&Property::Whole));
        prop_assert!(with(&|one| one.tag.step ^= 1).contains(&Property::Tagged));
        prop_assert!(with(&|one| one.published_ns += 1).contains(&Property::Tagged));
    }

    #[test]
    fn two_reads_in_the_wrong_order_are_found(steps in steps(), at in any::<prop::sample::Index>()) {
        let mut trace = play(&steps, [0; 3]);
        let pairs: Vec<_> = (0..trace.reads.len())
            .filter_map(|one| {
                let next = (trace.reads[one].reader, trace.reads[one].sequence + 1);
                let other = trace.reads.iter().position(|read| (read.reader, read.sequence) == next)?;
                Some((one, other))
            })
            .collect();
        prop_assume!(!pairs.is_empty());
        let (one, other) = pairs[at.index(pairs.len())];
        trace.reads[one].sequence += 1;
        trace.reads[other].sequence -= 1;
        prop_assert!(found(&trace, Duration::ZERO).contains(&Property::Timely));
    }

    #[test]
    fn a_read_that_began_after_a_newer_version_is_found_beyond_the_tolerance(
        steps in steps(),
        at in any::<prop::sample::Index>(),
    ) {
        let trace = play(&steps, [0; 3]);
        let newer = |read: &Certificate, one: &Publication| {
            read.exactly.is_none()
                && one.origin == read.origin
                && read.version.get() + read.max_staleness.unwrap_or(0) < one.version.get()
        };
        let pairs: Vec<_> = (0..trace.reads.len())
            .filter_map(|read| Some((read, trace.publications.iter().find(|one| newer(&trace.reads[read], one))?)))
            .collect();
        prop_assume!(!pairs.is_empty());
        let (read, Publication { version, complete_ns, .. }) = pairs[at.index(pairs.len())];
        let tolerance = TOLERANCE.as_nanos() as u64;
        let mut late = trace.clone();
        late.reads.truncate(read + 1);
        // The reader has seen all versions but that one.
        late.reads[read].newest = Version::new(version.get() - 1).max(trace.reads[read].version);
        late.reads[read].began_ns = complete_ns + tolerance + 1;
        late.reads[read].ended_ns = complete_ns + tolerance + 2;
        prop_assert!(found(&late, TOLERANCE).contains(&Property::Bounded));
        late.reads[read].began_ns = complete_ns + tolerance;
        late.reads[read].ended_ns = complete_ns + tolerance + 1;
        prop_assert_eq!(found(&late, TOLERANCE), []);
    }
}
