//! Reads from the headers of an answer how long the provider asks the client to wait.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use time::{OffsetDateTime, PrimitiveDateTime, macros::format_description};

/// Reads `retry-after-ms`, or else `retry-after`, which holds seconds or an HTTP date.
pub fn retry_after(headers: &HeaderMap, now: OffsetDateTime) -> Option<Duration> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::trim)
    };
    let millis = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok());
    let seconds = |text: &str| text.parse::<f64>().ok();
    millis
        .and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok())
        .or_else(|| Duration::try_from_secs_f64(text(RETRY_AFTER.as_str()).and_then(seconds)?).ok())
        .or_else(|| until(text(RETRY_AFTER.as_str())?, now))
}

/// Returns the time until an HTTP date (IMF-fixdate), or zero if the date has passed.
fn until(date: &str, now: OffsetDateTime) -> Option<Duration> {
    let format = format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    let at = PrimitiveDateTime::parse(date, format).ok()?.assume_utc();
    Some(Duration::try_from(at - now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::{HeaderName, HeaderValue};
    use time::macros::datetime;

    #[test]
    fn every_form_of_the_header_is_read() {
        let now = datetime!(2026-11-22 03:00:00 UTC);
        for (headers, expected) in [
            (vec![("retry-after", "7")], Some(7_000)),
            (vec![("retry-after", "0.25")], Some(250)),
            (
                vec![("retry-after", "7"), ("retry-after-ms", "12.5")],
                Some(12),
            ),
            (
                vec![("retry-after", "Sun, 22 Nov 2026 03:00:05 GMT")],
                Some(5_000),
            ),
            (
                vec![("retry-after", "Sun, 22 Nov 2026 02:00:05 GMT")],
                Some(0),
            ),
            (vec![("retry-after", "soon")], None),
            (vec![("retry-after", "-3")], None),
            (vec![("retry-after", "NaN")], None),
            (vec![], None),
        ] {
            let map = headers
                .iter()
                .map(|(name, value)| {
                    (
                        HeaderName::from_static(name),
                        HeaderValue::from_static(value),
                    )
                })
                .collect();
            assert_eq!(
                retry_after(&map, now).map(|wait| wait.as_millis()),
                expected,
                "{headers:?}"
            );
        }
    }
}
