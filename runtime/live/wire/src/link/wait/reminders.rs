//! When a long wait is reported.

use std::time::Duration;

/// Waited seconds after which reminders are due. After the last one, reminders repeat at intervals of its length.
const AFTER_S: [u64; 8] = [2, 5, 10, 30, 60, 120, 300, 600];

/// Schedules reports of a wait at growing intervals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reminders {
    said: usize,
}

impl Reminders {
    /// The waited time at which the next reminder is due.
    #[must_use]
    pub fn next(&self) -> Duration {
        let last = AFTER_S.len() - 1;
        let again = self.said.saturating_sub(last) as u64;
        Duration::from_secs(AFTER_S[self.said.min(last)] + again * AFTER_S[last])
    }

    /// The waited seconds to report, if a reminder is due. Missed reminders are not repeated.
    pub fn take(&mut self, waited: Duration) -> Option<u64> {
        let mut due_s = None;
        while self.next() <= waited {
            due_s = Some(self.next().as_secs());
            self.said += 1;
        }
        due_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_more_and_more_rarely() {
        let mut reminders = Reminders::default();
        let said: Vec<u64> = (0..3000).filter_map(|s| reminders.take(Duration::from_secs(s))).collect();
        assert_eq!(said, [2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 2400]);
        assert_eq!(Reminders::default().take(Duration::from_secs(70)), Some(60), "once for all that were missed");
    }
}
