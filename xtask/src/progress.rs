//! One line that tells what is going on, for steps that take more than a moment.
//!
//! On a terminal the line updates in place; elsewhere there are plain lines, few enough for a CI
//! log: one when a step turns out to be slow, one every half minute, one at the end. All on stderr,
//! because stdout belongs to JSON.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const REDRAW_INTERVAL: Duration = Duration::from_millis(150);
/// A step shorter than this gets no line in a log before its last one.
const SLOW_AFTER: Duration = Duration::from_secs(2);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(30);
/// Fits the narrowest usual terminal, so that a redrawn line never wraps.
const LINE_CHARS_MAX: usize = 79;
const CLEAR_LINE: &str = "\r\x1b[2K";

/// A step under way; say how it ended with [`Step::done`].
pub(crate) struct Step {
    label: String,
    began: Instant,
    detail: Detail,
    stop: Sender<()>,
    ticker: Option<JoinHandle<()>>,
}

/// What the step is doing right now; cloned into the threads that read a child's output.
#[derive(Clone, Default)]
pub(crate) struct Detail(Arc<Mutex<String>>);

impl Step {
    pub(crate) fn begin(label: impl Into<String>) -> Step {
        let (label, began, detail) = (label.into(), Instant::now(), Detail::default());
        let (stop, stopped) = channel();
        let ticker = {
            let (label, detail) = (label.clone(), detail.clone());
            let terminal = stderr().is_terminal();
            thread::spawn(move || {
                let mut wait = if terminal { REDRAW_INTERVAL } else { SLOW_AFTER };
                while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                    let line = render(&label, began.elapsed(), &detail.get());
                    if terminal {
                        eprint!("{CLEAR_LINE}{line}");
                        // A progress line that cannot be shown is no reason to fail.
                        let _ = stderr().flush();
                    } else {
                        eprintln!("{line}");
                        wait = HEARTBEAT_INTERVAL;
                    }
                }
                if terminal {
                    eprint!("{CLEAR_LINE}");
                }
            })
        };
        Step { label, began, detail, stop, ticker: Some(ticker) }
    }

    pub(crate) fn detail(&self) -> Detail {
        self.detail.clone()
    }

    /// Ends the step with its last line: what came of it, and the seconds it took.
    pub(crate) fn done(mut self, outcome: &str) {
        let elapsed = self.began.elapsed();
        self.stop_ticker();
        eprintln!("{}: {outcome}, {:.1} s", self.label, elapsed.as_secs_f64());
    }

    fn stop_ticker(&mut self) {
        if let Some(ticker) = self.ticker.take() {
            // Both fail only if the ticker is gone already.
            let _ = self.stop.send(());
            let _ = ticker.join();
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.stop_ticker();
    }
}

impl Detail {
    pub(crate) fn set(&self, text: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text.trim().to_owned();
    }

    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn render(label: &str, elapsed: Duration, detail: &str) -> String {
    let mut line = format!("{label} … {} s", elapsed.as_secs());
    if !detail.is_empty() {
        line.push_str("  ");
        line.extend(detail.chars().filter(|c| !c.is_control()));
    }
    line.chars().take(LINE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_label_seconds_and_detail() {
        let line = render("clippy", Duration::from_millis(3_900), "Checking tenure-store");
        assert_eq!(line, "clippy … 3 s  Checking tenure-store");
    }

    #[test]
    fn a_line_never_wraps_or_moves_the_cursor() {
        let line = render("x", Duration::ZERO, &format!("\x1b[31m{}", "y".repeat(200)));
        assert_eq!(line.chars().count(), LINE_CHARS_MAX);
        assert!(!line.contains('\x1b'));
    }
}
