//! The random numbers of C++'s standard library, so that ours goes through the very sequences that the peers go through
//! (`ci/peers/patterns.h`): `std::mt19937` and `std::minstd_rand0` as the standard defines them, the distributions over them
//! as libstdc++ makes them.

/// `std::mt19937`.
pub(crate) struct Mt19937 {
    state: [u32; Self::WORDS],
    next: usize,
}

impl Mt19937 {
    const WORDS: usize = 624;
    const SHIFT: usize = 397;

    pub(crate) fn new(seed: u32) -> Self {
        let mut state = [seed; Self::WORDS];
        for index in 1..Self::WORDS {
            let before = state[index - 1];
            state[index] = 1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(index as u32);
        }
        Self { state, next: Self::WORDS }
    }

    pub(crate) fn next(&mut self) -> u32 {
        if self.next == Self::WORDS {
            self.twist();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn twist(&mut self) {
        for index in 0..Self::WORDS {
            let mixed =
                (self.state[index] & 0x8000_0000) | (self.state[(index + 1) % Self::WORDS] & 0x7fff_ffff);
            let odd = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[index] = self.state[(index + Self::SHIFT) % Self::WORDS] ^ (mixed >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// `std::generate_canonical<double, 32>`: from 0 to below 1.
    pub(crate) fn canonical(&mut self) -> f64 {
        f64::from(self.next()) / 4_294_967_296.0
    }
}

/// `std::minstd_rand0`, which is libstdc++'s `std::default_random_engine`, with the seed that it has by default.
pub(crate) struct MinStd(u64);

impl MinStd {
    const MODULUS: u64 = (1 << 31) - 1;
    /// What it gives beyond 1, its least, at most.
    const RANGE: u64 = Self::MODULUS - 2;

    pub(crate) fn new() -> Self {
        Self(1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0 * 16_807 % Self::MODULUS;
        self.0
    }

    /// `std::uniform_int_distribution<std::size_t>(low, high)`: with libstdc++, the same for every integer type.
    pub(crate) fn uniform(&mut self, low: u64, high: u64) -> u64 {
        low + self.below_or(high - low)
    }

    /// From 0 to `range`, both of them possible.
    fn below_or(&mut self, range: u64) -> u64 {
        if range == Self::RANGE {
            return self.next() - 1;
        }
        if range < Self::RANGE {
            let scale = Self::RANGE / (range + 1);
            let past = (range + 1) * scale;
            loop {
                let drawn = self.next() - 1;
                if drawn < past {
                    return drawn / scale;
                }
            }
        }
        // More than it gives at once: a high part, drawn in the same way, and a low one.
        let step = Self::RANGE + 1;
        loop {
            let high = step.wrapping_mul(self.below_or(range / step));
            let drawn = high.wrapping_add(self.next() - 1);
            if drawn <= range && drawn >= high {
                return drawn;
            }
        }
    }
}
