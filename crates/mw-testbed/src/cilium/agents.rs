//! Emulation of the agents' connections, since no agent runs: reads each remote's
//! configuration from the agents' volume and connects with it, up to the first key that
//! an agent reads.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use serde_json::Value;

use super::certificates::Files;
use super::range::Reader;
use super::volume::Contents;
use crate::error::{Error, Result};

/// Text by which Cilium distinguishes a configuration from a certificate.
const CONFIGURATION: &str = "endpoints:";

/// Returns the cluster-config of each remote, or the reason why it can't be read.
pub(super) async fn views(
    files: &Contents,
    resolve: &dyn Fn(&str) -> Option<Ipv4Addr>,
) -> BTreeMap<String, std::result::Result<String, String>> {
    let mut views = BTreeMap::new();
    for (remote, config) in files {
        let config = String::from_utf8_lossy(config);
        if config.contains(CONFIGURATION) {
            let view = view(remote, &config, files, resolve).await;
            views.insert(remote.clone(), view.map_err(|error| error.to_string()));
        }
    }
    views
}

async fn view(
    remote: &str,
    config: &str,
    files: &Contents,
    resolve: &dyn Fn(&str) -> Option<Ipv4Addr>,
) -> Result<String> {
    let wrong = |what: &str| Error::Object(format!("configuration of {remote}: {what}"));
    let config: Value =
        serde_saphyr::from_str(config).map_err(|error| wrong(&error.to_string()))?;
    let endpoint = config
        .pointer("/endpoints/0")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let (host, port) = endpoint
        .strip_prefix("https://")
        .and_then(|rest| rest.split_once(':'))
        .ok_or_else(|| wrong("no endpoint"))?;
    let port = port.parse().map_err(|_| wrong("no port"))?;
    let address = host
        .parse()
        .ok()
        .or_else(|| resolve(host))
        .ok_or_else(|| wrong(&format!("unknown host {host}")))?;
    let file = |field: &str| {
        let path = config
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default();
        let name = path
            .strip_prefix("/var/lib/cilium/clustermesh/")
            .unwrap_or_default();
        let bytes = files
            .get(name)
            .ok_or_else(|| wrong(&format!("{field} {path:?} does not exist")))?;
        Ok::<_, Error>(String::from_utf8_lossy(bytes).into_owned())
    };
    let client = Files {
        ca: file("trusted-ca-file")?,
        certificate: file("cert-file")?,
        key: file("key-file")?,
    };
    let key = format!("cilium/cluster-config/{remote}");
    let value = Reader::new(SocketAddrV4::new(address, port), host, &client)?
        .get(&key)
        .await?;
    value
        .map(|value| String::from_utf8_lossy(&value).into_owned())
        .ok_or_else(|| wrong(&format!("{host} has no {key}")))
}
