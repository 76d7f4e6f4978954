//! Forwarding of requests, and execution of faults.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, RETRY_AFTER, TRANSFER_ENCODING,
};
use hyper::{Request, Response};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::faults::{Action, Edit, Effect, Faults, Hook, Moment, ProxyOutcome};
use super::request::{Match, RequestInfo, Verb};
use crate::http::{HttpsClient, JSON};
use crate::serve::{BoxError, Handler, Served};

/// Headers that apply to one connection only and are not forwarded.
const HOP_BY_HOP: [HeaderName; 3] = [
    CONNECTION,
    TRANSFER_ENCODING,
    HeaderName::from_static("keep-alive"),
];

pub(super) struct Shared {
    pub(super) upstream: String,
    pub(super) client: HttpsClient<Incoming>,
    pub(super) faults: Arc<Faults>,
    pub(super) cuts: broadcast::Sender<Match>,
}

impl Handler for Shared {
    async fn handle(&self, request: Request<Incoming>) -> Option<Served> {
        handle(self, request).await
    }
}

/// Returns the answer, or `None` to close the connection.
async fn handle(shared: &Shared, request: Request<Incoming>) -> Option<Served> {
    let info = RequestInfo::of(request.method(), request.uri());
    let verdict = shared.faults.judge(&info);
    if !verdict.delay.is_zero() {
        tokio::time::sleep(verdict.delay).await;
    }
    let (answer, outcome) = match verdict.action {
        Action::Forward | Action::Fault(Effect::Delay(_)) => {
            match forward(shared, &info, request).await {
                Some(answer) => {
                    let outcome = ProxyOutcome::Code(answer.status().as_u16());
                    (Some(answer), outcome)
                }
                None => (None, ProxyOutcome::Dropped),
            }
        }
        Action::Fault(Effect::Edit(edit)) => match forward(shared, &info, request).await {
            Some(answer) => {
                let outcome = ProxyOutcome::Code(answer.status().as_u16());
                (edited(&info, answer, edit).await, outcome)
            }
            None => (None, ProxyOutcome::Dropped),
        },
        Action::Fault(Effect::Reply(reply)) => (
            json_answer(200, &reply.make(&info)),
            ProxyOutcome::Code(200),
        ),
        Action::Fault(Effect::Answer { code, retry_after }) => {
            (status(&info, code, retry_after), ProxyOutcome::Code(code))
        }
        Action::Fault(Effect::DropBefore) => (None, ProxyOutcome::Dropped),
        Action::Fault(Effect::DropAfter) => {
            take_effect(shared, &info, request).await;
            (None, ProxyOutcome::Dropped)
        }
        Action::Fault(Effect::Hang) => {
            shared.faults.record(&info, ProxyOutcome::Hung);
            return pending().await;
        }
        Action::Fire(moment, hook) => {
            fire(shared, &info, request, moment, hook).await;
            (None, ProxyOutcome::Dropped)
        }
    };
    shared.faults.record(&info, outcome);
    answer
}

async fn fire(
    shared: &Shared,
    info: &RequestInfo,
    request: Request<Incoming>,
    moment: Moment,
    hook: Hook,
) {
    if moment == Moment::After {
        take_effect(shared, info, request).await;
    }
    // The hook may wait for a process to end.
    let _ = tokio::task::spawn_blocking(hook).await;
}

/// Forwards a request, waits for the end of the answer and discards it.
async fn take_effect(shared: &Shared, info: &RequestInfo, request: Request<Incoming>) {
    if let Some(answer) = forward(shared, info, request).await
        && info.verb != Verb::Watch
    {
        let _ = answer.into_body().collect().await;
    }
}

