//! Recordings as other viewers read them: a trace of Perfetto, and folded stacks.

use std::io::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::history::{Block, NEVER};
use super::space::Space;
use super::stacks::Stacks;

/// Points of a counter, and allocations with a track of their own.
const MAX_POINTS: usize = 50_000;
const MAX_SLICES: usize = 20_000;

/// Writes counters, failed allocations, annotations and the largest allocations, in Perfetto's JSON. Where the recording has no times, an event takes a microsecond.
pub(super) fn perfetto(spaces: &[Space], stacks: &Stacks, out: &mut dyn Write) -> Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut first = true;
    let mut put = |event: Value| -> Result<()> {
        write!(out, "{}{event}", if std::mem::take(&mut first) { "\n" } else { ",\n" })?;
        Ok(())
    };
    for (process, space) in (1..).zip(spaces) {
        put(json!({ "ph": "M", "pid": process, "name": "process_name", "args": { "name": space.name } }))?;
        let curves = &space.curves;
        let step = curves.live.len().div_ceil(MAX_POINTS).max(1);
        for from in (0..curves.live.len()).step_by(step) {
            let highest = |curve: &[u64]| curve.iter().skip(from).take(step).max().copied().unwrap_or(0);
            let time = space.time(u32::try_from(from)?.saturating_mul(curves.step));
            let mut bytes = json!({ "live": highest(&curves.live), "pending": highest(&curves.pending) });
            put(json!({ "ph": "C", "pid": process, "ts": time, "name": "in use (bytes)", "args": bytes }))?;
            if !curves.reserved.is_empty() {
                bytes = json!({ "reserved": highest(&curves.reserved) });
                put(
                    json!({ "ph": "C", "pid": process, "ts": time, "name": "reserved (bytes)", "args": bytes }),
                )?;
            }
        }
        for event in &space.out_of_memory {
            let args = json!({ "requested": event.requested, "free": event.free, "stack": text(event.stack, stacks) });
            let time = space.time(event.moment);
            put(
                json!({ "ph": "i", "s": "p", "pid": process, "tid": 0, "ts": time, "name": "out of memory", "args": args }),
            )?;
        }
        for (name, from, to) in &space.annotations {
            let (from, to) = (space.time(*from), space.time(*to));
            put(json!({ "ph": "X", "pid": process, "tid": 1, "ts": from, "dur": to - from, "name": name }))?;
        }
        let mut largest: Vec<&Block> = space.blocks.iter().collect();
        largest.sort_by_key(|block| std::cmp::Reverse(block.size));
        for (id, block) in largest.into_iter().take(MAX_SLICES).enumerate() {
            let frames = text(block.stack, stacks);
            let name = frames.first().cloned().unwrap_or_else(|| "an allocation".to_owned());
            let id = format!("{process}.{id}");
            let end = if block.freed == NEVER { curves.events } else { block.freed };
            let args = json!({ "bytes": block.size, "stream": block.stream, "address": block.address, "stack": frames });
            let (from, to) = (space.time(block.allocated), space.time(end));
            put(
                json!({ "ph": "b", "cat": "block", "id": id, "pid": process, "tid": 2, "ts": from, "name": name, "args": args }),
            )?;
            put(
                json!({ "ph": "e", "cat": "block", "id": id, "pid": process, "tid": 2, "ts": to, "name": name }),
            )?;
        }
    }
    writeln!(out, "\n]}}")?;
    Ok(())
}

/// The frames of a stack as lines, the innermost first.
fn text(stack: Option<u32>, stacks: &Stacks) -> Vec<String> {
    let frames = stack.map_or(&[][..], |stack| stacks.frames_of(stack));
    frames.iter().filter_map(|place| stacks.frame(*place)).map(super::stacks::Frame::text).collect()
}

/// Writes a line for each stack that holds something at its space's peak: frames, the outermost first, and bytes.
pub(super) fn folded(spaces: &[Space], stacks: &Stacks, out: &mut dyn Write) -> Result<()> {
    for space in spaces {
        let held = space.held(space.curves.peak_active.1);
        let mut list: Vec<_> = held.into_iter().collect();
        list.sort_unstable_by_key(|(stack, (bytes, _))| (std::cmp::Reverse(*bytes), *stack));
        for (stack, (bytes, _)) in list {
            write!(out, "{}", clean(&space.name))?;
            let frames = text(stack, stacks);
            if frames.is_empty() {
                write!(out, ";stack not recorded")?;
            }
            for frame in frames.iter().rev() {
                write!(out, ";{}", clean(frame))?;
            }
            writeln!(out, " {bytes}")?;
        }
    }
    Ok(())
}

/// Without what separates frames and lines.
fn clean(text: &str) -> String {
    text.replace(';', ":").replace(['\n', '\r'], " ")
}
