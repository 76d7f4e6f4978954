//! Commands that a person can paste: every argument is quoted for the shell.
//! Members go by their names in the mesh as contexts of kubectl.

use mw_core::text::shell_quoted;

/// A program, and its flag for a context.
const KUBECTL: (&str, &str) = ("kubectl", "context");

/// How kubectl is told where the hub and the members are.
#[derive(Debug, Clone, Default)]
pub struct Kubectl {
    pub kubeconfig: Option<String>,
    /// Of the hub; without it the current one.
    pub context: Option<String>,
}

impl Kubectl {
    pub fn hub(&self) -> String {
        self.at(KUBECTL, self.context.as_deref())
    }

    pub fn member(&self, name: &str) -> String {
        self.at(KUBECTL, Some(name))
    }

    /// Helm takes the same under other names.
    pub fn helm(&self, name: &str) -> String {
        self.at(("helm", "kube-context"), Some(name))
    }

    fn at(&self, (program, flag_of_context): (&str, &str), context: Option<&str>) -> String {
        let flag = |name: &str, value: Option<&str>| value.map(|value| format!(" --{name} {}", shell_quoted(value))).unwrap_or_default();
        format!("{program}{}{}", flag("kubeconfig", self.kubeconfig.as_deref()), flag(flag_of_context, context))
    }
}

/// Where a kubeconfig is kept, and what the account behind it is called.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    pub namespace: &'a str,
    pub secret: &'a str,
    pub key: &'a str,
    /// Of the account in the member; its token is in a Secret with `-token`.
    pub account_namespace: &'a str,
    pub account: &'a str,
    /// What `meshwright rbac` calls its rights.
    pub role: &'a str,
}

/// What a kubeconfig is made of, by kubectl.
const TEMPLATE: [&str; 2] = [
    r#"{"apiVersion":"v1","kind":"Config","current-context":"member","contexts":[{"name":"member","context":{"cluster":"member","user":"member"}}],"clusters":[{"name":"member","cluster":{"certificate-authority-data":"{{index .data "ca.crt"}}","server":""#,
    r#""}}],"users":[{"name":"member","user":{"token":"{{base64decode .data.token}}"}}]}"#,
];

/// Makes the account, if it is not there, and writes its token as a kubeconfig
/// into the Secret on the hub.
pub fn renew_kubeconfig(hub: &str, member: &str, kept: Kept<'_>) -> String {
    let Kept { namespace, secret, key, account_namespace, account, role } = kept;
    let [before, after] = TEMPLATE;
    let (namespace, secret) = (shell_quoted(namespace), shell_quoted(secret));
    let token = format!("-n {} get secret {}", shell_quoted(account_namespace), shell_quoted(&format!("{account}-token")));
    let filled = token.replacen("get secret ", "wait --for=jsonpath='{.data.token}' --timeout=60s secret/", 1);
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

/// Gives an account the rights that are shipped.
pub fn grant(kubectl: &str, role: &str) -> String {
    format!("meshwright rbac {role} | {kubectl} apply --server-side --force-conflicts -f -")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_stay_one_word() {
        let kubectl = Kubectl { kubeconfig: Some("my config".to_owned()), context: None };
        assert_eq!(kubectl.hub(), "kubectl --kubeconfig 'my config'");
        assert_eq!(kubectl.member("a; b"), "kubectl --kubeconfig 'my config' --context 'a; b'");
        let kept = Kept { namespace: "n", secret: "s'", key: "k", account_namespace: "kube-system", account: "reader", role: "remote" };
        let command = renew_kubeconfig("kubectl", "kubectl --context east", kept);
        assert!(command.contains("create secret generic 's'\\''' --from-file=k=/dev/stdin"), "{command}");
        assert!(command.contains("kubectl --context east -n kube-system get secret reader-token -o go-template='{"), "{command}");
    }
}
