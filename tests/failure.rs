//! The effects on the others when one dies, stalls or talks nonsense: servers, workers and readers over shared memory.
//! Each is in a process of its own where a process is what dies.

mod failure {
    mod asleep;
    mod at_once;
    mod behind;
    mod credits;
    mod deadlines;
    mod hosts;
    mod joins;
    mod last_words;
    mod misbehaviour;
    mod pauses;
    mod raw;
    mod restarts;
    mod second;
    mod servers;
    mod slow;
    mod words;
    mod workers;
}
