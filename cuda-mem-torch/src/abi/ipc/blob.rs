//! What a block is told to other processes as: PyTorch 2.11's format, and one more.
//!
//! A byte for the version, 2, and one for what follows. `c`: a legacy handle of 64 bytes. `e`: pieces of one size, which PyTorch maps
//! one behind the other: the process, 4 bytes of nothing, the size of a piece, their number, and a descriptor for each. `m` is
//! ours: the same for pieces of different sizes, which PyTorch's format cannot say.

use super::super::error::{CUDA_MEM_TORCH_UNSUPPORTED, Failure};

pub(super) const VERSION: u8 = 2;
const PIECES: u8 = b'e';
const MIXED: u8 = b'm';
/// More than a process has descriptors.
const MOST: u64 = 1 << 20;

/// Memory of another process: a descriptor and its bytes for each piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) process: i32,
    pub(super) pieces: Vec<(u64, i32)>,
}

impl Blob {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let size = self.pieces.first().map_or(0, |(bytes, _)| *bytes);
        let uniform = self.pieces.iter().all(|(bytes, _)| *bytes == size);
        let mut out = vec![VERSION, if uniform { PIECES } else { MIXED }];
        out.extend(self.process.to_ne_bytes());
        out.extend([0; 4]);
        out.extend(if uniform { size } else { 0 }.to_ne_bytes());
        out.extend((self.pieces.len() as u64).to_ne_bytes());
        for (bytes, descriptor) in &self.pieces {
            if !uniform {
                out.extend(bytes.to_ne_bytes());
            }
            out.extend(descriptor.to_ne_bytes());
        }
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        let mut left = Reader(bytes);
        let [version, kind] = left.take()?;
        if version > VERSION {
            return Err(Failure::new(
                CUDA_MEM_TORCH_UNSUPPORTED,
                format!("the handle is of version {version}; this library knows up to {VERSION}"),
            ));
        }
        if version != VERSION || !matches!(kind, PIECES | MIXED) {
            return Err(Failure::new(
                CUDA_MEM_TORCH_UNSUPPORTED,
                format!(
                    "the handle is of version {version} and kind {kind}; here are opened 2 with 'e' and 'm'"
                ),
            ));
        }
        let process = i32::from_ne_bytes(left.take()?);
        let _: [u8; 4] = left.take()?;
        let size = u64::from_ne_bytes(left.take()?);
        let count = u64::from_ne_bytes(left.take()?);
        if process <= 0 || count == 0 || count > MOST {
            return Err(Failure::argument(format!("the handle names process {process} and {count} pieces")));
        }
        let mut pieces = Vec::new();
        for _ in 0..count {
            let bytes = if kind == MIXED { u64::from_ne_bytes(left.take()?) } else { size };
            pieces.push((bytes, i32::from_ne_bytes(left.take()?)));
        }
        if !left.0.is_empty() || pieces.iter().any(|(bytes, descriptor)| *bytes == 0 || *descriptor < 0) {
            return Err(Failure::argument("the handle is not whole: its pieces do not fit its length"));
        }
        Ok(Self { process, pieces })
    }
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        let Some((taken, left)) = self.0.split_first_chunk() else {
            return Err(Failure::argument("the handle is not whole: it ends too early"));
        };
        self.0 = left;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_one_size_are_as_pytorch_writes_them() {
        let blob = Blob { process: 0x0102_0304, pieces: vec![(20 << 20, 7), (20 << 20, 9)] };
        let bytes = blob.to_bytes();
        assert_eq!(bytes.len(), 2 + 24 + 2 * 4);
        assert_eq!(bytes[..10], [2, b'e', 4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(bytes[10..18], (20u64 << 20).to_ne_bytes());
        assert_eq!(bytes[26..30], 7i32.to_ne_bytes());
        assert_eq!(Blob::parse(&bytes).ok(), Some(blob));
    }

    #[test]
    fn pieces_of_other_sizes_come_back() {
        let blob = Blob { process: 9, pieces: vec![(2 << 20, 7), (6 << 20, 9)] };
        let bytes = blob.to_bytes();
        assert_eq!(bytes[1], b'm');
        assert_eq!(Blob::parse(&bytes).ok(), Some(blob));
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let bytes = Blob { process: 9, pieces: vec![(2 << 20, 7)] }.to_bytes();
        for end in 0..bytes.len() {
            assert!(Blob::parse(&bytes[..end]).is_err(), "{end}");
        }
        assert!(Blob::parse(&[bytes.clone(), vec![0]].concat()).is_err());
        let newer = [&[3], &bytes[1..]].concat();
        assert!(Blob::parse(&newer).unwrap_err().message.contains("version 3"));
    }
}
