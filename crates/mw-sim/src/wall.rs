//! Injected wall clock, and the timestamp format of API servers. Used only for
//! creationTimestamp, deletionTimestamp, managedFields and the conditions of
//! definitions; all waiting uses tokio's clock.

use std::fmt;
use std::sync::Arc;

/// Time since 1970, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment {
    pub seconds: i64,
    pub nanos: u32,
}

/// Source of the current time.
#[derive(Clone)]
pub struct Wall(Arc<dyn Fn() -> Moment + Send + Sync>);

impl Wall {
    pub fn new(now: impl Fn() -> Moment + Send + Sync + 'static) -> Wall {
        Wall(Arc::new(now))
    }

    /// Returns a clock that always shows the same time.
    pub fn fixed(seconds: i64) -> Wall {
        Wall::new(move || Moment { seconds, nanos: 0 })
    }

    /// Returns the time as in `creationTimestamp`, in whole seconds.
    pub(crate) fn stamp(&self) -> String {
        (self.0)().to_string()
    }
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wall({})", (self.0)())
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (
            self.seconds.div_euclid(86_400),
            self.seconds.rem_euclid(86_400),
        );
        let (year, month, day) = civil(days);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

/// Returns year, month and day of a day since 1970, in the Gregorian calendar. Years
/// are counted from March, so that the leap day is the last day of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Reports whether a text is a time in RFC 3339. The simulator keeps it as written,
/// while a real server converts it to UTC.
pub(crate) fn is_rfc3339(text: &str) -> bool {
    let Some((date, rest)) = text.split_once(['T', 't']) else {
        return false;
    };
    let digits = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let number = |text: &str| text.parse::<u32>().unwrap_or(u32::MAX);
    let date: Vec<&str> = date.split('-').collect();
    let &[year, month, day] = date.as_slice() else {
        return false;
    };
    let Some(zone) = rest.find(['Z', 'z', '+', '-']) else {
        return false;
    };
    let (time, zone) = rest.split_at(zone);
    let (time, fraction) = time
        .split_once('.')
        .map_or((time, None), |(time, fraction)| (time, Some(fraction)));
    let time: Vec<&str> = time.split(':').collect();
    let &[hour, minute, second] = time.as_slice() else {
        return false;
    };
    let zone_fits = match zone.strip_prefix(['+', '-']) {
        Some(offset) => offset.split_once(':').is_some_and(|(hours, minutes)| {
            digits(hours, 2) && digits(minutes, 2) && number(hours) < 24 && number(minutes) < 60
        }),
        None => zone.eq_ignore_ascii_case("z"),
    };
    digits(year, 4)
        && [month, day, hour, minute, second]
            .iter()
            .all(|part| digits(part, 2))
        && (1..=12).contains(&number(month))
        && (1..=days_of(number(year), number(month))).contains(&number(day))
        && (number(hour), number(minute), number(second)) <= (23, 59, 59)
        && number(minute) < 60
        && number(second) < 60
        && fraction.is_none_or(|fraction| {
            !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit())
        })
        && zone_fits
}

fn days_of(year: u32, month: u32) -> u32 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_servers_do() {
        let written = |seconds| Moment { seconds, nanos: 0 }.to_string();
        assert_eq!(written(0), "1970-01-01T00:00:00Z");
        assert_eq!(written(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(written(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(written(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn times_are_told_from_other_texts() {
        for right in [
            "2026-01-01T00:00:00Z",
            "2024-02-29T23:59:59.123456Z",
            "2026-01-01T00:00:00+02:00",
        ] {
            assert!(is_rfc3339(right), "{right}");
        }
        for wrong in [
            "",
            "yesterday",
            "2026-01-01",
            "2026-02-29T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
        ] {
            assert!(!is_rfc3339(wrong), "{wrong}");
        }
    }
}
