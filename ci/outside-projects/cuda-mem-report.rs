//! Draws the page of a snapshot that holds nothing.

fn main() -> Result<(), cuda_mem_report::Error> {
    let snapshot = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]u.";
    let page = cuda_mem_report::of_snapshot(snapshot, None, "nothing")?;
    assert!(page.contains("nothing"));
    println!("a page of {} bytes", page.len());
    Ok(())
}
