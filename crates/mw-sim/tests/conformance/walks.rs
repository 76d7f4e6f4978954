//! Random sequences of writes, for cases that nobody thought of. The same seed generates
//! the same steps on both sides, and all answers and watch events must be equal.

use http::Method;
use serde_json::{Value, json};

use crate::creating::widget;
use crate::subject::{Seen, Subject, version};

crate::behaviours![
    a_drawn_walk_ends_the_same_1,
    a_drawn_walk_ends_the_same_2,
    a_drawn_walk_ends_the_same_3,
    a_drawn_walk_ends_the_same_4
];

const STEPS: usize = 300;
const NAMES: [&str; 3] = ["a", "b", "c"];

async fn a_drawn_walk_ends_the_same_1(on: Subject) -> Value {
    Walk::new(on, 1).go().await
}

async fn a_drawn_walk_ends_the_same_2(on: Subject) -> Value {
    Walk::new(on, 2).go().await
}

async fn a_drawn_walk_ends_the_same_3(on: Subject) -> Value {
    Walk::new(on, 3).go().await
}

async fn a_drawn_walk_ends_the_same_4(on: Subject) -> Value {
    Walk::new(on, 4).go().await
}

/// Limits a patch of the status to the status. Other fields have no effect, but their
/// manager is recorded in `managedFields`, which changes the version of the object.
fn only_status(patch: &mut Value) {
    patch.as_object_mut().unwrap().remove("spec");
    patch["metadata"]
        .as_object_mut()
        .unwrap()
        .retain(|field, _| field == "resourceVersion" || field == "uid");
}

struct Walk {
    on: Subject,
    seed: u64,
    /// Earlier answers, to be sent again later.
    known: Vec<Value>,
}

impl Walk {
    fn new(on: Subject, seed: u64) -> Walk {
        Walk {
            on,
            seed,
            known: Vec::new(),
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.draw(from.len() as u64) as usize]
    }

    async fn go(mut self) -> Value {
        let from = self.on.get(&self.on.widgets()).await.version();
        let mut watch = self
            .on
            .watch(&format!(
                "{}?watch=true&resourceVersion={from}",
                self.on.widgets()
            ))
            .await;
        let mut notes = Vec::new();
        for step in 0..STEPS {
            let (what, seen) = self.step().await;
            notes.push(json!([step, what, seen.told()]));
            if seen.code < 300 && seen.body["kind"] == "Widget" {
                self.known.push(seen.body);
            }
        }
        let mut events = Vec::new();
        while let event @ Value::Object(_) = watch.next().await {
            events.push(event);
        }
        json!({ "steps": notes, "events": events, "end": self.on.get(&self.on.widgets()).await.told() })
    }

    async fn step(&mut self) -> (String, Seen) {
        let name = self.pick(&NAMES);
        let path = format!("{}/{name}", self.on.widgets());
        let part = if self.draw(4) == 0 { "/status" } else { "" };
        match self.draw(8) {
            0 | 1 => {
                let mut object = widget(name);
                object["spec"] = self.spec();
                object["metadata"]["finalizers"] = self.finalizers();
                (
                    format!("create {object}"),
                    self.on.post(&self.on.widgets(), object).await,
                )
            }
            2 => self.delete(&path).await,
            3 => self.put(&path, part).await,
            _ => {
                let mut patch = self.patch(name);
                if !part.is_empty() {
                    only_status(&mut patch);
                }
                (
                    format!("patch {name}{part} {}", crate::subject::clean(&patch)),
                    self.on.merge(&format!("{path}{part}"), patch).await,
                )
            }
        }
    }

    async fn delete(&mut self, path: &str) -> (String, Seen) {
        let known = self.recall();
        let options = match self.draw(3) {
            0 => json!({ "preconditions": { "uid": known["metadata"]["uid"] } }),
            1 => {
                json!({ "preconditions": { "resourceVersion": known["metadata"]["resourceVersion"] } })
            }
            _ => json!({}),
        };
        (
            format!("delete {path} {}", crate::subject::clean(&options)),
            self.on.delete_with(path, options).await,
        )
    }

    /// Sends an earlier answer, changed or not, to any path.
    async fn put(&mut self, path: &str, part: &str) -> (String, Seen) {
        let mut object = self.recall();
        if !object.is_object() {
            object = widget("a");
        }
        if self.draw(2) == 0 {
            let (field, value) = if part.is_empty() {
                ("spec", self.spec())
            } else {
                ("status", json!({ "phase": "Put" }))
            };
            object[field] = value;
        }
        if self.draw(3) == 0 {
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("resourceVersion");
        }
        let seen = self
            .on
            .send(
                Method::PUT,
                &format!("{path}{part}"),
                crate::subject::JSON,
                Some(object),
            )
            .await;
        // The message contains an etcd key.
        let is_told = !seen.body["message"]
            .as_str()
            .unwrap_or_default()
            .contains("Precondition failed");
        (
            format!("put {path}{part}"),
            if is_told {
                seen
            } else {
                Seen {
                    body: json!({ "reason": seen.body["reason"] }),
                    ..seen
                }
            },
        )
    }

    /// Returns one of the latest answers, so that some are current and some outdated.
    fn recall(&mut self) -> Value {
        let back = self.draw(5) as usize;
        self.known
            .iter()
            .rev()
            .nth(back)
            .cloned()
            .unwrap_or_default()
    }

    fn patch(&mut self, name: &str) -> Value {
        let mut patch = json!({});
        if self.draw(3) > 0 {
            patch["spec"] = self.spec();
        }
        if self.draw(3) == 0 {
            patch["status"] = match self.draw(3) {
                0 => Value::Null,
                1 => json!({ "phase": self.pick(&["On", "Off"]) }),
                _ => json!({ "seen": self.draw(2) }),
            };
        }
        let mut metadata = json!({});
        if self.draw(3) == 0 {
            metadata["finalizers"] = self.finalizers();
        }
        if self.draw(3) == 0 {
            metadata["labels"] = json!({ "x": self.pick(&["1", "2"]) });
        }
        if self.draw(4) == 0 {
            metadata["annotations"] = Value::Null;
        }
        if self.draw(4) == 0 {
            let of_name: Vec<&Value> = self
                .known
                .iter()
                .rev()
                .filter(|known| known["metadata"]["name"] == name)
                .take(2)
                .collect();
            if let Some(known) = of_name.last() {
                metadata["resourceVersion"] = version(known).to_string().into();
                metadata["uid"] = known["metadata"]["uid"].clone();
            }
        }
        patch["metadata"] = metadata;
        patch
    }

    fn spec(&mut self) -> Value {
        let mut spec = json!({ "size": self.draw(12) });
        if self.draw(3) == 0 {
            spec["color"] = self.pick(&["red", "blue", "green"]).into();
        }
        if self.draw(4) == 0 {
            spec["tags"] = json!([self.pick(&["x", "y"]), self.pick(&["y", "z"])]);
        }
        if self.draw(5) == 0 {
            spec["mode"] = Value::Null;
        }
        if self.draw(5) == 0 {
            spec["either"] = json!({ self.pick(&["a", "b", "c"]): "1" });
        }
        spec
    }

    fn finalizers(&mut self) -> Value {
        match self.draw(4) {
            0 => json!(["a.test/one"]),
            1 => json!(["a.test/one", "a.test/two"]),
            _ => json!([]),
        }
    }
}
