//! A piecewise linear level over time: a rate of starts, or a number of users.

/// The maximum number of pieces of a curve.
pub const MAX_PIECES: usize = 100_000;

/// Number of linear pieces that approximate a period of a sine.
const DIURNAL_PIECES: u32 = 96;

const NS_PER_S: f64 = 1e9;

/// A linear piece of a [`Curve`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// The piece's duration; with 0 the level jumps.
    pub duration_ns: u64,
    /// The level at the piece's beginning.
    pub from: f64,
    /// The level at the piece's end.
    pub to: f64,
}

impl Piece {
    /// A piece with a constant level.
    #[must_use]
    pub fn level(duration_ns: u64, level: f64) -> Self {
        Self { duration_ns, from: level, to: level }
    }

    fn seconds(&self) -> f64 {
        self.duration_ns as f64 / NS_PER_S
    }

    fn area(&self) -> f64 {
        self.seconds() * (self.from + self.to) / 2.0
    }

    fn at(&self, offset_s: f64) -> f64 {
        if self.duration_ns == 0 { self.to } else { self.from + (self.to - self.from) * (offset_s / self.seconds()) }
    }
}

/// A level over time. Time 0 is the start of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pieces: Vec<Piece>,
    /// Whether the curve starts again at its end. Otherwise the level is 0 after the end.
    repeats: bool,
}

impl Curve {
    /// A curve of these pieces; the level is 0 after the last one.
    #[must_use]
    pub fn once(pieces: Vec<Piece>) -> Self {
        Self { pieces, repeats: false }
    }

    /// A curve that repeats these pieces forever.
    #[must_use]
    pub fn repeated(pieces: Vec<Piece>) -> Self {
        Self { pieces, repeats: true }
    }

    /// A constant level.
    #[must_use]
    pub fn constant(level: f64) -> Self {
        Self::repeated(vec![Piece::level(1_000_000_000, level)])
    }

    /// Stages as in k6: the level starts at `start` and changes linearly to each stage's target in turn.
    #[must_use]
    pub fn stages(start: f64, stages: &[(u64, f64)]) -> Self {
        let mut from = start;
        let piece = |&(duration_ns, to): &(u64, f64)| Piece { duration_ns, from: std::mem::replace(&mut from, to), to };
        Self::once(stages.iter().map(piece).collect())
    }

    /// A repeated cosine around `mean` with this amplitude. The level is lowest at the beginning of each period.
    #[must_use]
    pub fn diurnal(mean: f64, amplitude: f64, period_ns: u64) -> Self {
        let place = |piece: u32| (u128::from(period_ns) * u128::from(piece) / u128::from(DIURNAL_PIECES)) as u64;
        let level = |piece: u32| {
            let turn = f64::from(piece) / f64::from(DIURNAL_PIECES);
            mean - amplitude * libm::cos(std::f64::consts::TAU * turn)
        };
        let piece = |piece: u32| Piece {
            duration_ns: place(piece + 1) - place(piece),
            from: level(piece),
            to: level(piece + 1),
        };
        Self::repeated((0..DIURNAL_PIECES).map(piece).collect())
    }

