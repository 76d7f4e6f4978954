//! Time from the start of the process until it is ready.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use tokio::time::sleep;

use crate::fleet::Fleet;
use crate::options::Options;
use crate::programs::Operator;
use crate::stats::{median, range};
use crate::table::Table;

const STARTS: usize = 10;
const BETWEEN: Duration = Duration::from_millis(1);

pub(crate) async fn measure(fleet: &Fleet, options: &Options, table: &mut Table) {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        // Unlikely to be taken by another process before the operator binds it.
        let health = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut command = options.command.clone();
        // The last argument is the value of --health-probe-bind-address.
        *command.last_mut().unwrap() = health.to_string();
        let operator = Operator::start(fleet, &command);
        while !is_ready(health) {
            sleep(BETWEEN).await;
        }
        times.push(operator.started.elapsed().as_secs_f64() * 1e3);
        operator.stop().await;
    }
    table.note(
        "start to ready",
        &format!("{:.1} ms", median(&times)),
        &range(&times),
    );
}

fn is_ready(health: SocketAddr) -> bool {
    let asked = TcpStream::connect(health).and_then(|mut stream| {
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    match asked {
        Ok(answer) => answer.starts_with("HTTP/1.0 200"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
            false
        }
    }
}
