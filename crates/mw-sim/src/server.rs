//! The tower service of a cluster, with faults.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::time::sleep;

use crate::answer::Answer;
use crate::cluster::{Cluster, Who};
use crate::fault::{Fate, RequestOutcome};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::watch::Watch;

/// Body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Lost>;

/// Error of a broken connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("connection refused")]
    Refused,
    #[error("connection reset by peer")]
    Broken,
}

/// An API server, for any number of clients. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Server {
    cluster: Cluster,
    /// Token for requests that have none.
    token: Option<Arc<str>>,
}

impl Server {
    pub(crate) fn new(cluster: Cluster, token: Option<&str>) -> Server {
        Server {
            cluster,
            token: token.map(Arc::from),
        }
    }
}

impl<B> tower::Service<http::Request<B>> for Server
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Lost;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Lost>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(|_| Lost::Broken)?.to_bytes();
            server.serve(parts, body).await
        })
    }
}

impl Server {
    async fn serve(
        self,
        parts: http::request::Parts,
        body: Bytes,
    ) -> Result<http::Response<Body>, Lost> {
        let path_and_query = parts
            .uri
            .path_and_query()
            .map_or_else(|| "/".to_owned(), ToString::to_string);
        let number = self.cluster.next_number();
        let request = match self.cluster.request(parts.method, path_and_query, body) {
            Ok(request) => request,
            Err(refusal) => return respond(Answer::refused(&refusal)),
        };
        let text = |name| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let token = bearer(&parts.headers).or(self.token.as_deref());
        let user = match self.cluster.state().who(token) {
            Who::Known(account) => Some(account.user.as_str().into()),
            Who::Anonymous => Some("system:anonymous".into()),
            Who::Unknown => None,
        };
        let (content_type, accept, user_agent) = (
            text(header::CONTENT_TYPE),
            text(header::ACCEPT),
            text(header::USER_AGENT),
        );
        let request = Request {
            number,
            user,
            content_type,
            accept,
            user_agent,
            ..request
        };
        let mut ending = Ending {
            cluster: &self.cluster,
            request: &request,
            is_told: false,
        };
        let answer = self.play(&request, token).await;
        ending.tell(match &answer {
            Ok(answer) => RequestOutcome::Answered {
                code: answer.code(),
            },
            Err(_) => RequestOutcome::Lost,
        });
        respond(answer?)
    }

    /// Handles a request with faults before and after it takes effect.
    async fn play(&self, request: &Request, token: Option<&str>) -> Result<Answer, Lost> {
        self.cluster.passable().await?;
        let fate = self
            .cluster
            .faults()
            .map_or(Fate::Answer, |faults| faults.fate(request));
        let behind = if let Fate::Stale { behind } = fate {
            behind
        } else {
            0
        };
        match fate {
            Fate::Delay(late) => {
                sleep(late).await;
                self.cluster.passable().await?;
            }
            Fate::LoseRequest => return Err(Lost::Broken),
            Fate::Refuse { code, retry_after } => {
                return Ok(Answer::refused(&Refusal::injected(code, retry_after)));
            }
            Fate::Hang => return std::future::pending().await,
            Fate::Answer | Fate::AnswerLate(_) | Fate::LoseAnswer | Fate::Stale { .. } => {}
        }
        // The account of the token may have changed during the delay.
        let who = self.cluster.state().who(token);
        let answer = match self.cluster.faults().filter(|_| !request.verb.writes()) {
            Some(faults) => {
                crate::lie::answer(&self.cluster, request, &who, behind, faults.lies(request))
            }
            None => self.cluster.perform(request, &who, behind),
        };
        match fate {
            Fate::AnswerLate(late) => sleep(late).await,
            Fate::LoseAnswer => return Err(Lost::Broken),
            _ => {}
        }
        self.cluster.passable().await?;
        Ok(answer)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
}

/// Reports the outcome of a request, even if the client stopped waiting.
struct Ending<'a> {
    cluster: &'a Cluster,
    request: &'a Request,
    is_told: bool,
}

impl Ending<'_> {
    fn tell(&mut self, outcome: RequestOutcome) {
        self.is_told = true;
        if let Some(observer) = self.cluster.observer() {
            observer.ended(self.request, &outcome);
        }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if !self.is_told {
            self.tell(RequestOutcome::GivenUp);
        }
    }
}

fn respond(answer: Answer) -> Result<http::Response<Body>, Lost> {
    let (code, retry_after) = match &answer {
        Answer::Whole {
            code, retry_after, ..
        } => (*code, *retry_after),
        Answer::Watch(_) => (200, None),
    };
    let body = match answer {
        Answer::Whole { body, .. } => Full::new(body)
            .map_err(|never: Infallible| match never {})
            .boxed_unsync(),
        Answer::Watch(watch) => {
            BodyExt::boxed_unsync(StreamBody::new(futures::stream::unfold(watch, next_frame)))
        }
    };
    let mut response = http::Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    if let Some(seconds) = retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    Ok(response)
}

async fn next_frame(mut watch: Box<Watch>) -> Option<(Result<Frame<Bytes>, Lost>, Box<Watch>)> {
    let line = watch.next().await?;
    Some((line.map(Frame::data), watch))
}