    /// The pieces.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn pass_ns(&self) -> u64 {
        self.pieces.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.duration_ns))
    }

    /// The curve's duration; None if it repeats.
    #[must_use]
    pub fn duration_ns(&self) -> Option<u64> {
        (!self.repeats).then(|| self.pass_ns())
    }

    /// The highest level.
    #[must_use]
    pub fn peak(&self) -> f64 {
        self.pieces.iter().map(|piece| piece.from.max(piece.to)).fold(0.0, f64::max)
    }

    /// The area under the curve until `until_ns`. For a rate, this is the number of starts.
    #[must_use]
    pub fn area(&self, until_ns: u64) -> f64 {
        let pass_ns = self.pass_ns();
        let passes = if self.repeats && pass_ns > 0 { until_ns / pass_ns } else { 0 };
        let mut left_ns = until_ns - passes * pass_ns;
        let mut area = passes as f64 * self.pieces.iter().map(Piece::area).sum::<f64>();
        for piece in &self.pieces {
            let part_ns = left_ns.min(piece.duration_ns);
            let end = piece.at(part_ns as f64 / NS_PER_S);
            area += Piece { duration_ns: part_ns, from: piece.from, to: end }.area();
            left_ns -= part_ns;
        }
        area
    }

    /// The level at a time; at a jump, the level after it.
    #[must_use]
    pub fn level_at(&self, at_ns: u64) -> f64 {
        let pass_ns = self.pass_ns();
        let mut left_ns = if self.repeats && pass_ns > 0 { at_ns % pass_ns } else { at_ns };
        for piece in &self.pieces {
            if left_ns < piece.duration_ns {
                return piece.at(left_ns as f64 / NS_PER_S);
            }
            left_ns -= piece.duration_ns;
        }
        0.0
    }

    /// Reports every problem of the curve. `name` is the word for the level in messages.
    pub(super) fn check(&self, name: &str, problem: &mut dyn FnMut(&str)) {
        if self.pieces.len() > MAX_PIECES {
            problem(&format!("has {} stages; at most {MAX_PIECES} can be simulated", self.pieces.len()));
        }
        let is_level = |level: f64| level.is_finite() && level >= 0.0;
        if !self.pieces.iter().all(|piece| is_level(piece.from) && is_level(piece.to)) {
            problem(&format!("invalid {name}: expected finite numbers of at least 0"));
        } else if self.pieces.iter().map(Piece::area).sum::<f64>() <= 0.0 {
            problem(&format!("the {name} is 0 all the time; nothing would start"));
        }
    }
}

/// A position on a [`Curve`] that only moves forward.
#[derive(Clone, Debug, Default)]
pub(crate) struct CurveWalk {
    piece: usize,
    began_ns: u64,
    /// Seconds since the current piece began.
    offset_s: f64,
}

impl CurveWalk {
    fn next_piece(&mut self, curve: &Curve) -> bool {
        self.began_ns = self.began_ns.saturating_add(curve.pieces[self.piece].duration_ns);
        self.offset_s = 0.0;
        self.piece += 1;
        if self.piece == curve.pieces.len() && curve.repeats {
            self.piece = 0;
        }
        self.piece < curve.pieces.len()
    }

    fn now_ns(&self) -> u64 {
        self.began_ns.saturating_add((self.offset_s * NS_PER_S).round() as u64)
    }

    /// Advances until the passed area has grown by `area`. None if the curve ends before that.
    pub(crate) fn advance_by_area(&mut self, curve: &Curve, area: f64) -> Option<u64> {
        let mut needed = area;
        loop {
            let piece = curve.pieces.get(self.piece)?;
            let left_s = piece.seconds() - self.offset_s;
            let level = piece.at(self.offset_s);
            let left = left_s * (level + piece.to) / 2.0;
            // A start due at the very end counts, despite rounding.
            if left > 0.0 && needed <= left + 1e-9 {
                // The root of the quadratic equation, in the form that also works with slope 0.
                let slope = (piece.to - piece.from) / piece.seconds();
                let root = (level * level + 2.0 * slope * needed).max(0.0).sqrt();
                self.offset_s = (self.offset_s + 2.0 * needed / (level + root)).min(piece.seconds());
                return Some(self.now_ns());
            }
            needed -= left.max(0.0);
            if !self.next_piece(curve) {
                return None;
            }
        }
    }

