//! Compares a server's wall clock with this machine's.

use crate::Timestamp;

/// The difference between a server's wall clock and this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerClock {
    /// By how many milliseconds the server's clock is ahead; negative if it is behind.
    pub ahead_ms: i64,
    /// The maximum error of `ahead_ms`: half of the round trip, because it is unknown when between
    /// request and reply the server read its clock.
    pub uncertainty_ms: u64,
}

impl ServerClock {
    /// Computes the difference from one request. `server` is the time that the reply contains.
    /// `before` and `after` are this machine's times just before the request and just after the
    /// reply.
    pub fn read(before: Timestamp, server: Timestamp, after: Timestamp) -> Self {
        let uncertainty_ms = after.millis_since(before).div_ceil(2);
        let middle = before
            .millis()
            .saturating_add(i64::try_from(uncertainty_ms).unwrap_or(i64::MAX));
        Self {
            ahead_ms: server.millis().saturating_sub(middle),
            uncertainty_ms,
        }
    }

    /// Returns the minimum difference between the two clocks in milliseconds, given the uncertainty
    /// of the measurement.
    pub fn difference_ms(self) -> u64 {
        self.ahead_ms
            .unsigned_abs()
            .saturating_sub(self.uncertainty_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reply_is_not_taken_for_a_difference() {
        let at = Timestamp::from_millis;
        for (asked, told, answered, ahead, difference) in [
            (1_000, 1_005, 1_010, 0, 0),
            // The server read its clock at an unknown moment of these four seconds.
            (1_000, 4_900, 5_000, 1_900, 0),
            (1_000, 8_000, 1_100, 6_950, 6_900),
            (10_000, 4_000, 10_100, -6_050, 6_000),
            // This machine's clock was set back between request and reply.
            (10_000, 4_000, 3_000, -6_000, 6_000),
        ] {
            let clock = ServerClock::read(at(asked), at(told), at(answered));
            assert_eq!(
                (clock.ahead_ms, clock.difference_ms()),
                (ahead, difference),
                "{asked} {told} {answered}"
            );
        }
    }
}
