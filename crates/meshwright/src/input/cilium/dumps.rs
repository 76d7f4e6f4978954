//! Dumps of clusters of the Cilium back end. They contain Secrets, so only names are ever shown.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mw_api::cilium::policy::API_VERSION as POLICIES;
use mw_controller::cilium::ClusterDump;
use mw_core::text::listed;

use crate::input::finding::Finding;
use crate::input::object::{Object, open_all};
use crate::input::register::Register;
use crate::input::source::{Contents, Reader, SourceFile};

/// Objects of one cluster.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    pub(crate) dump: ClusterDump,
    pub(crate) register: Register,
}

/// Dumps by the cluster name given on the command line.
pub(crate) type Dumps = BTreeMap<String, Dump>;

pub(crate) fn load(
    files: &[(String, PathBuf)],
    reader: &mut Reader,
    findings: &mut Vec<Finding>,
) -> Dumps {
    let mut dumps = Dumps::new();
    for (cluster, path) in files {
        let dump = dumps.entry(cluster.clone()).or_default();
        for opened in open_all(
            std::slice::from_ref(path),
            Contents::Secret,
            reader,
            findings,
        ) {
            for object in &opened.objects {
                if let Err(wrong) = dump.take(&opened.file, object) {
                    findings.push(wrong);
                }
            }
        }
    }
    dumps
}

impl Dump {
    fn take(&mut self, file: &Rc<SourceFile>, object: &Object) -> Result<(), Finding> {
        let Dump { dump, register } = self;
        match (object.kind.as_str(), object.api_version.as_str()) {
            ("Namespace", "v1") => {
                dump.namespaces
                    .push(register.read(file, object, "Namespace")?)
            }
            ("DaemonSet", "apps/v1") => {
                dump.daemon_sets
                    .push(register.read(file, object, "DaemonSet")?)
            }
            ("Deployment", "apps/v1") => {
                dump.deployments
                    .push(register.read(file, object, "Deployment")?)
            }
            ("Pod", "v1") => dump.pods.push(register.read(file, object, "Pod")?),
            ("ConfigMap", "v1") => {
                dump.config_maps
                    .push(register.read(file, object, "ConfigMap")?)
            }
            ("Secret", "v1") => dump.secrets.push(register.read(file, object, "Secret")?),
            ("Service", "v1") => dump.services.push(register.read(file, object, "Service")?),
            ("Node", "v1") => dump.nodes.push(register.read(file, object, "Node")?),
            ("EndpointSlice", "discovery.k8s.io/v1") => {
                dump.slices
                    .push(register.read(file, object, "EndpointSlice")?)
            }
            ("CiliumNetworkPolicy", POLICIES) => {
                dump.policies
                    .push(register.read(file, object, "CiliumNetworkPolicy")?)
            }
            ("CiliumClusterwideNetworkPolicy", POLICIES) => {
                dump.clusterwide_policies.push(register.read(
                    file,
                    object,
                    "CiliumClusterwideNetworkPolicy",
                )?);
            }
            ("CustomResourceDefinition", "apiextensions.k8s.io/v1") => {
                dump.definitions
                    .push(register.read(file, object, "CustomResourceDefinition")?);
            }
            _ => register.ignore(object),
        }
        Ok(())
    }

    /// Notes for the user about the files.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let of = &self.dump;
        let kinds = [
            ("Namespace", of.namespaces.is_empty()),
            ("DaemonSet", of.daemon_sets.is_empty()),
            ("Deployment", of.deployments.is_empty()),
            ("ConfigMap", of.config_maps.is_empty()),
            ("Secret", of.secrets.is_empty()),
            ("Service", of.services.is_empty()),
            ("Node", of.nodes.is_empty()),
            ("CustomResourceDefinition", of.definitions.is_empty()),
        ];
        let missing: Vec<&str> = kinds
            .into_iter()
            .filter(|(_, missing)| *missing)
            .map(|(kind, _)| kind)
            .collect();
        let ignored: Vec<String> = self
            .register
            .ignored
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        let unknown = || {
            format!(
                "its files hold no {}; results that depend on them are unknown",
                missing.join(", no ")
            )
        };
        let unmanaged = "no object in its files has managedFields, so none counts as meshwright's; dump with --show-managed-fields";
        [
            (!ignored.is_empty()).then(|| format!("ignored {}", listed(&ignored, 10))),
            (!missing.is_empty()).then(unknown),
            (self.shared().next().is_some()
                && self.shared().all(|meta| meta.managed_fields.is_none()))
            .then(|| unmanaged.to_owned()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Objects of which meshwright may own some fields.
    fn shared(&self) -> impl Iterator<Item = &ObjectMeta> {
        let of = &self.dump;
        let secrets = of.secrets.iter().map(|of| &of.metadata);
        secrets
            .chain(of.services.iter().map(|of| &of.metadata))
            .chain(of.config_maps.iter().map(|of| &of.metadata))
    }
}
