//! A server of ours that speaks Lambda's runtime API, as its documentation describes it: one event after another is
//! asked for, and answered or failed. Also used by the benchmark.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// What the function did with an event.
#[derive(Debug)]
pub(crate) enum Done {
    /// It answered.
    Answer(String),
    /// It failed.
    Error(String),
}

/// An event that waits to be asked for.
struct Waiting {
    id: String,
    event: String,
    deadline_ms: i64,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<VecDeque<Waiting>>,
    more: Condvar,
}

/// The server. Its threads end with the process.
pub(crate) struct RuntimeApi {
    pub(crate) address: SocketAddr,
    queue: Arc<Queue>,
    done: Receiver<Done>,
}

impl RuntimeApi {
    pub(crate) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let queue = Arc::new(Queue::default());
        let (sender, done) = channel();
        let shared = queue.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (queue, sender) = (shared.clone(), sender.clone());
                // A function that is killed hangs up.
                thread::spawn(move || drop(serve(client, &queue, &sender)));
            }
        });
        Ok(Self { address, queue, done })
    }

    pub(crate) fn send(&self, id: &str, event: impl ToString, deadline_ms: i64) {
        let waiting = Waiting { id: id.to_owned(), event: event.to_string(), deadline_ms };
        self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(waiting);
        self.queue.more.notify_one();
    }

    /// What became of the next event.
    pub(crate) fn done(&self) -> Done {
        self.done.recv_timeout(std::time::Duration::from_secs(60)).expect("an answer within a minute")
    }
}

fn serve(client: TcpStream, queue: &Queue, done: &Sender<Done>) -> io::Result<()> {
    let mut answers = client.try_clone()?;
    let mut requests = BufReader::new(client);
    loop {
        let mut first = String::new();
        if requests.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let (mut length, mut is_chunked) = (0, false);
        loop {
            let mut line = String::new();
            requests.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            is_chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let body = if is_chunked { chunks(&mut requests)? } else { exactly(&mut requests, length)? };
        let path = first.split_whitespace().nth(1).unwrap_or_default();
        if path.ends_with("/invocation/next") {
            let mut waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let next = loop {
                match waiting.pop_front() {
                    Some(next) => break next,
                    None => waiting = queue.more.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(waiting);
            let Waiting { id, event, deadline_ms } = next;
            write!(
                answers,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nLambda-Runtime-Aws-Request-Id: {id}\r\n\
                 Lambda-Runtime-Deadline-Ms: {deadline_ms}\r\nLambda-Runtime-Invoked-Function-Arn: \
                 arn:aws:lambda:us-east-1:123456789012:function:autoscaler\r\nContent-Length: {}\r\n\r\n{event}",
                event.len()
            )?;
            continue;
        }
        let told = match path.ends_with("/response") {
            true => Done::Answer(body),
            false => Done::Error(body),
        };
        // Nobody may be listening any more.
        let _ = done.send(told);
        write!(answers, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")?;
    }
}

fn exactly(requests: &mut BufReader<TcpStream>, length: usize) -> io::Result<String> {
    let mut body = vec![0; length];
    requests.read_exact(&mut body)?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn chunks(requests: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut body = String::new();
    loop {
        let mut size = String::new();
        requests.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        body += &exactly(requests, size)?;
        let mut end = String::new();
        requests.read_line(&mut end)?;
        if size == 0 {
            return Ok(body);
        }
    }
}
