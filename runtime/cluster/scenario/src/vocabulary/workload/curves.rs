//! Rates and numbers of users that change over time, as values of `rate` and `concurrency`.

use std::sync::Arc;

use rhai::{Array, Dynamic, Engine};
use vcr_base::units;
use vcr_cluster::{Curve, MAX_PIECES, Piece};

use crate::script::context::Context;
use crate::script::options::{Options, as_number, as_text, describe};
use crate::script::register::with_options;
use crate::vocabulary::workload::{elements, with_value};

pub(super) fn register(engine: &mut Engine, context: &Arc<Context>) {
    with_value(engine, "stages", |stages: &Array| read_stages(stages));
    with_options(engine, context, "spike", |_, mut options| {
        let base = level(&mut options, "base").unwrap_or(0.0);
        let peak = level(&mut options, "peak");
        let peak = options.required("peak", peak);
        let at_ns = required_ns(&mut options, "at");
        let for_ns = required_ns(&mut options, "lasts");
        let rise_ns = options.duration_ns("rise").unwrap_or(0);
        let total_ns = options.duration_ns("duration");
        let total_ns = options.required("duration", total_ns);
        let spike_ns = at_ns.saturating_add(for_ns).saturating_add(rise_ns.saturating_mul(2));
        if spike_ns > total_ns {
            options.problem("duration", "`duration` is over before the spike is");
        }
        options.finish()?;
        let ramp = |from, to| Piece { duration_ns: rise_ns, from, to };
        let rest_ns = total_ns - spike_ns;
        let pieces = vec![
            Piece::level(at_ns, base),
            ramp(base, peak),
            Piece::level(for_ns, peak),
            ramp(peak, base),
            Piece::level(rest_ns, base),
        ];
        Ok(Curve::once(pieces))
    });
    with_options(engine, context, "diurnal", |_, mut options| {
        let mean = level(&mut options, "mean");
        let mean = options.required("mean", mean);
        let amplitude = level(&mut options, "amplitude");
        let amplitude = options.required("amplitude", amplitude);
        let period_ns = options.duration_ns("period").unwrap_or(24 * 3600 * 1_000_000_000);
        if amplitude > mean {
            options.problem("amplitude", "`amplitude` must not exceed `mean`: nothing is below 0");
        }
        if period_ns == 0 {
            options.problem("period", "invalid `period`: expected above 0");
        }
        options.finish()?;
        Ok(Curve::diurnal(mean, amplitude, period_ns))
    });
    with_options(engine, context, "on_off", |_, mut options| {
        let on = level(&mut options, "on");
        let on = options.required("on", on);
        let off = level(&mut options, "off").unwrap_or(0.0);
        let on_ns = required_ns(&mut options, "on_for");
        let off_ns = required_ns(&mut options, "off_for");
        options.finish()?;
        Ok(Curve::repeated(vec![Piece::level(on_ns, on), Piece::level(off_ns, off)]))
    });
}

fn required_ns(options: &mut Options<'_>, name: &'static str) -> u64 {
    let ns = options.duration_ns(name);
    options.required(name, ns)
}

/// Reads a rate, or a number of users.
fn level(options: &mut Options<'_>, name: &'static str) -> Option<f64> {
    options.rate_per_s(name)
}

/// Reads k6's stages, such as `[["1m", 10], ["5m", 100]]`. The first stage begins at level 0.
fn read_stages(stages: &Array) -> Result<Curve, String> {
    if stages.is_empty() || stages.len() > MAX_PIECES {
        return Err(format!("expected 1 to {MAX_PIECES} stages such as [\"1m\", 10], found {}", stages.len()));
    }
    let stages = elements(stages, |stage| {
        let expected = || format!("expected a stage such as [\"1m\", 10], found {}", describe(stage));
        let pair = stage.clone().try_cast::<Array>().ok_or_else(expected)?;
        let [duration, target] = &pair[..] else { return Err(expected()) };
        let duration_ns = units::duration_ns(&as_text(duration).ok_or_else(expected)?).map_err(|e| e.to_string())?;
        Ok((duration_ns, level_of(target).ok_or_else(expected)?))
    })?;
    if let Some((_, target)) = stages.iter().find(|(_, target)| !(target.is_finite() && *target >= 0.0)) {
        return Err(format!("invalid target {target}: expected a number of at least 0"));
    }
    Ok(Curve::stages(0.0, &stages))
}

fn level_of(value: &Dynamic) -> Option<f64> {
    as_number(value).or_else(|| units::rate_per_s(&as_text(value)?).ok())
}
