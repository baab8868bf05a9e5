/// A small random number generator: PCG-XSH-RR 64/32 (O'Neill, "PCG: a family of simple fast space-efficient
/// statistically good algorithms for random number generation", 2014).
///
/// It is implemented here, because the answers of guests depend on its numbers and no dependency's update may change
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: u64,
    increment: u64,
}

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

impl Rng {
    /// Stream `stream` of `seed`. Streams of one seed are independent: give each use of randomness its own stream.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = Self { state: 0, increment: (stream << 1) | 1 };
        rng.next_u32();
        rng.state = rng.state.wrapping_add(seed);
        rng.next_u32();
        rng
    }

    /// 32 uniform bits.
    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let xorshifted = (((old >> 18) ^ old) >> 27) as u32;
        xorshifted.rotate_right((old >> 59) as u32)
    }

    /// 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        let high = u64::from(self.next_u32());
        let low = u64::from(self.next_u32());
        (high << 32) | low
    }

    /// A uniform number in [0, 1), a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A uniform number in [`low`, `high`).
    pub fn uniform_in(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // The output of the reference implementation's pcg32-demo.
        let mut rng = Rng::new(42, 54);
        let expected = [0xa15c_02b7, 0x7b47_f409, 0xba1d_3330, 0x83d2_f293, 0xbfa4_784b, 0xcbed_606e];
        for value in expected {
            assert_eq!(rng.next_u32(), value);
        }
    }

    #[test]
    fn uniform_numbers_stay_in_their_range() {
        let mut rng = Rng::new(7, 0);
        let mut sum = 0.0;
        for _ in 0..10_000 {
            let value = rng.uniform_in(-1.0, 3.0);
            assert!((-1.0..3.0).contains(&value));
            sum += value;
        }
        let mean = sum / 10_000.0;
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn streams_of_one_seed_differ() {
        assert_ne!(Rng::new(1, 0).next_u64(), Rng::new(1, 1).next_u64());
        assert_ne!(Rng::new(1, 0).next_u64(), Rng::new(2, 0).next_u64());
    }
}
