//! Means of repetitions and their confidence intervals.

/// The mean of samples and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mean {
    pub(crate) mean: f64,
    /// The 95 % confidence interval of the mean, by Student's t; none for one sample.
    pub(crate) interval: Option<[f64; 2]>,
}

impl Mean {
    /// None without samples.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        let count = samples.len() as f64;
        if samples.is_empty() {
            return None;
        }
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean) * (sample - mean)).sum();
        let interval = (samples.len() > 1).then(|| {
            let error = (squares / (count - 1.0) / count).sqrt();
            let width = student_t_975(samples.len() - 1) * error;
            [mean - width, mean + width]
        });
        Some(Self { mean, interval })
    }
}

/// The 97.5th percentile of Student's t. For few degrees of freedom it uses a table with four decimals, because the
/// expansion around the normal distribution is inaccurate there.
fn student_t_975(degrees_of_freedom: usize) -> f64 {
    const FEW: [f64; 5] = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706];
    if let Some(value) = FEW.get(degrees_of_freedom.saturating_sub(1)) {
        return *value;
    }
    let z = 1.959_964_f64;
    let n = degrees_of_freedom as f64;
    let [z3, z5, z7, z9] = [3, 5, 7, 9].map(|power| z.powi(power));
    let first = (z3 + z) / 4.0;
    let second = (5.0 * z5 + 16.0 * z3 + 3.0 * z) / 96.0;
    let third = (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / 384.0;
    let fourth = (79.0 * z9 + 776.0 * z7 + 1482.0 * z5 - 1920.0 * z3 - 945.0 * z) / 92_160.0;
    z + first / n + second / n.powi(2) + third / n.powi(3) + fourth / n.powi(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees_of_freedom, expected) in
            [(1, 12.7062), (5, 2.5706), (6, 2.4469), (9, 2.2622), (19, 2.0930), (100, 1.9840)]
        {
            let value = student_t_975(degrees_of_freedom);
            assert!((value - expected).abs() < 5e-4, "{degrees_of_freedom}: {value}");
        }
    }

    #[test]
    fn intervals_are_around_the_mean() {
        assert_eq!(Mean::of(&[]), None);
        assert_eq!(Mean::of(&[3.0]), Some(Mean { mean: 3.0, interval: None }));
        let known = Mean::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("samples");
        let [low, high] = known.interval.expect("several");
        // 2.7764 times the root of 2.5 / 5.
        assert!(
            (known.mean - 3.0).abs() < 1e-12
                && (high - 3.0 - 1.963_211).abs() < 1e-4
                && (low + high - 6.0).abs() < 1e-12
        );
    }
}
