//! What the clusters of the Cilium back end hold, from dumps. They are full of
//! Secrets: nothing of a dump is shown but names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mw_api::cilium::policy::API_VERSION as POLICIES;
use mw_core::text::listed;
use mw_operator::cilium::Holdings;

use crate::input::finding::Finding;
use crate::input::object::{Object, open_all};
use crate::input::register::Register;
use crate::input::source::{Contents, Reader, SourceFile};

/// What one cluster holds.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    pub(crate) holdings: Holdings,
    pub(crate) register: Register,
}

/// By the name given on the command line.
pub(crate) type Dumps = BTreeMap<String, Dump>;

pub(crate) fn load(files: &[(String, PathBuf)], reader: &mut Reader, findings: &mut Vec<Finding>) -> Dumps {
    let mut dumps = Dumps::new();
    for (cluster, path) in files {
        let dump = dumps.entry(cluster.clone()).or_default();
        for opened in open_all(std::slice::from_ref(path), Contents::Secret, reader, findings) {
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
        let Dump { holdings, register } = self;
        match (object.kind.as_str(), object.api_version.as_str()) {
            ("Namespace", "v1") => holdings.namespaces.push(register.read(file, object, "Namespace")?),
            ("DaemonSet", "apps/v1") => holdings.daemon_sets.push(register.read(file, object, "DaemonSet")?),
            ("Deployment", "apps/v1") => holdings.deployments.push(register.read(file, object, "Deployment")?),
            ("Pod", "v1") => holdings.pods.push(register.read(file, object, "Pod")?),
            ("ConfigMap", "v1") => holdings.config_maps.push(register.read(file, object, "ConfigMap")?),
            ("Secret", "v1") => holdings.secrets.push(register.read(file, object, "Secret")?),
            ("Service", "v1") => holdings.services.push(register.read(file, object, "Service")?),
            ("Node", "v1") => holdings.nodes.push(register.read(file, object, "Node")?),
            ("EndpointSlice", "discovery.k8s.io/v1") => holdings.slices.push(register.read(file, object, "EndpointSlice")?),
            ("CiliumNetworkPolicy", POLICIES) => holdings.policies.push(register.read(file, object, "CiliumNetworkPolicy")?),
            ("CiliumClusterwideNetworkPolicy", POLICIES) => {
                holdings.clusterwide_policies.push(register.read(file, object, "CiliumClusterwideNetworkPolicy")?);
            }
            ("CustomResourceDefinition", "apiextensions.k8s.io/v1") => {
                holdings.definitions.push(register.read(file, object, "CustomResourceDefinition")?);
            }
            _ => register.ignore(object),
        }
        Ok(())
    }

    /// What people should know of its files.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let of = &self.holdings;
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
        let missing: Vec<&str> = kinds.into_iter().filter(|(_, missing)| *missing).map(|(kind, _)| kind).collect();
        let ignored: Vec<String> = self.register.ignored.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let unknown = || format!("its files hold no {}: what depends on that is not known", missing.join(", no "));
        let unmanaged = "nothing in its files has managedFields, so that nothing counts as meshwright's: dump with --show-managed-fields";
        [
            (!ignored.is_empty()).then(|| format!("ignored {}", listed(&ignored, 10))),
            (!missing.is_empty()).then(unknown),
            (self.shared().next().is_some() && self.shared().all(|meta| meta.managed_fields.is_none())).then(|| unmanaged.to_owned()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The objects of which meshwright may own a part.
    fn shared(&self) -> impl Iterator<Item = &ObjectMeta> {
        let of = &self.holdings;
        let secrets = of.secrets.iter().map(|of| &of.metadata);
        secrets.chain(of.services.iter().map(|of| &of.metadata)).chain(of.config_maps.iter().map(|of| &of.metadata))
    }
}
