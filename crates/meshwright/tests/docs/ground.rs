//! Objects that the pages expect in a reader's clusters.

/// Context names used by the pages, all for the one test cluster.
pub(crate) const CONTEXTS: &str = r#"
cluster=$(kubectl config view -o jsonpath='{.contexts[0].context.cluster}')
user=$(kubectl config view -o jsonpath='{.contexts[0].context.user}')
for name in eu us hub ffm ber; do kubectl config set-context "$name" --cluster "$cluster" --user "$user"; done
"#;

/// Creates everything that is missing.
pub(crate) const PREPARE: &str = "
kubectl apply --server-side --force-conflicts -f config/crd -f crates/mw-sim/crds/peers.kilo.squat.ai.yaml
kubectl apply -f first.yaml
kubectl wait --for=condition=Established crd --all --timeout=60s
kubectl apply -f config/rbac/remote.yaml -f ground.yaml
kubectl wait --for=jsonpath='{.data.token}' secret/clustermesh-reader-token -n kube-system --timeout=60s
";

/// Objects that must exist before the others can be applied.
pub(crate) const FIRST: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ciliumnetworkpolicies.cilium.io}
spec:
  group: cilium.io
  scope: Namespaced
  names: {kind: CiliumNetworkPolicy, plural: ciliumnetworkpolicies, singular: ciliumnetworkpolicy}
  versions:
    - name: v2
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ciliumclusterwidenetworkpolicies.cilium.io}
spec:
  group: cilium.io
  scope: Cluster
  names: {kind: CiliumClusterwideNetworkPolicy, plural: ciliumclusterwidenetworkpolicies, singular: ciliumclusterwidenetworkpolicy}
  versions:
    - name: v2
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: Namespace
metadata: {name: kilo-system}
---
apiVersion: v1
kind: Namespace
metadata: {name: meshwright}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: kube-system}
";

pub(crate) const GROUND: &str = r"
apiVersion: v1
kind: Node
metadata:
  name: node-1
  annotations: {kilo.squat.ai/key: OPFDzYzgOTtF9rtHW6BhUQu/jcJtwV1szapyakV9UAU=, kilo.squat.ai/wireguard-ip: 10.4.0.1/16}
spec: {podCIDR: 10.1.1.0/24, podCIDRs: [10.1.1.0/24]}
---
apiVersion: kilo.squat.ai/v1alpha1
kind: Peer
metadata: {name: prod--us--node-1, labels: {kilo-clustermesh.io/mesh: prod, kilo-clustermesh.io/source-cluster: us}}
spec: {publicKey: OPFDzYzgOTtF9rtHW6BhUQu/jcJtwV1szapyakV9UAU=, allowedIPs: [10.2.1.0/24]}
---
apiVersion: kilo.squat.ai/v1alpha1
kind: ClusterMesh
metadata: {name: prod, namespace: kilo-system}
spec:
  clusters:
    - {name: eu, local: true, podCIDRs: [10.1.0.0/16], wireguardCIDR: 10.4.0.0/16}
    - {name: us, kubeconfigSecretRef: {name: us-kubeconfig}, podCIDRs: [10.2.0.0/16], wireguardCIDR: 10.5.0.0/16}
---
apiVersion: networking.edge-portal.eu/v1alpha1
kind: ClusterMeshBinding
metadata: {name: prod, namespace: kilo-system}
spec: {clusterRefs: [{name: cluster-ffm-1}, {name: cluster-ber-2}]}
---
apiVersion: networking.edge-portal.eu/v1alpha1
kind: GlobalService
metadata: {name: prod, namespace: kilo-system}
spec: {meshRef: {name: prod}, selector: {namespace: kilo-system, name: nginx}}
---
apiVersion: networking.edge-portal.eu/v1alpha1
kind: ConnectivityIntent
metadata: {name: prod, namespace: kilo-system}
spec:
  meshRef: {name: prod}
  action: Allow
  source: {namespace: kilo-system, name: frontend}
  destination: {namespace: kilo-system, name: backend}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: backend, namespace: kilo-system}
---
apiVersion: v1
kind: Secret
metadata: {name: us-kubeconfig, namespace: kilo-system}
stringData: {kubeconfig: none}
---
apiVersion: v1
kind: Service
metadata: {name: nginx, namespace: kilo-system, annotations: {service.cilium.io/shared: 'false'}}
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kilo-clustermesh-operator, namespace: kilo-system}
spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: x, image: x}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kcp-cilium-mesh-provider, namespace: kilo-system}
spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: x, image: x}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: kilo-1, namespace: kube-system, labels: {app.kubernetes.io/name: kilo}}
spec: {automountServiceAccountToken: false, containers: [{name: kilo, image: kilo}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: cilium, namespace: kube-system, labels: {k8s-app: cilium}}
spec: {selector: {matchLabels: {k8s-app: cilium}}, template: {metadata: {labels: {k8s-app: cilium}}, spec: {containers: [{name: x, image: x}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cilium-operator, namespace: kube-system}
spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: x, image: x}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: clustermesh-apiserver, namespace: kube-system}
spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: x, image: x}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: clustermesh-apiserver, namespace: kube-system, annotations: {kubernetes.io/elb.id: x}}
spec: {type: LoadBalancer, ports: [{port: 2379}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cilium-config, namespace: kube-system}
data: {cluster-name: ffm, cluster-id: '1'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: clustermesh-remote-users, namespace: kube-system}
data: {users.yaml: 'users: []'}
---
apiVersion: v1
kind: Secret
metadata: {name: clustermesh-apiserver-admin-cert, namespace: kube-system}
data: {tls.crt: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJQakNCOGFBREFnRUNBaFFNdDFlNXU2NGk3ci9kSXN0Q2tSNkVFUExGYXpBRkJnTXJaWEF3RkRFU01CQUcKQTFVRUF3d0pZV1J0YVc0dFptWnRNQ0FYRFRJMk1URXhPREl3TURRd01sb1lEekl4TWpZeE1ESTFNakF3TkRBeQpXakFVTVJJd0VBWURWUVFEREFsaFpHMXBiaTFtWm0wd0tqQUZCZ01yWlhBRElRRFJQY2VqbU5ybk5TZlVlTmFzCjFxblRVZ3pLZHhaTSs3R2xCOHp1ZEYweXhLTlRNRkV3SFFZRFZSME9CQllFRkVBYkxUSEpCQ1pvVEg2L2tMT1oKMmZ5ZXphTU9NQjhHQTFVZEl3UVlNQmFBRkVBYkxUSEpCQ1pvVEg2L2tMT1oyZnllemFNT01BOEdBMVVkRXdFQgovd1FGTUFNQkFmOHdCUVlESzJWd0EwRUExMHZYODRpY2pGZlZ0aThKOWNlZFpqTEViei9IK3hPdERTbjVPQUtXCm4yTGRBaTFVTkdQZThGb2J2S3lrUUpxd1AvSzlZNHpNN3JWbnIvVGxiV244RGc9PQotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==}
---
apiVersion: v1
kind: Secret
metadata: {name: cilium-clustermesh, namespace: kube-system}
";
