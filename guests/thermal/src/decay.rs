/// `exp(-x)` for `x >= 0`, computed with `+ - * /` only.
///
/// `exp` in platform libraries may differ in the last bit; this function returns the same bits everywhere. It halves
/// the argument until it is small, evaluates a Padé approximant of order (3, 3), and squares the result back. The
/// relative error stays below 1e-11.
#[must_use]
pub fn decay(x: f64) -> f64 {
    // From here on the result is below 1e-17.
    if x >= 40.0 {
        return 0.0;
    }
    let mut small = x;
    let mut squarings = 0;
    while small > 0.03125 {
        small *= 0.5;
        squarings += 1;
    }
    let square = small * small;
    let even = 120.0 + 12.0 * square;
    let odd = 60.0 * small + square * small;
    let mut result = (even - odd) / (even + odd);
    for _ in 0..squarings {
        result *= result;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::decay;

    #[test]
    fn it_is_the_exponential() {
        for step in 0..4_000 {
            let x = f64::from(step) * 0.01;
            let exact = (-x).exp();
            assert!((decay(x) - exact).abs() <= 1e-11 * exact, "{x}");
        }
        assert_eq!(decay(0.0), 1.0);
        assert_eq!(decay(1e300), 0.0);
    }
}
