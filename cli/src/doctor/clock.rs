//! Compares this machine's clock with the clocks of the servers.

use std::time::Duration;

use super::DoctorFinding;
use planck_common::server_clock::ServerClock;

/// The smallest difference in milliseconds that is reported as a note. From this difference on, the
/// times in the log may not be in the order of the events.
const NOTICED: u64 = 1_000;
/// The smallest difference in milliseconds that is reported as bad. From this difference on,
/// decisions that depend on wall-clock time go wrong. Leases, heartbeats and failure detection do
/// not depend on wall clocks.
const WRONG: u64 = 60_000;

const REMEDY: &str = "keep both machines' clocks by NTP: `timedatectl set-ntp true`, or install chrony; `chronyc tracking` tells how \
                      far off a clock is";

pub fn compared(name: &'static str, server: &str, clock: ServerClock) -> DoctorFinding {
    let ServerClock {
        ahead_ms,
        uncertainty_ms,
    } = clock;
    let (apart, unsure) = (shown(ahead_ms.unsigned_abs()), shown(uncertainty_ms));
    let side = if ahead_ms < 0 { "behind" } else { "ahead of" };
    let what = format!("{server} is {apart} {side} this machine, give or take {unsure}");
    match clock.difference_ms() {
        ..NOTICED => DoctorFinding::good(name, what),
        NOTICED..WRONG => DoctorFinding::note(
            name,
            format!("{what}: times in logs and `--since` are off by as much"),
            REMEDY,
        ),
        WRONG.. => DoctorFinding::bad(
            name,
            format!(
                "{what}: limits of turns that move to another node, the age at which sessions are removed, and the expiry of \
                 credentials and certificates go wrong"
            ),
            REMEDY,
        ),
    }
}

fn shown(millis: u64) -> String {
    match millis {
        ..10_000 => format!("{millis} ms"),
        _ => format!("{} s", Duration::from_millis(millis).as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::FindingState;

    #[test]
    fn clocks_differ_noticeably_from_a_second_and_are_wrong_from_a_minute() {
        for (ahead_ms, uncertainty_ms, state, said) in [
            (3, 1, FindingState::Good, "3 ms ahead of this machine"),
            (-999, 0, FindingState::Good, "999 ms behind"),
            // The server answered slowly, so the clocks may not differ at all.
            (1_900, 1_000, FindingState::Good, "give or take 1000 ms"),
            (1_000, 0, FindingState::Note, "1000 ms ahead of"),
            (-59_999, 0, FindingState::Note, "59 s behind"),
            (60_000, 0, FindingState::Bad, "60 s ahead of"),
            (-86_400_000, 5, FindingState::Bad, "86400 s behind"),
        ] {
            let read = ServerClock {
                ahead_ms,
                uncertainty_ms,
            };
            let found = compared("store clock", "Postgres", read);
            assert!(
                found.state == state && found.what.contains(said),
                "{found:?}"
            );
            assert_eq!(
                found.remedy.is_some(),
                state != FindingState::Good,
                "{found:?}"
            );
        }
    }
}
