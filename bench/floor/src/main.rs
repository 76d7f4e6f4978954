//! The minimum that any operator has to do: reads a raw watch event, then sends
//! prepared requests and waits for the answers. Reads instructions and writes reports
//! as lines of JSON.

use std::collections::VecDeque;
use std::io::Write;
use std::time::Instant;

use bytes::Bytes;
use floor::{Dial, Instruction, Lines, Prepared, Report, Result, Server};
use http_body_util::Full;
use hyper::Request;
use tokio::io::{AsyncBufReadExt, BufReader, Stdin};
use tokio::task::JoinSet;

const GRPC: &str = "application/grpc";

struct Ready {
    server: Server,
    request: Request<Full<Bytes>>,
    dial: Option<(Server, Vec<Request<Full<Bytes>>>)>,
}

impl Ready {
    async fn send(self) -> Result<u16> {
        if let Some((server, calls)) = self.dial {
            let mut tasks = JoinSet::new();
            for call in calls {
                let server = server.clone();
                tasks.spawn(async move { server.send(call).await });
            }
            while let Some(done) = tasks.join_next().await {
                // A rejected call is answered without a message.
                let (code, message) = done.map_err(|error| error.to_string())??;
                if code != 200 || message.is_empty() {
                    return Err(format!("dial failed with {code}"));
                }
            }
        }
        Ok(self.server.send(self.request).await?.0)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    match obey().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(reason) => {
            _ = say(&Report::Failed { reason });
            std::process::ExitCode::FAILURE
        }
    }
}

async fn obey() -> Result<()> {
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let (mut servers, mut watch) = (Vec::new(), None);
    let mut armed: Option<Vec<Ready>> = None;
    loop {
        tokio::select! {
            biased;
            event = next(watch.as_mut()) => {
                event?;
                let received = Instant::now();
                if let Some(requests) = armed.take() {
                    say(&all_at_once(requests, received).await?)?;
                }
            }
            line = instruction(&mut input) => match line? {
                None => return Ok(()),
                Some(Instruction::Start { servers: addresses, watched, path, idly }) => {
                    servers = addresses.into_iter().map(|address| Server::new(address, "floor")).collect::<Result<_>>()?;
                    watch = Some(start(&servers, watched, &path).await?);
                    read_idly(&servers, idly.as_deref()).await?;
                    say(&Report::Ready)?;
                }
                Some(Instruction::React { requests }) => {
                    armed = Some(requests.into_iter().map(|request| prepare(&servers, request)).collect::<Result<_>>()?);
                    say(&Report::Ready)?;
                }
                Some(Instruction::Post { requests, each }) => {
                    let numbered = |request: Prepared| Ok((request.server, prepare(&servers, request)?));
                    let requests = requests.into_iter().map(numbered).collect::<Result<_>>()?;
                    say(&in_turn(&servers, requests, each).await?)?;
                }
            },
        }
    }
}

async fn next(watch: Option<&mut Lines>) -> Result<Vec<u8>> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn instruction(
    input: &mut tokio::io::Lines<BufReader<Stdin>>,
) -> Result<Option<Instruction>> {
    let line = input.next_line().await.map_err(|error| error.to_string())?;
    line.map(|line| serde_json::from_str(&line).map_err(|error| error.to_string()))
        .transpose()
}

/// Connects to all servers, so that measured requests do not have to, and starts the
/// watch.
async fn start(servers: &[Server], watched: usize, path: &str) -> Result<Lines> {
    for server in servers {
        server
            .send(server.prepare("GET", "/version", "application/json", String::new())?)
            .await?;
    }
    servers
        .get(watched)
        .ok_or("no such server")?
        .watch(path)
        .await
}

async fn read_idly(servers: &[Server], path: Option<&str>) -> Result<()> {
    for (server, path) in servers.iter().zip(path.into_iter().cycle()) {
        let mut lines = server.watch(path).await?;
        tokio::spawn(async move { while lines.next().await.is_ok() {} });
    }
    Ok(())
}

fn prepare(
    servers: &[Server],
    Prepared {
        server,
        method,
        path,
        content,
        body,
        dial,
    }: Prepared,
) -> Result<Ready> {
    let server = servers.get(server).ok_or("no such server")?;
    let dial = dial.map(
        |Dial {
             address,
             path,
             messages,
         }| {
            let server = Server::new(address, "floor")?;
            let calls = messages
                .into_iter()
                .map(|message| server.prepare("POST", &path, GRPC, message))
                .collect::<Result<_>>()?;
            Ok::<_, String>((server, calls))
        },
    );
    Ok(Ready {
        server: server.clone(),
        request: server.prepare(&method, &path, &content, body)?,
        dial: dial.transpose()?,
    })
}

async fn all_at_once(requests: Vec<Ready>, since: Instant) -> Result<Report> {
    let mut tasks = JoinSet::new();
    for request in requests {
        tasks.spawn(request.send());
    }
    collect(tasks, since).await
}

/// Sends requests from one queue per server, with at most `each` of them in flight.
async fn in_turn(servers: &[Server], requests: Vec<(usize, Ready)>, each: usize) -> Result<Report> {
    let since = Instant::now();
    let mut queues: Vec<VecDeque<Ready>> = servers.iter().map(|_| VecDeque::new()).collect();
    for (server, ready) in requests {
        queues
            .get_mut(server)
            .ok_or("no such server")?
            .push_back(ready);
    }
    let (mut answers, mut refused) = (0, 0);
    let mut tasks = JoinSet::new();
    let launch =
        |tasks: &mut JoinSet<Result<(usize, u16)>>, queues: &mut [VecDeque<Ready>], at: usize| {
            if let Some(request) = queues.get_mut(at).and_then(VecDeque::pop_front) {
                tasks.spawn(async move { Ok((at, request.send().await?)) });
            }
        };
    for _ in 0..each {
        (0..servers.len()).for_each(|at| launch(&mut tasks, &mut queues, at));
    }
    while let Some(done) = tasks.join_next().await {
        let (at, code) = done.map_err(|error| error.to_string())??;
        answers += 1;
        refused += usize::from(code >= 300);
        launch(&mut tasks, &mut queues, at);
    }
    Ok(Report::Done {
        micros: micros(since),
        answers,
        refused,
    })
}

async fn collect(mut tasks: JoinSet<Result<u16>>, since: Instant) -> Result<Report> {
    let (mut answers, mut refused) = (0, 0);
    while let Some(done) = tasks.join_next().await {
        let code = done.map_err(|error| error.to_string())??;
        answers += 1;
        refused += usize::from(code >= 300);
    }
    Ok(Report::Done {
        micros: micros(since),
        answers,
        refused,
    })
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn say(report: &Report) -> Result<()> {
    let line = serde_json::to_string(report).map_err(|error| error.to_string())?;
    writeln!(std::io::stdout(), "{line}").map_err(|error| error.to_string())
}
