//! Access to the objects of a rendering.

use serde_json::Value;

use crate::render::Helm;
use crate::rights::documents;

pub(crate) const NAMESPACE: &str = "here";

#[derive(Debug)]
pub(crate) struct Rendering(pub(crate) Vec<Value>);

impl Rendering {
    /// Renders release `meshwright` in its own namespace.
    #[track_caller]
    pub(crate) fn of(values: &Value) -> Self {
        let text = Helm::locate().unwrap().template(NAMESPACE, values);
        Self(documents(
            &text.unwrap_or_else(|wrong| panic!("{values}: {wrong}")),
        ))
    }

    /// `Kind name`, or `Kind namespace/name` if the namespace is not the release's.
    pub(crate) fn names(&self) -> Vec<String> {
        let text =
            |object: &Value, field: &str| object["metadata"][field].as_str().map(str::to_owned);
        let name = |object: &Value| {
            let elsewhere = text(object, "namespace").filter(|namespace| namespace != NAMESPACE);
            let place = elsewhere
                .map(|namespace| format!("{namespace}/"))
                .unwrap_or_default();
            format!(
                "{} {place}{}",
                object["kind"].as_str().unwrap(),
                text(object, "name").unwrap()
            )
        };
        let mut names: Vec<String> = self.0.iter().map(name).collect();
        names.sort();
        names
    }

    pub(crate) fn all<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// The only object of a kind for a component.
    #[track_caller]
    pub(crate) fn one(&self, kind: &str, component: &str) -> &Value {
        let name = format!("meshwright-{component}");
        let is_it =
            |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name.as_str();
        let found: Vec<&Value> = self.0.iter().filter(is_it).collect();
        let [one] = found[..] else {
            panic!("{} of {kind} {name}: {:?}", found.len(), self.names())
        };
        one
    }

    #[track_caller]
    pub(crate) fn pod(&self, component: &str) -> &Value {
        &self.one("Deployment", component)["spec"]["template"]["spec"]
    }

    #[track_caller]
    pub(crate) fn container(&self, component: &str) -> &Value {
        &self.pod(component)["containers"][0]
    }

    #[track_caller]
    pub(crate) fn args(&self, component: &str) -> Vec<String> {
        texts(&self.container(component)["args"])
    }
}

pub(crate) fn texts(list: &Value) -> Vec<String> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_str().unwrap().to_owned())
        .collect()
}
