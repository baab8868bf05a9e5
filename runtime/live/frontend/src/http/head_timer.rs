//! The timer for request heads that arrive too slowly.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::time::sleep_until;

type Alarm = Pin<Box<tokio::time::Sleep>>;

/// The timer of one connection. hyper sets a timer for each head and cancels it when the head has arrived. Here the
/// connection keeps one alarm, which saves that work. If the alarm fires early, it waits for the remaining time.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadTimer(Arc<Mutex<Option<Alarm>>>);

impl HeadTimer {
    fn exchange(&self, alarm: Option<Alarm>) -> Option<Alarm> {
        std::mem::replace(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), alarm)
    }
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Wait { deadline: deadline.into(), alarm: self.exchange(None), timer: self.clone() })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// A wait for a request head.
struct Wait {
    deadline: tokio::time::Instant,
    alarm: Option<Alarm>,
    timer: HeadTimer,
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if alarm.deadline() > deadline {
            alarm.as_mut().reset(deadline);
        }
        ready!(alarm.as_mut().poll(context));
        if alarm.deadline() >= deadline {
            return Poll::Ready(());
        }
        alarm.as_mut().reset(deadline);
        alarm.as_mut().poll(context)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            self.timer.exchange(Some(alarm));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const MOMENT: Duration = Duration::from_millis(1);

    /// A kept alarm neither shortens a later, longer wait nor extends a shorter one.
    #[tokio::test]
    async fn an_alarm_that_is_kept_goes_off_at_the_time_of_the_last_wait() {
        let timer = HeadTimer::default();
        assert!(timeout(Duration::ZERO, timer.sleep(MOMENT)).await.is_err());
        assert!(timeout(20 * MOMENT, timer.sleep(HOUR)).await.is_err());
        timer.sleep(MOMENT).await;
        assert!(timeout(20 * MOMENT, timer.sleep(HOUR)).await.is_err());
    }
}
