//! Step 5: writes. Each cluster has its own writer, and no cluster waits for
//! another. Objects of others are applied server-side without force; our own
//! are written with preconditions.

use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource};
use mw_api::cilium::observe::USERS_KEY;
use mw_api::cilium::policy::{
    CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, policy_object, policy_patch,
};
use mw_api::cilium::rbac::REMOTE_USERS;
use mw_api::cilium::target::{ConfigMap, Secret, Service};
use mw_core::cilium::facts::{MANAGER, PolicyKey, ServiceName};
use mw_core::cilium::plan::UsersWrite;
use mw_core::cilium::secret::SecretBytes;
use mw_core::names::ClusterId;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::cilium::cluster_cache::{
    API_SERVER, ClusterCache, certificate, config_map, policy, remote_users, service,
};
use crate::cilium::diff::{Act, Operation, Place};
use crate::cilium::engine::Engine;
use crate::engine::conditional_delete;
use crate::failure::Failure;

/// Result of one write.
pub(super) struct WriteOutcome {
    place: Place,
    verb: &'static str,
    result: Result<Found, Failure>,
}

/// The object after the write.
struct Found {
    /// Set if the write did not take effect because another client was faster.
    otherwise: Option<Failure>,
    show: Show,
}

type Show = Box<dyn FnOnce(&mut ClusterCache) + Send>;

impl Engine {
    pub(super) fn write(
        &self,
        cluster: &ClusterId,
        client: Client,
        operation: Operation,
    ) -> impl Future<Output = WriteOutcome> + Send + 'static {
        let cluster = self.environment.names.of(cluster);
        let namespace = self.settings.cilium_namespace.clone();
        async move {
            debug!(%cluster, place = %operation.place, verb = operation.act.verb(), "writing");
            write(client, &namespace, operation).await
        }
    }

    pub(super) fn observe_write(&mut self, cluster: &ClusterId, epoch: u64, outcome: WriteOutcome) {
        let WriteOutcome {
            place,
            verb,
            result,
        } = outcome;
        let counted = match &result {
            Ok(Found {
                otherwise: Some(failure),
                ..
            }) => failure.category(),
            Ok(_) => "done",
            Err(failure) => failure.category(),
        };
        self.count_write(cluster, place.kind(), verb, counted);
        let share = self.retry_share();
        let Some(member) = self.members.get_mut(cluster) else {
            return;
        };
        member.writer.answered(&place);
        self.touch_status();
        let name = self.environment.names.of(cluster);
        let Some(member) = self
            .members
            .get_mut(cluster)
            .filter(|member| member.link.epoch == epoch)
        else {
            return;
        };
        match result {
            Ok(Found { otherwise, show }) => {
                show(&mut member.link.feeds);
                self.changes.clusters.insert(cluster.clone());
                if let Some(failure) = otherwise {
                    debug!(cluster = %name, %place, %failure, "object changed since it was planned");
                    member.writer.fail(place, verb, failure, share);
                } else {
                    info!(cluster = %name, %place, verb, "written");
                    member.writer.succeed(&place);
                    if let (Place::Secret(_), Some(reader)) =
                        (&place, self.stands_for(cluster).cloned())
                    {
                        self.ask_again(&reader);
                    }
                }
            }
            Err(failure) => {
                warn!(cluster = %name, %place, error = %failure, "{verb} failed");
                if !failure.is_an_answer() {
                    member.writer.doubt();
                    member.state.lists_in_doubt = Some(member.link.feeds.lists(member.state.wants));
                    member.link.relist();
                }
                member.writer.fail(place, verb, failure.clone(), share);
                self.count_failure(cluster.as_str(), &failure);
            }
        }
    }
}

async fn write(client: Client, namespace: &str, operation: Operation) -> WriteOutcome {
    let Operation { place, act } = operation;
    let verb = act.verb();
    let result = match send(&client, namespace, act)
        .await
        .map_err(|error| Failure::of(&error))
    {
        Ok(show) => Ok(Found {
            otherwise: None,
            show,
        }),
        // Another client was faster: read the object again.
        Err(failure @ (Failure::Conflict(_) | Failure::Owned(_) | Failure::NotFound(_))) => {
            let otherwise = Some(if matches!(failure, Failure::Owned(_)) {
                failure
            } else {
                Failure::Conflict(409)
            });
            look(&client, namespace, &place)
                .await
                .map(|show| Found { otherwise, show })
                .map_err(|error| Failure::of(&error))
        }
        Err(failure) => Err(failure),
    };
    WriteOutcome {
        place,
        verb,
        result,
    }
}

