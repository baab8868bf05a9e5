//! How many requests were under way when each arrived, from their beginnings and ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::output::Timed;

/// The time that a request took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Nanoseconds on some clock.
    pub(crate) at_ns: i128,
    pub(crate) duration_ns: u64,
}

/// Enters the number of requests under way, each itself included. Those without a span get none.
pub(crate) fn count(requests: &mut [Timed], span: impl Fn(&Timed) -> Option<Span>) {
    let mut spans: Vec<(Span, usize)> =
        requests.iter().enumerate().filter_map(|(index, timed)| Some((span(timed)?, index))).collect();
    spans.sort_by_key(|(span, index)| (span.at_ns, *index));
    let mut ends_ns = BinaryHeap::new();
    for (Span { at_ns, duration_ns }, index) in spans {
        while ends_ns.peek().is_some_and(|Reverse(end_ns)| *end_ns <= at_ns) {
            ends_ns.pop();
        }
        ends_ns.push(Reverse(at_ns + i128::from(duration_ns)));
        requests[index].record.concurrency = u32::try_from(ends_ns.len()).ok();
    }
}

#[cfg(test)]
mod tests {
    use vcr_trace::capture::RequestRecord;

    use super::*;

    #[test]
    fn requests_under_way_are_counted_at_each_arrival() {
        let spans = [(0, 10), (5, 10), (10, 1), (12, 50), (3, 1)];
        let mut requests: Vec<Timed> = spans
            .iter()
            .map(|(at_ns, end_ns)| Timed {
                at_ns: Some(*at_ns),
                record: RequestRecord { end_ns: Some(*end_ns), ..RequestRecord::default() },
            })
            .collect();
        requests.push(Timed { at_ns: None, record: RequestRecord::default() });
        count(&mut requests, |timed| Some(Span { at_ns: timed.at_ns?, duration_ns: timed.record.end_ns? }));
        let counted: Vec<_> = requests.iter().map(|timed| timed.record.concurrency).collect();
        assert_eq!(counted, [Some(1), Some(2), Some(2), Some(2), Some(2), None]);
    }
}
