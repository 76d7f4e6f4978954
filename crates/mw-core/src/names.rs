//! Newtypes for names of meshes, clusters, nodes and workspaces, and the names
//! built from them (Peer names, label values).

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// A name that failed validation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidName(String);

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// A cluster's name in a mesh: a DNS-1123 label.
    ClusterName
);
name_type!(
    /// A Kubernetes Node's name, as returned by the API server.
    NodeName
);
name_type!(
    /// The name of a Peer object.
    PeerName
);
name_type!(
    /// One cluster as reached with one owner's credentials. Does not depend on
    /// anything that the cluster reports about itself.
    ClusterId
);
name_type!(
    /// The owner of the credentials for a cluster: a namespace of the hub, or
    /// the workspaces named by a Cluster of the management plane.
    Owner
);

name_type!(
    /// A cluster's own name in Cilium (cluster-name in its cilium-config): used
    /// as a key of a Secret and as a label of policies in other clusters.
    CiliumName
);
name_type!(
    /// The tenant of an object: the logical cluster of a kcp workspace, or the
    /// hub. Tenants are isolated from each other.
    Workspace
);

/// Cilium's default name for a cluster without a configured name.
pub const UNNAMED: &str = "default";
const CILIUM_NAME_LIMIT: usize = 32;

impl TryFrom<&str> for CiliumName {
    type Error = InvalidName;

    fn try_from(text: &str) -> Result<Self, InvalidName> {
        match ClusterName::try_from(text) {
            Ok(_) if text.len() <= CILIUM_NAME_LIMIT && text != UNNAMED => {
                Ok(CiliumName(text.into()))
            }
            _ => Err(InvalidName(format!(
                "Cilium does not accept {} as cluster-name",
                crate::text::quoted(text)
            ))),
        }
    }
}

impl From<&str> for Workspace {
    fn from(text: &str) -> Self {
        Workspace(text.into())
    }
}

impl TryFrom<&str> for ClusterName {
    type Error = InvalidName;

    fn try_from(text: &str) -> Result<Self, InvalidName> {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let problem = if text.is_empty() {
            "is empty"
        } else if text.len() > 63 {
            "is longer than 63 characters"
        } else if !text.bytes().all(fits) || text.starts_with('-') || text.ends_with('-') {
            "is not a DNS-1123 label (a-z, 0-9 and '-', with a letter or digit at both ends)"
        } else {
            return Ok(ClusterName(text.into()));
        };
        Err(InvalidName(format!(
            "cluster name {} {problem}",
            crate::text::quoted(text)
        )))
    }
}

impl From<&str> for NodeName {
    fn from(text: &str) -> Self {
        NodeName(text.into())
    }
}

impl From<&str> for PeerName {
    fn from(text: &str) -> Self {
        PeerName(text.into())
    }
}

impl From<&str> for Owner {
    fn from(text: &str) -> Self {
        Owner(text.into())
    }
}

impl From<&str> for ClusterId {
    fn from(text: &str) -> Self {
        ClusterId(text.into())
    }
}

/// A ClusterMesh on the hub.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeshId {
    /// The namespace on the hub.
    pub namespace: String,
    /// The name in that namespace.
    pub name: String,
}

impl MeshId {
    /// Combines a namespace and a name, which are not validated.
    pub fn new(namespace: &str, name: &str) -> Self {
        MeshId {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for MeshId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

const PEER_NAME_LIMIT: usize = 253;
const LABEL_LIMIT: usize = 63;

/// The first 16 hex digits of the text's SHA-256.
pub fn short_hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    hex::encode(digest.get(..8).unwrap_or_default())
}

impl PeerName {
    /// `<mesh>--<cluster>--<node>`, converted to a valid Kubernetes name.
    pub fn of(mesh: &str, cluster: &ClusterName, node: &str) -> PeerName {
        let untouched = format!("{mesh}--{cluster}--{node}");
        let mapped: String = untouched
            .chars()
            .map(|c| c.to_ascii_lowercase())
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '.' || c == '-' {
                    c
                } else {
                    '-'
                }
            })
            .collect();
        let name = mapped.trim_matches(['-', '.']);
        if name.len() <= PEER_NAME_LIMIT {
            return PeerName(name.into());
        }
        let head = name.get(..236).unwrap_or(name).trim_end_matches(['-', '.']);
        PeerName(format!("{head}-{}", short_hash(&untouched)).into())
    }
}

/// A label value for `text`: the text itself if it is short enough, otherwise
/// its beginning and a hash.
pub fn label_value(text: &str) -> String {
    if text.chars().count() <= LABEL_LIMIT {
        return text.to_owned();
    }
    let head: String = text.chars().take(46).collect();
    format!(
        "{}-{}",
        head.trim_matches(['-', '_', '.']),
        short_hash(text)
    )
}

/// Reports whether a label value may be the beginning and the hash of a longer
/// text.
pub fn is_hashed_label(value: &str) -> bool {
    let hash = value.rsplit_once('-').map(|(_, hash)| hash);
    hash.is_some_and(|hash| {
        hash.len() == 16
            && hash
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(name: &str) -> ClusterName {
        ClusterName::try_from(name).unwrap()
    }

    #[test]
    fn a_peer_name_is_lower_case_and_trimmed() {
        assert_eq!(
            PeerName::of("Prod", &cluster("a"), "Node_1.").as_str(),
            "prod--a--node-1"
        );
    }

    #[test]
    fn a_long_peer_name_ends_in_the_hash_of_the_untouched_name() {
        let node = "N".repeat(300);
        let name = PeerName::of("prod", &cluster("a"), &node);
        let hash = short_hash(&format!("prod--a--{node}"));
        assert_eq!(
            name.as_str(),
            format!("prod--a--{}-{hash}", "n".repeat(227))
        );
        assert_eq!(name.as_str().len(), 253);
    }

    #[test]
    fn a_label_value_never_exceeds_63_characters() {
        assert_eq!(label_value("short"), "short");
        let long = format!("{}.{}", "x".repeat(45), "y".repeat(40));
        assert_eq!(
            label_value(&long),
            format!("{}-{}", "x".repeat(45), short_hash(&long))
        );
        assert!(
            is_hashed_label(&label_value(&long))
                && !is_hashed_label("short")
                && !is_hashed_label("prod-eu")
        );
    }

    #[test]
    fn a_cilium_name_is_one_that_cilium_takes() {
        for good in ["a", "7", "cluster-ffm-1", &"a".repeat(32)] {
            assert!(CiliumName::try_from(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "default",
            "-a",
            "a-",
            "A",
            "a.b",
            "common-etcd-client.key",
            &"a".repeat(33),
        ] {
            assert!(CiliumName::try_from(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cluster_name_is_a_dns_label() {
        for bad in ["", "-a", "a-", "A", "a.b", &"a".repeat(64)] {
            assert!(ClusterName::try_from(bad).is_err(), "{bad}");
        }
        assert!(ClusterName::try_from(&*"a".repeat(63)).is_ok());
    }
}