async fn send(client: &Client, namespace: &str, act: Act) -> Result<Show, kube::Error> {
    match act {
        Act::Identify(write) => {
            let id = write.id.map(|id| id.to_string());
            let data = json!({ "cluster-name": write.name.map(|name| name.to_string()), "cluster-id": id });
            let patch = json!({ "metadata": { "resourceVersion": write.resource_version }, "data": present(data) });
            let found: ConfigMap = merge(client, namespace, "cilium-config", &patch).await?;
            Ok(show_config(Some(found)))
        }
        Act::Balance(write) => {
            let annotations = json!({ "kubernetes.io/elb.id": write.id });
            let patch = json!({ "metadata": { "resourceVersion": write.resource_version, "annotations": annotations } });
            let found: Service = merge(client, namespace, API_SERVER, &patch).await?;
            Ok(show_service(Some(found), mesh_service(namespace)))
        }
        Act::ListUsers(write) => list_users(client, namespace, write).await,
        Act::CreateAuthority(create) => {
            let metadata = json!({ "name": "cilium-ca", "namespace": namespace, "labels": create.labels, "annotations": create.annotations });
            let data =
                json!({ "ca.crt": encoded(&create.certificate), "ca.key": encoded(&create.key) });
            let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data });
            let found: Secret = create_object(client, namespace, &object).await?;
            Ok(show_secret(Some(found), "cilium-ca"))
        }
        Act::ApplyKeys(secret, apply) => {
            let data: serde_json::Map<String, Value> = apply
                .data
                .iter()
                .map(|(key, bytes)| (key.clone(), encoded(bytes)))
                .collect();
            let on = apply.on.as_ref();
            let uid = on.map(|on| &*on.uid);
            let version = on.map(|on| &*on.resource_version);
            let metadata = present(
                json!({ "name": secret.as_str(), "namespace": namespace, "uid": uid, "resourceVersion": version }),
            );
            // An empty map would make us own `data`.
            let data = if data.is_empty() {
                Value::Null
            } else {
                data.into()
            };
            let object = present(
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data }),
            );
            let found: Secret = apply_object(client, namespace, secret.as_str(), &object).await?;
            Ok(show_secret(Some(found), secret.as_str()))
        }
        Act::Annotate(name, apply) => {
            let annotations = Some(apply.annotations).filter(|annotations| !annotations.is_empty());
            let (uid, version) = (&*apply.on.uid, &*apply.on.resource_version);
            let metadata = json!({
                "name": name.name, "namespace": name.namespace, "uid": uid, "resourceVersion": version, "annotations": annotations,
            });
            let object =
                json!({ "apiVersion": "v1", "kind": "Service", "metadata": present(metadata) });
            let found: Service = apply_object(client, &name.namespace, &name.name, &object).await?;
            Ok(show_service(Some(found), name))
        }
        Act::CreatePolicy(wanted) => {
            let object = policy_object(&wanted);
            let key = wanted.key;
            let found = policies(client, &key)
                .create(&PostParams::default(), &dynamic(object)?)
                .await?;
            Ok(show_policy(Some(found), key))
        }
        Act::UpdatePolicy(update) => {
            let key = update.after.key.clone();
            let patch = Patch::Merge(policy_patch(&update));
            let found = policies(client, &key)
                .patch(&key.name, &PatchParams::default(), &patch)
                .await?;
            Ok(show_policy(Some(found), key))
        }
        Act::DeletePolicy(key, on) => {
            let params = conditional_delete(&on);
            let deleted = policies(client, &key).delete(&key.name, &params).await?;
            // A policy with a finalizer still exists while it is being deleted.
            let lingers = deleted
                .left()
                .filter(|policy| policy.metadata.deletion_timestamp.is_some());
            Ok(show_policy(lingers, key))
        }
    }
}

async fn list_users(
    client: &Client,
    namespace: &str,
    write: UsersWrite,
) -> Result<Show, kube::Error> {
    let data = json!({ USERS_KEY: write.text });
    let found: ConfigMap = match write.on {
        Some(on) => {
            let metadata = json!({ "uid": &*on.uid, "resourceVersion": &*on.resource_version });
            merge(
                client,
                namespace,
                REMOTE_USERS,
                &json!({ "metadata": metadata, "data": data }),
            )
            .await?
        }
        None => {
            let metadata = json!({ "name": REMOTE_USERS, "namespace": namespace });
            let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
            apply_object(client, namespace, REMOTE_USERS, &object).await?
        }
    };
    Ok(show_users(Some(found)))
}

