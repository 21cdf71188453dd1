//! What the calls of a log would take, in microseconds.

/// The sum so far.
#[derive(Debug, Default)]
pub(super) struct Bill {
    microseconds: f64,
}

const MIB: f64 = 1_048_576.0;

impl Bill {
    pub(super) fn create(&mut self) {
        self.microseconds += 7.0;
    }

    pub(super) fn map(&mut self) {
        self.microseconds += 1.0;
    }

    pub(super) fn access(&mut self, handles: u64) {
        self.microseconds += 20.0 * float(handles);
    }

    pub(super) fn unmap(&mut self, handles: u64) {
        self.microseconds += 13.0 * float(handles);
    }

    pub(super) fn release(&mut self) {
        self.microseconds += 8.0;
    }

    /// 26 up to 20 MiB, 46 at 256 MiB, 95 at 1 GiB and from there on.
    pub(super) fn malloc(&mut self, bytes: u64) {
        let mib = float(bytes) / MIB;
        self.microseconds += match mib {
            ..20.0 => 26.0,
            20.0..256.0 => 26.0 + (mib - 20.0) / 236.0 * 20.0,
            256.0..1024.0 => 46.0 + (mib - 256.0) / 768.0 * 49.0,
            _ => 95.0,
        };
    }

    /// 22 up to 20 MiB, 236 at 1 GiB and from there on.
    pub(super) fn malloc_free(&mut self, bytes: u64) {
        let mib = float(bytes) / MIB;
        self.microseconds += (22.0 + (mib - 20.0) / 1004.0 * 214.0).clamp(22.0, 236.0);
    }

    pub(super) fn seconds(&self) -> f64 {
        self.microseconds / 1e6
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time that is modelled needs no last digit")]
fn float(number: u64) -> f64 {
    number as f64
}
