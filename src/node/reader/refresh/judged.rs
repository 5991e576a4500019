//! Tests of bounds on staleness that are judged once a copy is complete, and not when its last difference was found.

#[cfg(all(test, feature = "tcp"))]
mod tests {
    use super::super::*;
    use crate::clock::VersionTag;
    use crate::node::{BackgroundPublisher, DeltaOptions, Publisher, PublisherOptions, ReaderOptions};
    use crate::table::{ElementType, Table};
    use crate::transport::tcp::Tcp;

    const PATIENCE: Duration = Duration::from_secs(60);
    const BYTES: usize = 4096;

    /// A publisher that keeps differences and has published version 1, and a reader of it.
    fn pair() -> (BackgroundPublisher<Tcp>, Reader<Tcp>) {
        let (at, table) =
            ("127.0.0.1:0".parse().unwrap(), Table::flat(BYTES as u64, ElementType::U8).unwrap());
        let deltas = Some(DeltaOptions { history: 4, most_bytes: None });
        let options = PublisherOptions { deltas, ..PublisherOptions::default() };
        let publisher = Publisher::new(Tcp::new(), &at, table, options).unwrap().into_background().unwrap();
        let reader =
            Reader::connect(Tcp::new(), &publisher.address(), ReaderOptions::default(), PATIENCE).unwrap();
        publish(&publisher, 1);
        (publisher, reader)
    }

    fn bytes(number: u8) -> [u8; BYTES] {
        let mut bytes = [7; BYTES];
        bytes[9] = number;
        bytes
    }

    fn publish(publisher: &BackgroundPublisher<Tcp>, number: u8) {
        let version = publisher.publish(&bytes(number), VersionTag::default(), PATIENCE).unwrap();
        assert_eq!(version, Version::new(number.into()));
    }

    /// Brings a read of version 2 to the moment when the last difference is there and is to be applied, and publishes
    /// version 3 then.
    fn until_applied(
        publisher: &BackgroundPublisher<Tcp>,
        reader: &mut Reader<Tcp>,
        snapshot: Option<Asked>,
    ) {
        publish(publisher, 2);
        let wanted = Wanted::newest().max_staleness(0);
        let bound = Bound::version(Version::new(2));
        reader.begin(wanted, snapshot);
        reader.make_room(snapshot.is_some()).unwrap();
        assert!(reader.begin_deltas(snapshot.is_some(), None, bound, None).unwrap());
        let step = RefreshStep::Deltas { bound, has_read: false, is_filled: snapshot.is_none() };
        reader.refresh = reader.refresh.map(|refresh| Refresh { step, ..refresh });
        let deadline = crate::node::now() + PATIENCE;
        while !matches!(reader.turn_of_deltas(), DeltaTurn::Apply) {
            reader.link.advance().unwrap();
            assert!(crate::node::now() < deadline, "the difference never comes");
        }
        publish(publisher, 3);
    }

    #[test]
    fn a_snapshot_of_differences_counts_what_is_published_while_it_is_made() {
        let (publisher, mut reader) = pair();
        drop(reader.snapshot(Wanted::newest(), PATIENCE).unwrap());
        let asked = reader.begin_read(Wanted::newest().max_staleness(0), reader.identity);
        until_applied(&publisher, &mut reader, Some(asked));
        let deadline = crate::node::now() + PATIENCE;
        while !reader.refresh.is_some_and(|refresh| refresh.is_too_stale) {
            assert_eq!(reader.poll(crate::node::now()).unwrap(), None, "it is one version behind");
            assert!(crate::node::now() < deadline, "it is never found too far behind");
        }
        // The next attempt continues from the partial copy, and not from the last snapshot, which is damaged meanwhile.
        reader.spares = Default::default();
        let base = reader.base.as_mut().and_then(|base| std::sync::Arc::get_mut(&mut base.buffer)).unwrap();
        base.bytes_mut().unwrap()[33] ^= 4;
        let fresh = complete(reader.finish(PATIENCE)).unwrap();
        assert_eq!((fresh.version, fresh.behind), (Version::new(3), 0));
        assert_eq!(reader.take_snapshot().unwrap().bytes(), bytes(3));
    }

    #[test]
    fn a_refresh_by_differences_counts_what_is_published_while_it_is_made() {
        let (publisher, mut reader) = pair();
        reader.refresh(0, PATIENCE).unwrap();
        until_applied(&publisher, &mut reader, None);
        let fresh = complete(reader.finish(PATIENCE)).unwrap();
        assert_eq!(
            (fresh.version, fresh.behind, reader.bytes().unwrap()),
            (Version::new(3), 0, &bytes(3)[..])
        );
    }

    #[test]
    fn a_bound_holds_when_a_copy_has_come_into_memory_of_the_callers() {
        let (publisher, mut reader) = pair();
        let (mut into, deadline) = ([0; BYTES], crate::node::now() + PATIENCE);
        let fresh = reader.refresh(0, PATIENCE).unwrap();
        publish(&publisher, 2);
        let mut judge = |wanted: Wanted| reader.within_by_now(fresh, wanted, deadline);
        assert_eq!(judge(Wanted::newest().max_staleness(0)).unwrap(), None);
        let kept = judge(Wanted::newest().max_staleness(1)).unwrap().unwrap();
        assert_eq!((kept.version, kept.behind), (Version::new(1), 1));
        let error = judge(Wanted::exactly(fresh.version).max_staleness(0)).unwrap_err();
        assert!(matches!(error, Error::Pull { source: PullError::TooOld { .. }, .. }), "{error}");
        assert!(judge(Wanted::newest()).unwrap().is_some());
        // And the whole call keeps it.
        let fresh = reader.pull_into(&mut into, Wanted::newest().max_staleness(0), PATIENCE).unwrap();
        assert_eq!((fresh.version, fresh.behind, into), (Version::new(2), 0, bytes(2)));
    }
}
