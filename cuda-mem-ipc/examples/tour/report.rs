//! The table at the end.

use std::time::Duration;

use crate::job::{Outcome, Pinned, Rates};

pub(crate) fn print(outcome: &Outcome) {
    match &outcome.pinned {
        _ if outcome.bytes == 0 => println!("pinned    nothing: the file is empty"),
        Pinned::InPlace => println!("pinned    in place, {}", milliseconds(outcome.registration)),
        Pinned::Copied { reason } => {
            println!("pinned    by a copy, because the pages cannot be pinned in place: {reason}")
        }
    }
    println!();
    println!("{:<28} {:>14} {:>12} {:>12}", "host memory", "bytes", "H2D GB/s", "D2H GB/s");
    let first = match &outcome.pinned {
        Pinned::InPlace => "registered in place",
        Pinned::Copied { .. } => "copied to pinned memory",
    };
    for (name, rates) in [
        (first, outcome.registered),
        ("allocated pinned", outcome.allocated),
        ("pageable", outcome.pageable),
        ("pageable, staged", outcome.staged),
    ] {
        let Rates { to_device, to_host } = rates;
        let (to_device, to_host) = (rate(outcome.bytes, to_device), rate(outcome.bytes, to_host));
        println!("{name:<28} {:>14} {to_device:>12} {to_host:>12}", outcome.bytes);
    }
    println!();
    let up = ratio(outcome.pageable.to_device, outcome.staged.to_device);
    let down = ratio(outcome.pageable.to_host, outcome.staged.to_host);
    println!(
        "staged    {up} the rate of cuMemcpy to the device and {down} back, in the same pageable memory"
    );
    match &outcome.pool {
        Some(ready) => println!(
            "pool      {} of a pinned pool ready in {}, again after a free and a wait in {}",
            bytes(ready.bytes),
            milliseconds(ready.first),
            milliseconds(ready.again)
        ),
        None => println!("pool      this driver has no pools of host memory"),
    }
    println!("verified  {} bytes, each four times, all equal to the file", outcome.bytes);
}

/// GB/s with one decimal, in units of 10^9 bytes.
pub(crate) fn rate(bytes: usize, time: Duration) -> String {
    if bytes == 0 || time.is_zero() {
        return "-".to_owned();
    }
    format!("{:.1}", bytes as f64 / time.as_secs_f64() / 1e9)
}

/// How many times the rate of what took `slow` that of what took `fast` is.
fn ratio(slow: Duration, fast: Duration) -> String {
    if fast.is_zero() {
        return "-".to_owned();
    }
    format!("{:.1} times", slow.as_secs_f64() / fast.as_secs_f64())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

pub(crate) fn microseconds(time: Duration) -> String {
    format!("{:.1} us", time.as_secs_f64() * 1e6)
}

/// A size for people: 3.0 GiB.
pub(crate) fn bytes(bytes: usize) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{size:.1} {}", UNITS[unit]) }
}
