//! A stream of random numbers.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng as _;
use vcr_core::seed;

/// A random stream with a seed and a purpose.
///
/// Draws affect recorded fingerprints, so they must never change. The samplers use only `rand_pcg` and `libm`,
/// because logarithms of platforms differ in the last bit, and libraries may change their seeding or sampling between
/// releases.
#[derive(Clone, Debug)]
pub struct Stream(Pcg64Mcg);

/// Shape of the Weibull distribution whose standard deviation is `variation` times its mean; between 0.05 and 100.
#[must_use]
pub fn weibull_shape(variation: f64) -> f64 {
    let square = |shape: f64| {
        let log = libm::lgamma(1.0 + 2.0 / shape) - 2.0 * libm::lgamma(1.0 + 1.0 / shape);
        libm::expm1(log)
    };
    // The variation decreases with the shape.
    let (mut low, mut high) = (0.05, 100.0);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if square(middle) > variation * variation { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

impl Stream {
    /// The stream for `purpose` with the seed of a run, or of a part of it.
    #[must_use]
    pub fn new(seed: u64, purpose: &str) -> Self {
        let word = |index| u128::from(seed::derive(seed, purpose, index));
        Self(Pcg64Mcg::new(word(0) << 64 | word(1)))
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1u64 << 53) as f64;
        (self.0.next_u64() >> 11) as f64 * STEP
    }

    /// Uniform in (0, 1], so that the logarithm is finite.
    fn unit_above_zero(&mut self) -> f64 {
        1.0 - self.unit()
    }

    /// Exponential with mean 1, by inversion.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(self.unit_above_zero())
    }

    /// Standard normal, by Box and Muller. Drops the second value, so that every draw takes two numbers of the
    /// stream.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(self.unit_above_zero())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// Weibull with mean 1, by inversion. Shape 1 is exponential; smaller shapes spread more.
    pub fn weibull(&mut self, shape: f64) -> f64 {
        libm::pow(self.exponential(), 1.0 / shape) / libm::tgamma(1.0 + 1.0 / shape)
    }

    /// Gamma with scale 1, by Marsaglia and Tsang, "A simple method for
    /// generating gamma variables" (2000), with their boost for shapes below 1.
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = libm::pow(self.unit_above_zero(), 1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let root = 1.0 + c * x;
            if root <= 0.0 {
                continue;
            }
            let v = root * root * root;
            if libm::log(self.unit_above_zero()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weibull_shape_gives_the_variation_that_was_asked_for() {
        assert!((weibull_shape(1.0) - 1.0).abs() < 1e-9);
        for variation in [0.3, 2.0] {
            let shape = weibull_shape(variation);
            let mut stream = Stream::new(1, "test");
            let drawn: Vec<f64> = (0..400_000).map(|_| stream.weibull(shape)).collect();
            let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
            let variance = drawn.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
            assert!((mean - 1.0).abs() < 0.02 && (variance.sqrt() / variation - 1.0).abs() < 0.05, "{mean} {variance}");
        }
    }
}
