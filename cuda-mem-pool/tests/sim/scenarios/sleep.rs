//! Tags that sleep and wake.

use cuda_mem_core::copy::{memcpy_async, memset_async};
use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::caching::{Backup, CachingAllocator, CachingOptions, Restore, Tag};
use cuda_mem_pool::{Error, Result};

const MIB: usize = 1 << 20;

/// The bytes at an address, without the allocator.
fn bytes_at(stream: &Stream, address: u64, bytes: usize) -> Result<Vec<u8>> {
    let host = vec![0u8; bytes];
    let to = host.as_ptr().expose_provenance() as u64;
    // SAFETY: as many bytes on the host, which live until the wait is over.
    let copied = unsafe { memcpy_async(stream, to, address, bytes) };
    // Once more: what was queued may be running yet.
    stream.synchronize().or_else(|_| stream.synchronize())?;
    copied?;
    Ok(host)
}

/// What a tag has, in memory and in figures, whatever failed.
fn expect_figures(allocator: &CachingAllocator, tags: &[&Tag]) {
    let (statistics, states) = (allocator.statistics(), tags.iter().map(|tag| tag.state()));
    let (awake, asleep) = states
        .fold((0, 0), |(awake, asleep), state| (awake + state.awake_bytes, asleep + state.asleep_bytes));
    assert_eq!(statistics.asleep_bytes, asleep as u64, "asleep");
    // Nothing is allocated but in tags.
    assert_eq!(allocator.reserved_bytes(), awake, "reserved");
    let reserved = statistics.reserved_bytes;
    assert_eq!(reserved.all.current, awake as u64, "the statistics' reserved");
    assert_eq!(reserved.small_pool.current + reserved.large_pool.current, reserved.all.current);
}

/// Two tags sleep and wake. One call fails somewhere: it is tried again, and no byte is lost.
pub(super) fn cycle(context: &Context) -> Result<()> {
    let allocator = CachingAllocator::new(context, &CachingOptions::default())?;
    let stream = Stream::new(context)?;
    let tags = [allocator.tag("weights")?, allocator.tag("cache")?];
    let tags = [&tags[0], &tags[1]];
    let mut blocks = Vec::new();
    let mut work = || {
        for (tag, value) in tags.into_iter().zip(1u8..) {
            for bytes in [1000, MIB + 1000] {
                let scope = tag.enter()?;
                let block = allocator.allocate_by_address(bytes, &stream)?;
                blocks.push((block, bytes, value));
                drop(scope);
                // SAFETY: memory of this function, which nothing else uses.
                unsafe { memset_async(&stream, block, value, bytes) }?;
            }
        }
        stream.synchronize()?;
        round(&allocator, &tags, &stream, &blocks)
    };
    let result = work();
    let _ = context.synchronize();
    for (block, _, _) in blocks {
        // SAFETY: allocated above; what used it was waited for.
        unsafe { allocator.free_by_address(block) }?;
    }
    result
}

fn round(
    allocator: &CachingAllocator,
    tags: &[&Tag; 2],
    stream: &Stream,
    blocks: &[(u64, usize, u8)],
) -> Result<()> {
    expect_figures(allocator, tags);
    let keep = tags[1].keep(blocks[3].0, 1, "the test")?;
    let mut failed = None;
    // SAFETY: nothing is queued that uses the tags.
    let slept = unsafe { Tag::sleep(tags, Backup::Pinned) }.or_else(|error| {
        // Nothing has changed.
        assert!(tags.iter().all(|tag| !tag.state().is_asleep && tag.state().asleep_bytes == 0), "{error}");
        expect_figures(allocator, tags);
        failed = Some(error);
        // SAFETY: as above.
        unsafe { Tag::sleep(tags, Backup::Pinned) }
    })?;
    assert_eq!(slept.kept.len(), 1);
    assert!(tags.iter().all(|tag| tag.state().is_asleep));
    expect_figures(allocator, tags);
    if let [(_, error)] = &slept.refused[..] {
        // The rest sleeps, and the second time that goes too.
        failed = Some(error.clone());
    }
    // SAFETY: as above.
    let again = unsafe { Tag::sleep(tags, Backup::Pinned) };
    if let Err(error) = again {
        failed = Some(error);
    }
    drop(keep);
    expect_figures(allocator, tags);
    Tag::wake(tags, Restore::Backup).map(drop).or_else(|error| {
        assert!(tags.iter().all(|tag| tag.state().is_asleep), "{error}");
        expect_figures(allocator, tags);
        // Asleep again, as after a wake that failed.
        failed = Some(error);
        Tag::wake(tags, Restore::Backup).map(drop)
    })?;
    assert!(tags.iter().all(|tag| !tag.state().is_asleep && tag.state().asleep_bytes == 0));
    expect_figures(allocator, tags);
    for &(block, bytes, value) in blocks {
        let found = bytes_at(stream, block, bytes).or_else(|error| {
            failed = Some(error);
            bytes_at(stream, block, bytes)
        })?;
        assert!(found == vec![value; bytes], "block {block:#x} of {bytes} bytes lost some");
    }
    failed.map_or(Ok(()), Err::<(), Error>)
}
