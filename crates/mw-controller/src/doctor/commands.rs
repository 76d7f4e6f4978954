//! Shell commands to copy and paste, with every argument quoted. The kubectl
//! context of a member is its name in the mesh.

use mw_core::cilium::version::Version;
use mw_core::text::shell_quoted;

/// A program and its context flag.
const KUBECTL: (&str, &str) = ("kubectl", "context");

/// Flags by which kubectl finds the hub and the members.
#[derive(Debug, Clone, Default)]
pub struct Kubectl {
    pub kubeconfig: Option<String>,
    /// Context of the hub; None for the current context.
    pub context: Option<String>,
}

impl Kubectl {
    pub fn hub(&self) -> String {
        self.at(KUBECTL, self.context.as_deref())
    }

    pub fn member(&self, name: &str) -> String {
        self.at(KUBECTL, Some(name))
    }

    /// Helm has the same options under other names.
    pub fn helm(&self, name: &str) -> String {
        self.at(("helm", "kube-context"), Some(name))
    }

    fn at(&self, (program, flag_of_context): (&str, &str), context: Option<&str>) -> String {
        let flag = |name: &str, value: Option<&str>| {
            value
                .map(|value| format!(" --{name} {}", shell_quoted(value)))
                .unwrap_or_default()
        };
        format!(
            "{program}{}{}",
            flag("kubeconfig", self.kubeconfig.as_deref()),
            flag(flag_of_context, context)
        )
    }
}

/// Secret with a kubeconfig, and the account behind it.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    pub namespace: &'a str,
    pub secret: &'a str,
    pub key: &'a str,
    /// Namespace of the account in the member; its token is in Secret `ACCOUNT-token`.
    pub account_namespace: &'a str,
    pub account: &'a str,
    /// Name of its role in `meshwright rbac`.
    pub role: &'a str,
}

/// Template of a kubeconfig for kubectl's go-template output.
const TEMPLATE: [&str; 2] = [
    r#"{"apiVersion":"v1","kind":"Config","current-context":"member","contexts":[{"name":"member","context":{"cluster":"member","user":"member"}}],"clusters":[{"name":"member","cluster":{"certificate-authority-data":"{{index .data "ca.crt"}}","server":""#,
    r#""}}],"users":[{"name":"member","user":{"token":"{{base64decode .data.token}}"}}]}"#,
];

/// Creates the account if needed and writes its token as a kubeconfig into the
/// Secret on the hub.
pub fn renew_kubeconfig(hub: &str, member: &str, kept: Kept<'_>) -> String {
    let Kept {
        namespace,
        secret,
        key,
        account_namespace,
        account,
        role,
    } = kept;
    let [before, after] = TEMPLATE;
    let (namespace, secret) = (shell_quoted(namespace), shell_quoted(secret));
    let token = format!(
        "-n {} get secret {}",
        shell_quoted(account_namespace),
        shell_quoted(&format!("{account}-token"))
    );
    let filled = token.replacen(
        "get secret ",
        "wait --for=jsonpath='{.data.token}' --timeout=60s secret/",
        1,
    );
    [
        format!("meshwright rbac {role} | {member} apply --server-side --force-conflicts -f -"),
        format!("{member} {filled}"),
        format!("server=$({member} config view --minify -o jsonpath='{{.clusters[0].cluster.server}}')"),
        format!(
            "{member} {token} -o go-template='{before}'\"$server\"'{after}' | {hub} -n {namespace} create secret generic {secret} \
             --from-file={}=/dev/stdin --dry-run=client -o yaml | {hub} apply --server-side --force-conflicts -f -",
            shell_quoted(key)
        ),
    ]
    .join(" && ")
}

/// Grants an account the shipped role.
pub fn grant(kubectl: &str, role: &str) -> String {
    format!("meshwright rbac {role} | {kubectl} apply --server-side --force-conflicts -f -")
}

/// Upgrades Cilium to the newest patch of a minor release with its current values.
/// Cilium's charts do not support `--reuse-values` across versions.
pub fn upgrade_cilium(helm: &str, namespace: &str, to: Version) -> String {
    let helm = format!("{helm} -n {}", shell_quoted(namespace));
    format!(
        "values=$({helm} get values cilium -o yaml) && printf '%s\\n' \"$values\" | {helm} upgrade cilium cilium/cilium --version '~{to}.0' -f -"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_stay_one_word() {
        let kubectl = Kubectl {
            kubeconfig: Some("my config".to_owned()),
            context: None,
        };
        assert_eq!(kubectl.hub(), "kubectl --kubeconfig 'my config'");
        assert_eq!(
            kubectl.member("a; b"),
            "kubectl --kubeconfig 'my config' --context 'a; b'"
        );
        let kept = Kept {
            namespace: "n",
            secret: "s'",
            key: "k",
            account_namespace: "kube-system",
            account: "reader",
            role: "remote",
        };
        let command = renew_kubeconfig("kubectl", "kubectl --context east", kept);
        assert!(
            command.contains("create secret generic 's'\\''' --from-file=k=/dev/stdin"),
            "{command}"
        );
        assert!(
            command.contains(
                "kubectl --context east -n kube-system get secret reader-token -o go-template='{"
            ),
            "{command}"
        );
    }
}
