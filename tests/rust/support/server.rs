//! Real servers, each on a free loopback port, ended with the test.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    pub fn redis() -> Self {
        Self::start("redis-server", |port| {
            let port = port.to_string();
            ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]
                .map(str::to_owned)
                .to_vec()
        })
    }

    pub fn memcached() -> Self {
        Self::start("memcached", |port| {
            let port = port.to_string();
            ["-l", "127.0.0.1", "-p", &port, "-U", "0", "-m", "16", "-u", "nobody"].map(str::to_owned).to_vec()
        })
    }

    fn start(program: &str, arguments: impl Fn(u16) -> Vec<String>) -> Self {
        // Another process may take the port between the look and the start: then there is another one.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let child = Command::new(program).args(arguments(port)).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let child = child.unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup --tests installs it"));
            let mut server = Self { child, port };
            if server.answers() {
                return server;
            }
        }
        panic!("{program} did not start");
    }

    fn answers(&mut self) -> bool {
        for _ in 0..500 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            pause(10);
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for real time to pass, where a real server's clock is what is tested.
#[expect(clippy::disallowed_methods, reason = "a real server has a real clock")]
pub fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}
