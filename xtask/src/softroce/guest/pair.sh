# To be sourced: perftest pairs.

# Runs a program of perftest, the server behind the command prefix THERE and the client behind HERE. The rig takes the
# figure from what the client prints; none is a failure.
# usage: pair NAME HERE THERE ADDRESS PROGRAM ARGUMENT...
# shellcheck disable=SC2086 # prefixes are words
pair() {
    name=$1 here=$2 there=$3 address=$4
    shift 4
    echo "PERFTEST $name"
    $there "$@" -d "$SLACKLINE_RIG_DEVICE" -F >server.log 2>&1 &
    server=$!
    # Until it listens on 18515. The client tries once.
    $there sh -c 'for _ in $(seq 100); do
        grep -q ":4853 .* 0A " /proc/net/tcp /proc/net/tcp6 && exit; sleep 0.1; done; exit 1' \
        || echo "the server does not listen"
    $here "$@" -d "$SLACKLINE_RIG_DEVICE" -F "$address" || { echo "the server said:"; cat server.log; }
    kill "$server" 2>/dev/null
    wait "$server"
}
