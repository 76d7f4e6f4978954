//! The material that a reader needs to connect to a remote: the keys of its
//! Secrets and the dial that verifies them.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::cilium::endpoint::{Address, Endpoint, Reader, choose};
use crate::cilium::facts::{
    Agents, ApiServer, Certificate, Certificates, ClientFiles, ClusterSeen, ConnectionSecret,
};
use crate::cilium::finding::{Finding, Step};
use crate::cilium::peer_file::{self, Client};
use crate::cilium::plan::Dial;
use crate::cilium::secret::SecretBytes;
use crate::names::CiliumName;
use crate::problem::Reason;

/// A key in one of the connection Secrets.
pub(super) type Key = (ConnectionSecret, String);

#[derive(Debug)]
pub(super) struct Material {
    pub(super) keys: BTreeMap<Key, SecretBytes>,
    pub(super) dial: Dial,
    /// The etcd user that the remote must list for it.
    pub(super) user: Option<String>,
}

/// The remote as its readers see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remote<'a> {
    pub(super) name: &'a CiliumName,
    pub(super) id: u32,
    pub(super) certificates: &'a Certificates,
    /// True if its etcd has users for single readers.
    pub(super) cluster_users: bool,
    pub(super) address: &'a Address,
}

/// `None` if something is not known yet, or is missing and reported elsewhere.
pub(super) fn material(
    reader: &ClusterSeen,
    remote: Remote<'_>,
    namespace: &str,
) -> Result<Option<Material>, Finding> {
    let (Some(Some(agents)), Some(Some(server)), Some(own)) = (
        reader.agents.known(),
        reader.apiserver.known(),
        reader.certificates.known(),
    ) else {
        return Ok(None);
    };
    let (Some(Some(served)), Some(Some(own_client))) =
        (remote.certificates.server.known(), own.remote.known())
    else {
        return Ok(None);
    };
    // It is not known whether the agents have their own client files to read
    // the cache.
    if server.kvstoremesh && own.local.known().is_none() {
        return Ok(None);
    }
    let Some((client, certificate)) = client(own_client, served, remote) else {
        return Ok(None);
    };
    let files = &certificate.files;
    let through = if server.kvstoremesh {
        Reader {
            version: server.version,
            host_aliases: &server.host_aliases,
        }
    } else {
        Reader {
            version: agents.version,
            host_aliases: &agents.host_aliases,
        }
    };
    let endpoint = choose(remote.address, &served.names, remote.name, through)?;
    let keys = keys(
        agents,
        server,
        own,
        &endpoint,
        remote.name,
        (client, files),
        namespace,
    )?;
    let user = single_user(certificate).map(str::to_owned);
    Ok(Some(Material {
        keys,
        dial: dial(&endpoint, files, remote.name, remote.id),
        user,
    }))
}

/// The reader's own client files if both sides trust each other's CA and the
/// remote can list their user, otherwise those issued by the remote. CA keys
/// are never copied.
fn client<'a>(
    own: &'a Certificate,
    served: &Certificate,
    remote: Remote<'a>,
) -> Option<(Client, &'a Certificate)> {
    let trusted = own.trusts.contains(&served.issuer) && served.trusts.contains(&own.issuer);
    if trusted && (remote.cluster_users || single_user(own).is_none()) {
        return Some((Client::Common, own));
    }
    remote
        .certificates
        .remote
        .known()?
        .as_ref()
        .map(|certificate| (Client::Own, certificate))
}

/// The etcd user of a certificate, if it is specific to a cluster. The user
/// `remote` exists in every mode.
fn single_user(certificate: &Certificate) -> Option<&str> {
    let name = certificate.common_name.as_str();
    name.strip_prefix("remote-")
        .filter(|cluster| CiliumName::try_from(*cluster).is_ok())
        .map(|_| name)
}

fn keys(
    agents: &Agents,
    server: &ApiServer,
    own: &Certificates,
    endpoint: &Endpoint,
    name: &CiliumName,
    (client, files): (Client, &ClientFiles),
    namespace: &str,
) -> Result<BTreeMap<Key, SecretBytes>, Finding> {
    let (secret, offered) = if server.kvstoremesh {
        (ConnectionSecret::KvStoreMesh, &server.client_files)
    } else {
        (ConnectionSecret::ClusterMesh, &agents.client_files)
    };
    if client == Client::Common && !offered.contains(&client.certificate(name)) {
        return Err(no_files(&client.certificate(name)));
    }
    let mut keys = BTreeMap::from([(
        (secret, name.to_string()),
        peer_file::remote(name, endpoint, client, &files.ca),
    )]);
    if client == Client::Own {
        keys.extend(
            peer_file::own_files(name, files)
                .into_iter()
                .map(|(key, bytes)| ((secret, key), bytes)),
        );
    }
    if server.kvstoremesh {
        let offers = |client: Client| agents.client_files.contains(&client.certificate(name));
        let local = [(Client::Local, &own.local), (Client::Common, &own.remote)].into_iter();
        let chosen = local
            .filter(|(client, _)| offers(*client))
            .find_map(|(client, of)| Some((client, of.known()?.as_ref()?)));
        let (client, of) = chosen.ok_or_else(|| no_files(&Client::Local.certificate(name)))?;
        keys.insert(
            (ConnectionSecret::ClusterMesh, name.to_string()),
            peer_file::local(name, namespace, client, &of.files.ca),
        );
    }
    Ok(keys)
}

fn no_files(file: &str) -> Finding {
    let text = format!("Cilium's clustermesh volume does not contain {file}");
    let hint = "helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set clustermesh.useAPIServer=true";
    Finding::permanent(Step::Keys, Reason::ClientFilesMissing, text).hint(hint)
}

/// The dial of an endpoint with client files.
pub(super) fn dial(
    endpoint: &Endpoint,
    files: &ClientFiles,
    cluster: &CiliumName,
    id: u32,
) -> Dial {
    let Endpoint {
        urls: _,
        hosts,
        port,
        name,
        aliased: _,
    } = endpoint;
    let mut hash = Sha256::new();
    let mut field = |bytes: &[u8]| {
        hash.update(bytes.len().to_le_bytes());
        hash.update(bytes);
    };
    hosts.iter().for_each(|host| field(host.as_bytes()));
    field(&port.to_le_bytes());
    field(name.as_deref().unwrap_or_default().as_bytes());
    field(cluster.as_str().as_bytes());
    field(&id.to_le_bytes());
    [&files.ca, &files.certificate, &files.key]
        .into_iter()
        .for_each(|file| field(file.expose()));
    let fingerprint = hex::encode(hash.finalize().get(..8).unwrap_or_default());
    Dial {
        fingerprint,
        hosts: hosts.clone(),
        port: *port,
        server_name: name.clone(),
        files: files.clone(),
        cluster_name: cluster.clone(),
        cluster_id: id,
    }
}
