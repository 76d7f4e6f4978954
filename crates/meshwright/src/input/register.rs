//! Records the objects of a cluster's files with their places, and counts ignored ones.

use std::collections::BTreeMap;
use std::rc::Rc;

use mw_core::text::{printable, quoted};
use serde::Deserialize;

use crate::input::finding::{self, Finding};
use crate::input::object::{Object, twice};
use crate::input::source::SourceFile;
use crate::input::tree::Span;
use crate::input::typed;

#[derive(Debug, Default)]
pub(crate) struct Register {
    /// Number of ignored objects, by kind.
    pub(crate) ignored: BTreeMap<String, usize>,
    /// Place of each object, to report duplicates.
    places: BTreeMap<(&'static str, String), (Rc<SourceFile>, Span)>,
}

impl Register {
    pub(crate) fn read<'a, T: Deserialize<'a>>(
        &mut self,
        file: &Rc<SourceFile>,
        object: &'a Object,
        kind: &'static str,
    ) -> Result<T, Finding> {
        let name = object.full_name(file)?;
        let read = typed::read(&object.tree).map_err(|wrong| {
            let message = format!(
                "cannot read {kind} {}: {}",
                quoted(&name),
                printable(&wrong.message, 200)
            );
            Finding::error(message).at(file, wrong.span.unwrap_or_else(|| object.tree.highlight()))
        })?;
        self.note(file, object, kind)?;
        Ok(read)
    }

    /// Records an object. A duplicate is an error, since it is ambiguous which one counts.
    pub(crate) fn note(
        &mut self,
        file: &Rc<SourceFile>,
        object: &Object,
        kind: &'static str,
    ) -> Result<(), Finding> {
        let name = object.full_name(file)?;
        if let Some((earlier, span)) = self.places.get(&(kind, name.clone())) {
            return Err(twice(
                file,
                object,
                &format!("{kind} {}", quoted(&name)),
                &finding::place(earlier, *span),
            ));
        }
        self.places.insert(
            (kind, name),
            (Rc::clone(file), object.tree.locate("metadata.name")),
        );
        Ok(())
    }

    pub(crate) fn ignore(&mut self, object: &Object) {
        *self.ignored.entry(object.resource()).or_default() += 1;
    }
}
