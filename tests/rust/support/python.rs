//! The seed in Python, on real servers.

use std::io::Write;
use std::process::{Command as Process, Stdio};

use serde_json::Value;

use super::server::Server;

pub struct Python {
    pub redis: Server,
    memcached: Server,
}

impl Python {
    pub fn new() -> Self {
        Self { redis: Server::redis(), memcached: Server::memcached() }
    }

    /// Runs the seed on the servers. `TOLLGATE_PYTHON` is a Python with both clients.
    pub fn run(&self, mut request: Value) -> Value {
        request["redis_port"] = self.redis.port.into();
        request["memcached_port"] = self.memcached.port.into();
        let python = std::env::var("TOLLGATE_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned());
        let mut child = Process::new(&python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/seed/seed.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{python}: {error}"));
        child.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{python} failed; scripts/setup --tests installs its packages");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}
