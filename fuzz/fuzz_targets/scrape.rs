#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| slackline_fuzz::run("scrape", input));