async fn look(client: &Client, namespace: &str, place: &Place) -> Result<Show, kube::Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    Ok(match place {
        Place::Config => show_config(
            Api::<ConfigMap>::namespaced(client.clone(), namespace)
                .get_opt("cilium-config")
                .await?,
        ),
        Place::Users => {
            let named = ListParams::default().fields(&format!("metadata.name={REMOTE_USERS}"));
            show_users(
                Api::<ConfigMap>::namespaced(client.clone(), namespace)
                    .list(&named)
                    .await?
                    .items
                    .into_iter()
                    .next(),
            )
        }
        Place::Authority => {
            // The optional role grants list and watch by name, not get.
            let named = ListParams::default().fields("metadata.name=cilium-ca");
            show_secret(
                secrets.list(&named).await?.items.into_iter().next(),
                "cilium-ca",
            )
        }
        Place::Secret(secret) => {
            show_secret(secrets.get_opt(secret.as_str()).await?, secret.as_str())
        }
        Place::Balancer => {
            let name = mesh_service(namespace);
            show_service(
                Api::<Service>::namespaced(client.clone(), namespace)
                    .get_opt(&name.name)
                    .await?,
                name,
            )
        }
        Place::Service(name) => show_service(
            Api::<Service>::namespaced(client.clone(), &name.namespace)
                .get_opt(&name.name)
                .await?,
            name.clone(),
        ),
        Place::Policy(key) => {
            show_policy(policies(client, key).get_opt(&key.name).await?, key.clone())
        }
    })
}

fn mesh_service(namespace: &str) -> ServiceName {
    ServiceName {
        namespace: namespace.to_owned(),
        name: API_SERVER.to_owned(),
    }
}

fn show_config(found: Option<ConfigMap>) -> Show {
    Box::new(move |cluster_cache| match found.map(config_map) {
        Some((key, item)) => cluster_cache.config().written(key, item),
        None => cluster_cache.config().absent(&"cilium-config".to_owned()),
    })
}

fn show_users(found: Option<ConfigMap>) -> Show {
    Box::new(move |cluster_cache| match found.map(remote_users) {
        Some((key, item)) => cluster_cache.users().written(key, item),
        None => cluster_cache.users().absent(&REMOTE_USERS.to_owned()),
    })
}

fn show_secret(found: Option<Secret>, name: &'static str) -> Show {
    Box::new(move |cluster_cache| {
        let Some(watch_cache) = cluster_cache.secret(name) else {
            return;
        };
        match found.map(certificate) {
            Some((key, item)) => watch_cache.written(key, item),
            None => watch_cache.absent(&name.to_owned()),
        }
    })
}

fn show_service(found: Option<Service>, name: ServiceName) -> Show {
    Box::new(move |cluster_cache| match found.map(service) {
        Some((key, item)) => cluster_cache.services().written(key, item),
        None => cluster_cache.services().absent(&name),
    })
}

fn show_policy(found: Option<DynamicObject>, key: PolicyKey) -> Show {
    Box::new(move |cluster_cache| match found {
        Some(found) => {
            let (key, item) = policy(
                &found.metadata,
                found.data.get("spec").unwrap_or(&Value::Null),
            );
            cluster_cache.policies(&key).written(key, item);
        }
        None => cluster_cache.policies(&key).absent(&key),
    })
}

fn policies(client: &Client, key: &PolicyKey) -> Api<DynamicObject> {
    match &key.namespace {
        Some(namespace) => Api::namespaced_with(
            client.clone(),
            namespace,
            &ApiResource::erase::<CiliumNetworkPolicy>(&()),
        ),
        None => Api::all_with(
            client.clone(),
            &ApiResource::erase::<CiliumClusterwideNetworkPolicy>(&()),
        ),
    }
}

fn dynamic(object: Value) -> Result<DynamicObject, kube::Error> {
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}

/// Drops null fields: a null would remove or claim a field instead of leaving it alone.
fn present(mut data: Value) -> Value {
    if let Some(fields) = data.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    data
}

fn encoded(bytes: &SecretBytes) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes.expose().to_vec())).unwrap_or_default()
}

async fn merge<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    patch: &Value,
) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    Api::<K>::namespaced(client.clone(), namespace)
        .patch(name, &params, &Patch::Merge(patch))
        .await
}

/// Applies our fields only, without force.
async fn apply_object<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    object: &Value,
) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let params = PatchParams::apply(MANAGER).validation_strict();
    Api::<K>::namespaced(client.clone(), namespace)
        .patch(name, &params, &Patch::Apply(object))
        .await
}

async fn create_object<K>(
    client: &Client,
    namespace: &str,
    object: &Value,
) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let url = K::url_path(&(), Some(namespace));
    let params = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let request = kube::core::Request::new(url)
        .create(&params, body)
        .map_err(kube::Error::BuildRequest)?;
    client.request(request).await
}
