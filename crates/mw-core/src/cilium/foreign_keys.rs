//! Keys of a link that another field manager set to a different value. They are
//! not changed; the link is dialled with their endpoint and client files, so
//! that it counts as connected if it works.

use std::collections::{BTreeMap, BTreeSet};

use crate::cilium::endpoint::{Address, Endpoint};
use crate::cilium::facts::{
    Certificate, Certificates, ClientFiles, ClusterSeen, ConnectionSecret, Held, SecretSeen,
};
use crate::cilium::finding::{Fault, Finding, Step};
use crate::cilium::material::{Key, Material, dial};
use crate::cilium::peer_file::{ClientConfig, projected, remote_of};
use crate::cilium::plan::Dial;
use crate::cilium::secret::SecretBytes;
use crate::cilium::verify::Evident;
use crate::names::CiliumName;
use crate::problem::Reason;
use crate::text::quoted;

#[derive(Debug)]
pub(super) struct Foreign {
    /// The first of them.
    key: Key,
    by: String,
    /// The dial with the present values; `None` if only the key of the reader's
    /// own etcd belongs to another manager.
    pub(super) dial: Option<Dial>,
    /// The reason why they can't work, if it is known without a dial.
    pub(super) flaw: Option<String>,
    /// The keys of the link, with the values of the other managers.
    pub(super) keys: BTreeMap<Key, SecretBytes>,
}

/// The known parts of a remote.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) name: &'a CiliumName,
    pub(super) id: u32,
    pub(super) address: Option<&'a Address>,
}

/// The keys of a link that belong to another manager, if there are any.
/// `material` is what we would write; without it every key of the remote
/// counts.
pub(super) fn find(
    reader: &ClusterSeen,
    remote: Named<'_>,
    material: Option<&Material>,
    namespace: &str,
) -> Option<Foreign> {
    let (agents, server) = (
        reader.agents.known()?.as_ref()?,
        reader.apiserver.known()?.as_ref()?,
    );
    let (secrets, certificates) = (reader.secrets.known()?, reader.certificates.known()?);
    let read = secrets
        .iter()
        .filter(|(name, _)| server.kvstoremesh || **name == ConnectionSecret::ClusterMesh);
    let others = others(read, remote.name, material);
    let (key, by) = others.first_key_value()?;
    let keys = material
        .map(|material| material.keys.clone())
        .unwrap_or_default();
    let mut found = Foreign {
        key: key.clone(),
        by: by.clone(),
        dial: None,
        flaw: None,
        keys,
    };
    let own = Some((ConnectionSecret::ClusterMesh, remote.name.to_string()))
        .filter(|key| server.kvstoremesh && others.contains_key(key));
    if let Some((own, secret)) = own
        .as_ref()
        .and_then(|own| Some((own, secrets.get(&own.0)?)))
    {
        let folder = Folder {
            secret,
            offered: &agents.client_files,
            certificates,
        };
        found.flaw = folder.own_etcd(&own.1, namespace).err();
        found.keys.extend(
            secret
                .keys
                .get(&own.1)
                .map(|held| (own.clone(), held.value.clone())),
        );
    }
    let (at, offered, aliases) = if server.kvstoremesh {
        (
            ConnectionSecret::KvStoreMesh,
            &server.client_files,
            &server.host_aliases,
        )
    } else {
        (
            ConnectionSecret::ClusterMesh,
            &agents.client_files,
            &agents.host_aliases,
        )
    };
    if let Some(secret) = secrets
        .get(&at)
        .filter(|_| others.keys().any(|key| Some(key) != own.as_ref()))
    {
        let folder = Folder {
            secret,
            offered,
            certificates,
        };
        found.follow(at, folder, remote, aliases);
    }
    Some(found)
}

impl Foreign {
    /// Adds the keys of a remote in the Secret that connects to it, with the
    /// dial that tests them.
    fn follow(
        &mut self,
        at: ConnectionSecret,
        folder: Folder<'_>,
        remote: Named<'_>,
        aliases: &BTreeSet<String>,
    ) {
        match folder.endpoint(remote, aliases) {
            Ok((endpoint, files)) => {
                self.dial = Some(dial(&endpoint, &files, remote.name, remote.id));
            }
            Err(why) => self.flaw = Some(why),
        }
        self.keys.retain(|(name, _), _| *name != at);
        let of_remote = folder
            .secret
            .keys
            .iter()
            .filter(|(key, _)| remote_of(key) == remote.name.as_str());
        self.keys
            .extend(of_remote.map(|(key, held)| ((at, key.clone()), held.value.clone())));
    }
}

