//! How time passes in the tests of tasks: by itself, as soon as everybody waits.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tenure_clock::{Clock, ManualTime};

/// Turns that each task gets before time may pass.
const TURNS: usize = 20;

/// A world whose time moves from one sleeper to the next.
pub(crate) trait Pace {
    fn time(&self) -> &ManualTime;

    /// Lets time pass until the future is done.
    async fn until<F: Future>(&self, future: F) -> F::Output {
        let mut future = Box::pin(future);
        for _ in 0..100_000 {
            for _ in 0..TURNS {
                if let Some(output) = poll_once(&mut future).await {
                    return output;
                }
                tokio::task::yield_now().await;
            }
            self.time().advance_to_next().expect("everybody waits for something that never comes");
        }
        panic!("not done after 100,000 turns of the clock, {:?}", self.time().elapsed());
    }

    async fn pass(&self, duration: Duration) {
        let clock = self.time().clock();
        self.until(clock.sleep(duration)).await;
        // Whoever was due at that very moment has its turn.
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
    }

    /// How long it takes until the future is done.
    async fn timed<F: Future>(&self, future: F) -> (Duration, F::Output) {
        let begun = self.time().elapsed();
        let output = self.until(future).await;
        (self.time().elapsed() - begun, output)
    }
}

/// What the future came to, if it is done.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|cx| match Pin::new(&mut *future).poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