    /// Advances to the time at which the level next rises to `reached + 1`. `reached` is the whole part of the
    /// level so far, and follows the level when it falls. None if there is no such time.
    pub(crate) fn advance_to_rise(&mut self, curve: &Curve, reached: &mut u64) -> Option<u64> {
        // A curve that repeats without rising would be walked forever.
        let mut pieces_left = 2 * curve.pieces.len() + 2;
        loop {
            let piece = curve.pieces.get(self.piece)?;
            let level = if self.offset_s == 0.0 { piece.from } else { piece.at(self.offset_s) };
            // A level that is reached exactly counts, despite rounding.
            let whole = |level: f64| (level + 1e-9).floor() as u64;
            *reached = (*reached).min(whole(level).max(whole(piece.to)));
            let next = *reached + 1;
            if self.offset_s == 0.0 && whole(piece.from) >= next {
                *reached = next;
                return Some(self.now_ns());
            }
            if whole(piece.to) >= next {
                let share = (next as f64 - piece.from) / (piece.to - piece.from);
                self.offset_s = (share.clamp(0.0, 1.0) * piece.seconds()).max(self.offset_s);
                *reached = next;
                return Some(self.now_ns());
            }
            *reached = (*reached).min(whole(piece.to));
            pieces_left -= 1;
            if pieces_left == 0 || !self.next_piece(curve) {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn starts(curve: &Curve, most: usize) -> Vec<u64> {
        let mut walk = CurveWalk::default();
        std::iter::from_fn(|| walk.advance_by_area(curve, 1.0)).take(most).collect()
    }

    #[test]
    fn a_ramp_starts_as_many_as_lie_below_it() {
        // The rate rises from 0 to 10 per second in 10 s: 50 starts, at decreasing distances.
        let ramp = Curve::stages(0.0, &[(10 * S, 10.0)]);
        let times = starts(&ramp, 1000);
        assert_eq!(times.len(), 50);
        assert_eq!((times[0], times[49]), (1_414_213_562, 10 * S));
        assert!(times.windows(3).all(|three| three[1] - three[0] > three[2] - three[1]));
        assert_eq!((ramp.area(10 * S), ramp.area(5 * S), ramp.duration_ns()), (50.0, 12.5, Some(10 * S)));
    }

    #[test]
    fn stages_jump_hold_and_come_to_nothing() {
        let stages = Curve::stages(0.0, &[(0, 4.0), (S, 4.0), (0, 0.0), (S, 0.0), (0, 1.0), (2 * S, 1.0)]);
        let quarter = S / 4;
        assert_eq!(starts(&stages, 100), [quarter, 2 * quarter, 3 * quarter, S, 3 * S, 4 * S]);
        assert_eq!((stages.level_at(S / 2), stages.level_at(S), stages.level_at(5 * S)), (4.0, 0.0, 0.0));
        let on_off = Curve::repeated(vec![Piece::level(S, 2.0), Piece::level(S, 0.0)]);
        assert_eq!(starts(&on_off, 4), [S / 2, S, 5 * S / 2, 3 * S]);
        assert_eq!((on_off.area(3 * S), on_off.duration_ns()), (4.0, None));
    }

    #[test]
    fn days_rise_and_fall_around_their_mean() {
        let day = Curve::diurnal(10.0, 8.0, 86_400 * S);
        assert!((day.level_at(0) - 2.0).abs() < 1e-9 && (day.level_at(43_200 * S) - 18.0).abs() < 1e-9);
        assert!((day.area(86_400 * S) - 864_000.0).abs() < 1e-3);
    }

    #[test]
    fn users_come_where_the_level_reaches_a_whole_number() {
        let rises = |curve: &Curve| {
            let (mut walk, mut reached) = (CurveWalk::default(), 0);
            std::iter::from_fn(|| walk.advance_to_rise(curve, &mut reached)).take(50).collect::<Vec<_>>()
        };
        let up_and_down = Curve::stages(1.0, &[(2 * S, 3.0), (2 * S, 1.0), (0, 3.0), (S, 3.0)]);
        assert_eq!(rises(&up_and_down), [0, S, 2 * S, 4 * S, 4 * S]);
        assert_eq!(rises(&Curve::constant(2.0)), [0, 0]);
        assert!(rises(&Curve::stages(0.0, &[(S, 0.5)])).is_empty());
    }

    #[test]
    fn levels_below_zero_and_curves_of_nothing_are_refused() {
        let problems = |curve: Curve| {
            let mut found = Vec::new();
            curve.check("rate", &mut |text| found.push(text.to_owned()));
            found
        };
        assert_eq!(problems(Curve::stages(0.0, &[(S, -1.0)])), ["invalid rate: expected finite numbers of at least 0"]);
        assert_eq!(problems(Curve::stages(0.0, &[(S, 0.0)])), ["the rate is 0 all the time; nothing would start"]);
        assert_eq!(problems(Curve::constant(1.0)), [""; 0]);
    }
}
