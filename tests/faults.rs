//! Networks that misbehave, and connections that do not prove the secret: servers, workers, publishers and readers over
//! TCP, one of them behind a proxy that delays, cuts, stalls and damages what passes.

mod faults {
    mod background;
    mod corruption;
    mod job;
    mod network;
    mod process;
    mod proxy;
    mod random;
    mod rounds;
    #[path = "../network/unauthenticated_peer.rs"]
    mod unauthenticated_peer;
    mod unauthenticated_peers;
}
