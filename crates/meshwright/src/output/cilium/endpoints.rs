//! Endpoint URLs of an APIExport, as `status` shows them in the provider's kcp workspace.

use mw_controller::cilium::Endpoints;
use mw_core::text::printable;
use serde::Serialize;

use crate::output::layout::{Cell, mean, rows, styled};

const ANSWERS: &str = "answers";
const DEGRADED: &str = "Degraded";

/// One URL, in JSON and YAML.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Endpoint {
    url: String,
    state: &'static str,
    /// Number of tenants behind it, if it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenants: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

pub(crate) fn report(endpoints: &Endpoints) -> Vec<Endpoint> {
    let told = endpoints.iter().map(|(url, tenants)| match tenants {
        Ok(tenants) => Endpoint {
            url: url.clone(),
            state: ANSWERS,
            tenants: Some(tenants.len()),
            message: None,
        },
        Err(failure) => {
            let message = format!(
                "{failure}; nothing was deleted, and its tenants get no updates until it answers"
            );
            Endpoint {
                url: url.clone(),
                state: DEGRADED,
                tenants: None,
                message: Some(message),
            }
        }
    });
    told.collect()
}

pub(crate) fn text(endpoints: &Endpoints) -> String {
    let title = styled("endpoints of the export", mean::title());
    if endpoints.is_empty() {
        return format!("{title}  none yet: no tenant is bound\n");
    }
    let head = ["url", "state", "tenants"]
        .map(|title| Cell::new(title, mean::faint()))
        .to_vec();
    let row = |endpoint: Endpoint| {
        let style = if endpoint.message.is_none() {
            mean::good()
        } else {
            mean::bad()
        };
        let tenants = endpoint
            .tenants
            .map_or_else(|| "?".to_owned(), |count| count.to_string());
        let mut cells = vec![
            Cell::plain(printable(&endpoint.url, 300)),
            Cell::new(endpoint.state, style),
            Cell::plain(tenants),
        ];
        cells.extend(
            endpoint
                .message
                .map(|message| Cell::plain(printable(&message, 1000))),
        );
        cells
    };
    let table: Vec<Vec<Cell>> = std::iter::once(head)
        .chain(report(endpoints).into_iter().map(row))
        .collect();
    format!("{title}\n{}", rows(&table, 2))
}
