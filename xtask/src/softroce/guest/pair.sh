# To be sourced: perftest pairs.

# Runs a program of perftest, the server at `there`, a command prefix that may be empty, and the client here. The rig
# takes the figure from what the client prints; none is a failure.
# usage: pair NAME THERE ADDRESS PROGRAM ARGUMENT...
pair() {
    name=$1 there=$2 address=$3
    shift 3
    echo "PERFTEST $name"
    # shellcheck disable=SC2086 # no word, or one
    $there "$@" -d "$SLACKLINE_RIG_DEVICE" -F >server.log 2>&1 &
    server=$!
    # Until it listens on 18515. The client tries once.
    # shellcheck disable=SC2086
    $there sh -c 'for _ in $(seq 100); do
        grep -q ":4853 .* 0A " /proc/net/tcp /proc/net/tcp6 && exit; sleep 0.1; done; exit 1' \
        || echo "the server does not listen"
    "$@" -d "$SLACKLINE_RIG_DEVICE" -F "$address" || { echo "the server said:"; cat server.log; }
    kill "$server" 2>/dev/null
    wait "$server"
}