/// Modifies an answer. Error answers are not modified.
async fn edited(info: &RequestInfo, answer: Served, edit: Edit) -> Option<Served> {
    if !answer.status().is_success() {
        return Some(answer);
    }
    if info.verb == Verb::Watch {
        return Some(answer.map(|body| {
            EditedEvents {
                body,
                pending: Vec::new(),
                edit,
            }
            .boxed_unsync()
        }));
    }
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.ok()?.to_bytes();
    json_answer(code, &edit.apply(serde_json::from_slice(&body).ok()?)?)
}

/// Body of a watch whose events are modified or omitted.
struct EditedEvents {
    body: UnsyncBoxBody<Bytes, BoxError>,
    pending: Vec<u8>,
    edit: Edit,
}

impl EditedEvents {
    /// Consumes data and returns the modified events that are complete.
    fn take(&mut self, data: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(data);
        let mut shown = Vec::new();
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let event = serde_json::from_slice(&line)
                .ok()
                .and_then(|event| self.edit.apply(event));
            shown.extend(
                event
                    .map(|event| format!("{event}\n").into_bytes())
                    .unwrap_or_default(),
            );
        }
        shown
    }
}

impl Body for EditedEvents {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let shown = self.take(&frame.into_data().unwrap_or_default());
                    if !shown.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(shown.into()))));
                    }
                }
                end => return Poll::Ready(end),
            }
        }
    }
}

/// Forwards a request; `None` if the API server cannot be reached, because its clients
/// would get no answer either.
async fn forward(
    shared: &Shared,
    info: &RequestInfo,
    request: Request<Incoming>,
) -> Option<Served> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut forwarded = Request::builder()
        .method(parts.method)
        .uri(format!("{}{path}", shared.upstream))
        .body(body)
        .ok()?;
    *forwarded.headers_mut() = end_to_end(parts.headers);
    forwarded.headers_mut().remove(HOST);
    let cut = (info.verb == Verb::Watch).then(|| cut(shared.cuts.subscribe(), info.clone()));
    let (mut parts, body) = shared.client.request(forwarded).await.ok()?.into_parts();
    parts.headers = end_to_end(parts.headers);
    parts.version = hyper::Version::default();
    let body = match cut {
        Some(cut) => Cuttable {
            body,
            cut: Box::pin(cut),
        }
        .boxed_unsync(),
        None => body.map_err(BoxError::from).boxed_unsync(),
    };
    Some(Response::from_parts(parts, body))
}

fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers
}

/// Returns when this watch is cut, or when a cut was missed.
async fn cut(mut cuts: broadcast::Receiver<Match>, info: RequestInfo) {
    loop {
        match cuts.recv().await {
            Ok(on) if !on.matches(&info) => {}
            Err(broadcast::error::RecvError::Closed) => return pending().await,
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
        }
    }
}

/// Body of a watch, which breaks off when the watch is cut.
struct Cuttable<F> {
    body: Incoming,
    cut: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Body for Cuttable<F> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err("cut".into())));
        }
        Pin::new(&mut self.body)
            .poll_frame(context)
            .map_err(BoxError::from)
    }
}

/// Returns a Kubernetes Status like the API server's.
fn status(info: &RequestInfo, code: u16, retry_after: Option<u32>) -> Option<Served> {
    let mut body = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": code, "reason": reason(code),
        "message": format!("injected for {:?} {} {}", info.verb, info.resource, info.name),
        "details": { "name": info.name, "kind": info.resource },
    });
    let mut answer = Response::builder().status(code).header(CONTENT_TYPE, JSON);
    if let Some(seconds) = retry_after {
        answer = answer.header(RETRY_AFTER, seconds);
        if let Some(details) = body
            .get_mut("details")
            .and_then(serde_json::Value::as_object_mut)
        {
            details.insert("retryAfterSeconds".into(), seconds.into());
        }
    }
    answer.body(whole(&body)).ok()
}

fn json_answer(code: u16, body: &Value) -> Option<Served> {
    Response::builder()
        .status(code)
        .header(CONTENT_TYPE, JSON)
        .body(whole(body))
        .ok()
}

fn whole(body: &Value) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::from(body.to_string())
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}
