//! Checks of the access to a cluster, for both back ends.

use mw_core::text::listed;
use mw_core::time::Timestamp;

use crate::doctor::rights::Granted;
use crate::doctor::{Check, Layer, SOON_DAYS};
use crate::failure::Failure;

pub(super) struct Access<'a> {
    pub(super) name: &'a str,
    /// Expiry of the credentials, if they have one; or why there are none.
    pub(super) credentials: &'a Result<Option<Timestamp>, String>,
    /// Place where the credentials are kept.
    pub(super) source: String,
    /// Kubernetes version of its API server.
    pub(super) answers: Option<&'a Result<String, Failure>>,
    pub(super) rights: Option<&'a Result<Granted, Failure>>,
    /// Command that reissues the credentials, if there is one.
    pub(super) renew: Option<String>,
    /// Command that grants the rights.
    pub(super) grant: String,
    pub(super) now: Timestamp,
}

impl Access<'_> {
    pub(super) fn checks(self) -> Vec<Check> {
        vec![
            self.credentials(),
            self.reachability(),
            self.rights(),
            self.expiry(),
        ]
    }

    fn credentials(&self) -> Check {
        match self.credentials {
            Ok(_) => Check::fine(Layer::Credentials, self.name, &self.source),
            Err(why) => self.renewed(Check::failed(Layer::Credentials, self.name, why)),
        }
    }

    fn renewed(&self, mut check: Check) -> Check {
        check.repair.clone_from(&self.renew);
        check
    }

    fn reachability(&self) -> Check {
        let layer = Layer::Reachability;
        match self.answers {
            Some(Ok(version)) => {
                Check::fine(layer, self.name, format!("reachable, Kubernetes {version}"))
            }
            Some(Err(
                failure @ (Failure::Unauthorized | Failure::Unreachable(_) | Failure::Timeout(_)),
            )) => self.renewed(Check::failed(layer, self.name, failure.to_string())),
            Some(Err(failure)) => Check::unanswered(layer, self.name, failure),
            None => Check::not_checked(layer, self.name, "no credentials to connect with"),
        }
    }

    fn rights(&self) -> Check {
        let (layer, name) = (Layer::Rights, self.name);
        match self.rights {
            Some(Ok(Granted::All(count))) => {
                Check::fine(layer, name, format!("all {count} permissions granted"))
            }
            Some(Ok(Granted::Without(missing))) => Check::failed(
                layer,
                name,
                format!("not allowed to {}", listed(missing, 5)),
            )
            .repaired_by(self.grant.clone()),
            Some(Ok(Granted::Unknown)) => Check::not_checked(
                layer,
                name,
                "you are not allowed to check the permissions of the account (create subjectaccessreviews)",
            ),
            Some(Err(failure)) => Check::unanswered(layer, name, failure),
            None => Check::not_checked(layer, name, "the API server does not answer"),
        }
    }

    fn expiry(&self) -> Check {
        let (layer, name) = (Layer::Certificates, self.name);
        let Ok(ends) = self.credentials else {
            return Check::not_checked(layer, name, "no credentials to check");
        };
        let Some(ends) = ends else {
            return Check::fine(layer, name, "credentials do not expire");
        };
        let days = (ends.0 - self.now.0).div_euclid(86_400);
        let observed = match days {
            ..0 => "credentials have expired".to_owned(),
            0 => "credentials expire within a day".to_owned(),
            _ => format!("credentials expire in {days} days"),
        };
        if days < SOON_DAYS {
            self.renewed(Check::failed(layer, name, observed))
        } else {
            Check::fine(layer, name, observed)
        }
    }
}
