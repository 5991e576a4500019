# What a run can do with the other guest.
check() {
    name=$1
    shift
    if "$@"; then echo "RESULT $name ok"; else echo "RESULT $name FAILED"; fi
}
there=$SLACKLINE_RIG_RUN
device="/sys/class/infiniband/$SLACKLINE_RIG_DEVICE/ports/1/state"

says() { [ "$("$there" hostname)" = slack2 ] && [ "$(hostname)" = slack1 ]; }
tells() { "$there" sh -c 'exit 7'; [ $? = 7 ]; }
passes() { [ "$(echo word | A_VARIABLE=its_value "$there" sh -c 'cat; echo $A_VARIABLE')" = "word
its_value" ]; }
ends() {
    "$there" sh -c 'echo $$ >/tmp/pid; exec sleep 1000' &
    sleep 1
    kill -9 $! && "$there" sh -c 'for _ in $(seq 50); do
        kill -0 "$(cat /tmp/pid)" 2>/dev/null || exit 0; sleep 0.1; done; exit 1'
}
active() { grep -q ACTIVE "$device" && "$there" grep -q ACTIVE "$device"; }
parts() {
    ip link set "$SLACKLINE_RIG_NETDEV" down
    timeout 1 "$there" true && return 1
    ip link set "$SLACKLINE_RIG_NETDEV" up
    for _ in $(seq 20); do timeout 1 "$there" true && return; done
}

check both_have_a_device active
check a_program_runs_in_the_other_guest says
check its_exit_code_comes_back tells
check input_and_environment_go_there passes
check it_ends_with_who_started_it ends
check a_link_that_is_down_parts_them parts
exit 0
