//! Connections to clusters: source of the credentials, client, watches.

mod coarse;
pub mod follow;
mod in_memory_connect;
mod items;
mod link;
pub mod list;
mod memory;
mod secret;
mod trial;

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use mw_core::names::ClusterId;

use crate::kubeconfig::{Access, Allowed, Refusal, config, unusable};
use crate::metrics::Metrics;
use crate::permit::Permit;
use crate::transport::{Rules, Timeouts, member_client};

pub use coarse::Coarse;
pub use in_memory_connect::InMemoryConnect;
pub use items::LARGEST_OBJECT;
pub use link::{ClusterLink, Credentials, Feed, Feeds, Live};
pub(crate) use memory::footprint;
pub use memory::{Footprint, MEMORY_LIMIT, MemoryBudget};
pub use secret::{OPERATOR_KEYS, PROVIDER_KEYS, Unusable, kubeconfig_in, kubeconfig_of};
pub use trial::{Attempt, ShownClient, Trial, Verdict};

/// Source of a cluster's credentials. Two Secrets may point to the same cluster;
/// that is detected later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The cluster in which the operator runs.
    Hub,
    Secret {
        namespace: String,
        name: String,
        key: Option<String>,
    },
}

pub const HUB: &str = "local";

impl Source {
    pub fn id(&self) -> ClusterId {
        ClusterId::from(self.to_string().as_str())
    }

    /// Returns the namespace of the Secret; None for the hub.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Source::Hub => None,
            Source::Secret { namespace, .. } => Some(namespace),
        }
    }

    /// Returns the name of the Secret without its key.
    fn object(&self) -> String {
        match self {
            Source::Hub => HUB.to_owned(),
            Source::Secret {
                namespace, name, ..
            } => format!("{namespace}/{name}"),
        }
    }
}

/// Returns the Secret of a cluster's credentials, with its key if it names one; None
/// for the hub.
pub fn secret_of(cluster: &ClusterId) -> Option<&str> {
    Some(cluster.as_str()).filter(|id| id.contains('/'))
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Hub => f.write_str(HUB),
            Source::Secret {
                namespace,
                name,
                key: None,
            } => write!(f, "{namespace}/{name}"),
            Source::Secret {
                namespace,
                name,
                key: Some(key),
            } => write!(f, "{namespace}/{name}/{key}"),
        }
    }
}

/// Makes a client from a validated kubeconfig. The only place where that happens;
/// a simulation replaces it.
pub trait Connect: Send + Sync {
    fn connect(
        &self,
        cluster: &ClusterId,
        access: Arc<Access>,
    ) -> BoxFuture<'static, Result<Client, Refusal>>;
}

/// Connects over the network.
#[derive(Debug, Clone)]
pub struct Network {
    pub allowed: Allowed,
    pub timeouts: Timeouts,
    pub permit: Permit,
    pub metrics: Metrics,
}

impl Connect for Network {
    fn connect(
        &self,
        cluster: &ClusterId,
        access: Arc<Access>,
    ) -> BoxFuture<'static, Result<Client, Refusal>> {
        let rules = Rules {
            timeouts: self.timeouts,
            permit: self.permit.clone(),
            metrics: self.metrics.of_cluster(cluster),
        };
        let allowed = self.allowed.clone();
        Box::pin(async move {
            let config = config(&access, &allowed).await?;
            member_client(config, rules, allowed.addresses)
                .map_err(|wrong| unusable(&wrong.to_string()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use kube::api::ListParams;
    use mw_core::cidr::Cidr;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use crate::address::AddressPolicy;
    use crate::failure::Failure;
    use crate::kubeconfig::inspect;

    /// Tries to list through a kubeconfig.
    async fn listed(cluster: &str, allowed: &Allowed) -> Failure {
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{token: t}}\n\
             contexts:\n- name: x\n  context: {{cluster: c, user: u}}\ncurrent-context: x\n"
        );
        let access = Arc::new(inspect(text.as_bytes(), allowed).unwrap());
        let timeouts = Timeouts::of(Duration::from_secs(2));
        let network = Network {
            allowed: allowed.clone(),
            timeouts,
            permit: Permit::none(),
            metrics: Metrics::default(),
        };
        let client = network
            .connect(&ClusterId::from("c"), access)
            .await
            .unwrap();
        Failure::of(
            &Api::<Node>::all(client)
                .list(&ListParams::default())
                .await
                .map(drop)
                .unwrap_err(),
        )
    }

    fn inside(allowed: &[&str]) -> Allowed {
        let allowed = allowed
            .iter()
            .map(|text| Cidr::try_from(*text).unwrap())
            .collect();
        Allowed {
            proxy_url: true,
            addresses: AddressPolicy {
                allowed,
                refuses_loopback: true,
            },
            ..Allowed::default()
        }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_a_forbidden_address_is_never_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for cluster in [
            format!("server: 'https://localhost:{port}'"),
            format!("server: 'https://203.0.113.1', proxy-url: 'http://u:p@localhost:{port}'"),
        ] {
            let failure = listed(&cluster, &inside(&[])).await;
            let says = |part: &str| failure.to_string().contains(part);
            let is_refused = matches!(failure, Failure::ForbiddenAddress(_));
            assert!(
                is_refused && says("a loopback address") && says("--allow-address"),
                "{cluster}: {failure:?}"
            );
        }
        // Not every resolver resolves it.
        listed(
            &format!("server: 'https://localhost.:{port}'"),
            &inside(&[]),
        )
        .await;
        assert!(
            timeout(Duration::from_millis(200), listener.accept())
                .await
                .is_err(),
            "a connection was made"
        );
    }

    #[tokio::test]
    async fn an_allowed_address_is_connected_to_and_so_is_its_proxy() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for cluster in [
            format!("server: 'https://localhost:{port}'"),
            format!("server: 'https://203.0.113.1', proxy-url: 'http://u:p@localhost:{port}'"),
        ] {
            let accepted = async { listener.accept().await.map(drop).unwrap() };
            let allowed = inside(&["127.0.0.0/8", "::1/128"]);
            let (failure, ()) = tokio::join!(listed(&cluster, &allowed), accepted);
            assert!(
                !matches!(failure, Failure::ForbiddenAddress(_)),
                "{cluster}: {failure:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_redirect_is_not_followed() {
        let (named, target) = (
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        );
        let (server, to) = (named.local_addr().unwrap(), target.local_addr().unwrap());
        let config = kube::Config::new(format!("http://{server}").parse().unwrap());
        let timeouts = Timeouts::of(Duration::from_secs(2));
        let rules = Rules {
            timeouts,
            permit: Permit::none(),
            metrics: Metrics::default().of_cluster(&ClusterId::from("c")),
        };
        let api: Api<Node> =
            Api::all(member_client(config, rules, AddressPolicy::default()).unwrap());
        let answer = async {
            let (connection, _) = named.accept().await.unwrap();
            // Readiness may be reported before there is anything to read.
            while connection.try_read(&mut [0; 4096]).is_err() {
                connection.readable().await.unwrap();
            }
            let redirect = format!(
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{to}/\r\nContent-Length: 0\r\n\r\n"
            );
            connection.try_write(redirect.as_bytes()).unwrap();
            connection
        };
        let params = ListParams::default();
        let (listed, _connection) = tokio::join!(api.list(&params), answer);
        let failure = Failure::of(&listed.map(drop).unwrap_err());
        assert!(matches!(failure, Failure::Unreadable(_)), "{failure:?}");
        assert!(
            timeout(Duration::from_millis(200), target.accept())
                .await
                .is_err(),
            "a connection was made"
        );
    }
}
