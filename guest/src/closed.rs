//! Waiting until the network is closed, where an engine closes it only after the sandbox has begun.

use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than any answer takes within a cluster; a dropped packet never gets one.
const ANSWER: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(25);

/// Returns whether `open`, which answers for as long as nothing closes the network, stopped answering within `patience`.
pub fn wait(open: SocketAddr, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while TcpStream::connect_timeout(&open, ANSWER).is_ok() {
        if Instant::now() > until {
            return false;
        }
        sleep(PAUSE);
    }
    true
}
