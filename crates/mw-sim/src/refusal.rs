//! Rejections of a request, as `metav1.Status` with the codes, reasons and messages of
//! a real server.

use serde_json::{Map, Value, json};

use crate::kind::Kind;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub code: u16,
    reason: &'static str,
    message: String,
    /// Boxed, like `metadata`: most rejections have neither.
    details: Option<Box<Value>>,
    metadata: Option<Box<Value>>,
    pub retry_after: Option<u32>,
    /// True for plain text instead of a Status.
    is_plain: bool,
}

/// A validation error of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub field: String,
    pub reason: &'static str,
    pub message: String,
}

impl FieldError {
    pub(crate) fn invalid(field: &str, value: &Value, why: &str) -> FieldError {
        FieldError {
            field: field.to_owned(),
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value}: {why}"),
        }
    }

    pub(crate) fn required(field: &str, why: &str) -> FieldError {
        let message = if why.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {why}")
        };
        FieldError {
            field: field.to_owned(),
            reason: "FieldValueRequired",
            message,
        }
    }

    pub(crate) fn forbidden(field: &str, why: &str) -> FieldError {
        FieldError {
            field: field.to_owned(),
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {why}"),
        }
    }

    pub(crate) fn too_long(field: &str, most: usize) -> FieldError {
        let message = format!("Too long: may not be more than {most} bytes");
        FieldError {
            field: field.to_owned(),
            reason: "FieldValueTooLong",
            message,
        }
    }

    pub(crate) fn duplicate(field: &str, value: &Value) -> FieldError {
        FieldError {
            field: field.to_owned(),
            reason: "FieldValueDuplicate",
            message: format!("Duplicate value: {value}"),
        }
    }

    pub(crate) fn unsupported(field: &str, value: &Value, supported: &[Value]) -> FieldError {
        let supported: Vec<String> = supported.iter().map(Value::to_string).collect();
        let message = format!(
            "Unsupported value: {value}: supported values: {}",
            supported.join(", ")
        );
        FieldError {
            field: field.to_owned(),
            reason: "FieldValueNotSupported",
            message,
        }
    }
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            code,
            reason,
            message: message.into(),
            details: None,
            metadata: None,
            retry_after: None,
            is_plain: false,
        }
    }

    fn about(mut self, kind: &Kind, name: &str) -> Refusal {
        let mut details = Map::new();
        for (field, text) in [
            ("name", name),
            ("group", &kind.group),
            ("kind", &kind.plural),
        ] {
            if !text.is_empty() {
                details.insert(field.to_owned(), text.into());
            }
        }
        self.details = Some(Box::new(Value::Object(details)));
        self
    }

    /// A feature of a real server that the simulator lacks.
    pub(crate) fn unsupported(what: impl std::fmt::Display) -> Refusal {
        Refusal::new(
            501,
            "NotImplemented",
            format!("the simulator does not support {what}"),
        )
    }

    pub(crate) fn bad_request(why: impl Into<String>) -> Refusal {
        Refusal::new(400, "BadRequest", why)
    }

    pub(crate) fn unauthorized() -> Refusal {
        Refusal::new(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(kind_name: &str, group: &str, name: &str, why: &str) -> Refusal {
        let resource = qualified(kind_name, group);
        let subject = if name.is_empty() {
            resource
        } else {
            format!("{resource} {name:?}")
        };
        let mut refusal = Refusal::new(403, "Forbidden", format!("{subject} is forbidden: {why}"));
        let mut details = Map::new();
        for (field, text) in [("name", name), ("group", group), ("kind", kind_name)] {
            if !text.is_empty() {
                details.insert(field.to_owned(), text.into());
            }
        }
        refusal.details = Some(Box::new(Value::Object(details)));
        refusal
    }

    /// Adds causes to the details.
    pub(crate) fn with_causes(mut self, causes: Value) -> Refusal {
        let details = self.details.get_or_insert_with(|| Box::new(json!({})));
        crate::json::map_mut(details).insert("causes".to_owned(), causes);
        self
    }

    /// An unknown path, reported as plain text instead of a Status.
    pub(crate) fn no_such_page() -> Refusal {
        Refusal {
            is_plain: true,
            ..Refusal::new(404, "", "404 page not found\n")
        }
    }

    /// A subresource that the kind does not have.
    pub(crate) fn no_such_resource() -> Refusal {
        let mut refusal = Refusal::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
        refusal.details = Some(Box::new(json!({})));
        refusal
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Refusal {
        Refusal::new(
            404,
            "NotFound",
            format!("{} {name:?} not found", kind.qualified()),
        )
        .about(kind, name)
    }

    pub(crate) fn method_not_allowed() -> Refusal {
        let mut refusal = Refusal::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        refusal.details = Some(Box::new(json!({})));
        refusal
    }

    pub(crate) fn already_exists(kind: &Kind, name: &str, is_deleted: bool) -> Refusal {
        let deleted = if is_deleted {
            "object is being deleted: "
        } else {
            ""
        };
        Refusal::new(
            409,
            "AlreadyExists",
            format!("{deleted}{} {name:?} already exists", kind.qualified()),
        )
        .about(kind, name)
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> Refusal {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            kind.qualified()
        );
        Refusal::new(409, "Conflict", message).about(kind, name)
    }

    pub(crate) fn modified(kind: &Kind, name: &str) -> Refusal {
        Refusal::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn expired(message: impl Into<String>) -> Refusal {
        Refusal::new(410, "Expired", message)
    }

    /// An expired continue token, with a new one that continues from the newest state.
    pub(crate) fn expired_page(token: String) -> Refusal {
        let mut refusal = Refusal::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without \
             the continue parameter, or use the continue token in this response to retrieve the remainder of the results. \
             Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
             deleted between the time the first chunk was returned and now may show up in the list.",
        );
        refusal.metadata = Some(Box::new(json!({ "continue": token })));
        refusal
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, errors: &[FieldError]) -> Refusal {
        let subject = qualified(&kind.kind, &kind.group);
        Refusal::invalid_named(&subject, &kind.kind, &kind.group, name, errors)
    }

    /// Errors in the options of a request.
    pub(crate) fn invalid_options(options: &str, errors: &[FieldError]) -> Refusal {
        let group = "meta.k8s.io";
        Refusal::invalid_named(&qualified(options, group), options, group, "", errors)
    }

    /// A PUT without resourceVersion. Real servers use the resource name here, not the
    /// kind.
    pub(crate) fn version_needed(kind: &Kind, name: &str) -> Refusal {
        let error = FieldError::invalid(
            "metadata.resourceVersion",
            &json!(0),
            "must be specified for an update",
        );
        Refusal::invalid_named(&kind.qualified(), &kind.plural, &kind.group, name, &[error])
    }

    /// A failed precondition of a delete. Real servers use the kind here.
    pub(crate) fn precondition_failed(kind: &Kind, name: &str, why: &str) -> Refusal {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            qualified(&kind.kind, &kind.group)
        );
        let mut refusal = Refusal::new(409, "Conflict", message).about(kind, name);
        if let Some(details) = &mut refusal.details {
            crate::json::map_mut(details).insert("kind".to_owned(), kind.kind.clone().into());
        }
        refusal
    }

    pub(crate) fn invalid_named(
        subject: &str,
        kind: &str,
        group: &str,
        name: &str,
        errors: &[FieldError],
    ) -> Refusal {
        let texts: Vec<String> = errors
            .iter()
            .map(|error| format!("{}: {}", error.field, error.message))
            .collect();
        let all = if let [one] = texts.as_slice() {
            one.clone()
        } else {
            format!("[{}]", texts.join(", "))
        };
        let causes: Vec<Value> =
            errors.iter().map(|error| json!({ "reason": error.reason, "message": error.message, "field": error.field })).collect();
        let mut details = Map::new();
        for (field, text) in [("name", name), ("group", group), ("kind", kind)] {
            if !text.is_empty() {
                details.insert(field.to_owned(), text.into());
            }
        }
        details.insert("causes".to_owned(), Value::Array(causes));
        let mut refusal = Refusal::new(
            422,
            "Invalid",
            format!("{subject} {name:?} is invalid: {all}"),
        );
        refusal.details = Some(Box::new(Value::Object(details)));
        refusal
    }

    /// A resourceVersion from the future.
    pub(crate) fn from_the_future(asked: u64, newest: u64) -> Refusal {
        let mut refusal = Refusal::new(
            504,
            "Timeout",
            format!("Timeout: Too large resource version: {asked}, current: {newest}"),
        );
        refusal.details = Some(Box::new(json!({
            "retryAfterSeconds": 1, "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }],
        })));
        refusal.retry_after = Some(1);
        refusal
    }

    /// A rejection injected by a fault, with a reason that fits the code.
    pub(crate) fn injected(code: u16, retry_after: Option<u32>) -> Refusal {
        let (reason, message) = match code {
            401 => return Refusal::unauthorized(),
            403 => ("Forbidden", "forbidden"),
            404 => (
                "NotFound",
                "the server could not find the requested resource",
            ),
            409 => (
                "Conflict",
                "the object has been modified; please apply your changes to the latest version and try again",
            ),
            410 => ("Expired", "the resourceVersion is too old"),
            429 => (
                "TooManyRequests",
                "too many requests, please try again later",
            ),
            500 => (
                "InternalError",
                "an error on the server has prevented the request from succeeding",
            ),
            503 => (
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            ),
            504 => (
                "Timeout",
                "the server was unable to return a response in the time allotted",
            ),
            _ => ("", "the server refused the request"),
        };
        let mut refusal = Refusal::new(code, reason, message);
        if let Some(seconds) = retry_after {
            refusal.details = Some(Box::new(json!({ "retryAfterSeconds": seconds })));
        }
        refusal.retry_after = retry_after;
        refusal
    }

    pub(crate) fn bytes(&self) -> bytes::Bytes {
        if self.is_plain {
            self.message.clone().into()
        } else {
            crate::object::written(&self.status())
        }
    }

    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": self.metadata.as_deref().cloned().unwrap_or_else(|| json!({})),
            "status": "Failure", "message": self.message, "code": self.code,
        });
        let fields = crate::json::map_mut(&mut status);
        if !self.reason.is_empty() {
            fields.insert("reason".to_owned(), self.reason.into());
        }
        if let Some(details) = &self.details {
            fields.insert("details".to_owned(), (**details).clone());
        }
        status
    }
}

/// Returns e.g. `peers.kilo.squat.ai` or `nodes`.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}
