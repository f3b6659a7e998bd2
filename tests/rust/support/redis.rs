//! A real Redis as a store: `MULTI`, the batch, `EXEC`.

use std::cell::RefCell;

use redis::{Connection, Value};
use tollgate::resp::Argv;
use tollgate::{Capabilities, Command, CommandError, Duration, Error, ErrorKind, Reply, Store};

pub struct RealRedis(RefCell<Connection>);

impl RealRedis {
    pub fn connect(port: u16) -> Self {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        Self(RefCell::new(client.get_connection().unwrap()))
    }

    /// Runs a batch as one transaction.
    pub fn transaction(&self, batch: &[Argv]) -> Vec<Reply> {
        let mut connection = self.0.borrow_mut();
        let mut packed = redis::cmd("MULTI").get_packed_command();
        for argv in batch {
            packed.extend(pack(argv));
        }
        packed.extend(redis::cmd("EXEC").get_packed_command());
        connection.send_packed_command(&packed).unwrap();
        for argv in batch.iter().map(Some).chain([None]) {
            let queued = connection.recv_response();
            let ok = matches!(&queued, Ok(Value::Okay)) || matches!(&queued, Ok(Value::SimpleString(_)));
            assert!(ok, "not queued: {queued:?} before {:?}", argv.map(show));
        }
        match connection.recv_response().unwrap() {
            Value::Array(replies) => replies.into_iter().map(reply).collect(),
            other => panic!("EXEC answered {other:?}"),
        }
    }
}

pub fn show(argv: &Argv) -> String {
    argv.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
}

fn pack(argv: &Argv) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    for word in argv {
        command.arg(word.as_slice());
    }
    command.get_packed_command()
}

fn reply(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(value) => Reply::Integer(value),
        Value::BulkString(bytes) => Reply::Bulk(bytes),
        Value::Array(values) => Reply::Array(values.into_iter().map(reply).collect()),
        Value::Okay => Reply::OK,
        Value::SimpleString(text) if text == "PONG" => Reply::Status("PONG"),
        Value::ServerError(error) => {
            let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
            Reply::Error(CommandError::new(text.trim_end()))
        }
        other => panic!("Redis answered {other:?}"),
    }
}

impl Store for RealRedis {
    async fn exec(&self, batch: &[Command]) -> Result<Vec<Reply>, Error> {
        let argv: Vec<Argv> = batch.iter().map(Command::to_argv).collect();
        if argv.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "an empty batch"));
        }
        Ok(self.transaction(&argv))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "Redis",
            atomic: true,
            durable: false,
            staleness: None,
            smallest_ttl: Duration::from_millis(1),
            fair_waiting: false,
        }
    }
}
