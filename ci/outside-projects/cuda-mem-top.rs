//! Says who uses which GPU.

fn main() -> Result<(), cuda_mem_top::Error> {
    match cuda_mem_top::table() {
        Ok(table) => print!("{table}"),
        Err(error @ (cuda_mem_top::Error::NoDriver(_) | cuda_mem_top::Error::NoGpu)) => println!("{error}"),
        Err(error) => return Err(error),
    }
    Ok(())
}
