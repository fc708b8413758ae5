//! What was logged, line by line, as the seed shows it.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Collects the lines of this thread while it lives.
pub(super) struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
}

impl Lines {
    pub(super) fn collect() -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let subscriber = tracing_subscriber::registry().with(Collector(lines.clone()));
        Self { lines, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// What was logged since the last time.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }

    #[track_caller]
    pub(super) fn are(&self, expected: &str) {
        let expected = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>();
        assert_eq!(self.take(), expected);
    }
}

struct Collector(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if !event.metadata().target().starts_with("tenure_leases::capacity") {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let level = event.metadata().level();
        self.0.lock().unwrap().push(format!("{level}  {}{}", line.message, line.fields));
    }
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            let separator = if self.fields.is_empty() { "  " } else { " " };
            write!(self.fields, "{separator}{}={value:?}", field.name()).unwrap();
        }
    }
}