/// The keys of a remote that an unforced apply can't change, and their
/// managers.
fn others<'a>(
    secrets: impl Iterator<Item = (&'a ConnectionSecret, &'a SecretSeen)>,
    remote: &CiliumName,
    material: Option<&Material>,
) -> BTreeMap<Key, String> {
    let all = secrets.flat_map(|(name, secret)| {
        secret
            .keys
            .iter()
            .map(|(key, held)| ((*name, key.clone()), held))
    });
    let differs = |(key, held): &(Key, &Held<SecretBytes>)| match material {
        Some(material) => material
            .keys
            .get(key)
            .is_some_and(|bytes| held.value != *bytes),
        None => remote_of(&key.1) == remote.as_str(),
    };
    let by = |held: &Held<SecretBytes>| match held.others().join(", ") {
        by if by.is_empty() => "an unknown field manager".to_owned(),
        by => by,
    };
    all.filter(|(_, held)| !held.is_ours_alone())
        .filter(differs)
        .map(|(key, held)| (key, by(held)))
        .collect()
}

impl Foreign {
    /// Reports who manages the keys, and whether the link works with them.
    /// `found` holds the findings of verification.
    pub(super) fn finding(&self, evident: &Evident, found: &[Finding]) -> Option<Finding> {
        let Foreign {
            key: (secret, key),
            by,
            flaw,
            ..
        } = self;
        let permanent = flaw.is_some()
            || found
                .iter()
                .any(|finding| finding.fault == Fault::Permanent);
        let why = flaw.as_deref().unwrap_or("the link does not work with it");
        let text = format!(
            "key {key} of Secret {} is managed by {by}: {why}",
            secret.as_str()
        );
        let hint = "delete that key from the Secret, or let its manager connect these clusters";
        match evident {
            Evident::Verified(_) => Some(Finding::remark(
                Step::Keys,
                Reason::KeyManagedByOther,
                format!("managed by {by}"),
            )),
            Evident::Awaited => None,
            Evident::Unverifiable | Evident::Not if permanent => {
                Some(Finding::permanent(Step::Keys, Reason::KeyOwnedByOther, text).hint(hint))
            }
            Evident::Unverifiable | Evident::Not => {
                Some(Finding::waiting(Step::Keys, Reason::KeyOwnedByOther, text).hint(hint))
            }
        }
    }
}

/// The files that pods see in Cilium's clustermesh directory.
struct Folder<'a> {
    secret: &'a SecretSeen,
    /// The files that the volume takes from the certificates' Secrets. They
    /// take precedence over keys of the same name.
    offered: &'a BTreeSet<String>,
    certificates: &'a Certificates,
}

impl Folder<'_> {
    fn config(&self, key: &str) -> Result<ClientConfig, String> {
        let held = self
            .secret
            .keys
            .get(key)
            .ok_or("the key with the endpoint is missing")?;
        ClientConfig::read(&held.value)
            .ok_or_else(|| "it is not an etcd client configuration".to_owned())
    }

    /// The endpoint in the key of a remote, and its client files.
    fn endpoint(
        &self,
        remote: Named<'_>,
        aliases: &BTreeSet<String>,
    ) -> Result<(Endpoint, ClientFiles), String> {
        let config = self.config(remote.name.as_str())?;
        let hosts = |name: &str| {
            remote
                .address
                .filter(|_| aliases.contains(name))
                .map(|address| address.hosts.clone())
        };
        Ok((config.endpoint(hosts)?, self.files(&config)?))
    }

    /// Checks that a key points to the reader's own etcd, with existing files.
    fn own_etcd(&self, key: &str, namespace: &str) -> Result<(), String> {
        let config = self.config(key)?;
        let name = format!("clustermesh-apiserver.{namespace}.svc");
        let host = config
            .endpoint(|_| None)?
            .hosts
            .first()
            .cloned()
            .unwrap_or_default();
        if host != name && !host.starts_with(&format!("{name}.")) {
            return Err(format!(
                "it points to {} instead of the etcd that KVStoreMesh fills, {name}",
                quoted(&host)
            ));
        }
        self.files(&config).map(drop)
    }

    fn files(&self, config: &ClientConfig) -> Result<ClientFiles, String> {
        let [ca, certificate, key] = config.files().map(|(field, path)| self.file(field, path));
        Ok(ClientFiles {
            ca: ca?,
            certificate: certificate?,
            key: key?,
        })
    }

    fn file(&self, field: &str, path: Option<&str>) -> Result<SecretBytes, String> {
        let path = path.ok_or_else(|| format!("it has no {field}"))?;
        let missing = || format!("its {field} names a file that does not exist");
        let name = ClientConfig::file_name(path).ok_or_else(missing)?;
        let of_volume = projected(name).filter(|_| self.offered.contains(name));
        let Some((is_local, end)) = of_volume else {
            return self
                .secret
                .keys
                .get(name)
                .map(|held| held.value.clone())
                .ok_or_else(missing);
        };
        let certificate = if is_local {
            &self.certificates.local
        } else {
            &self.certificates.remote
        };
        let Certificate { files, .. } = certificate
            .known()
            .and_then(Option::as_ref)
            .ok_or_else(missing)?;
        Ok(match end {
            "-ca.crt" => files.ca.clone(),
            ".crt" => files.certificate.clone(),
            _ => files.key.clone(),
        })
    }
}
