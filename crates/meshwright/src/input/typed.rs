//! Deserializes a tree into a Rust type. Errors carry the place of the value, never the value
//! itself, which may be a secret.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{
    Deserialize, Deserializer, Error, Expected, IntoDeserializer, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::input::tree::{Entry, Span, Tree, Value};

#[derive(Debug)]
pub(crate) struct Mistyped {
    pub(crate) message: String,
    pub(crate) span: Option<Span>,
}

impl Mistyped {
    /// Keeps the innermost place.
    fn at(self, span: Span) -> Mistyped {
        Mistyped {
            span: self.span.or(Some(span)),
            ..self
        }
    }
}

impl fmt::Display for Mistyped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Mistyped {}

impl Error for Mistyped {
    fn custom<T: fmt::Display>(message: T) -> Mistyped {
        Mistyped {
            message: message.to_string(),
            span: None,
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Mistyped {
        let found = match found {
            Unexpected::Bool(_) => "a boolean",
            Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a number",
            Unexpected::Float(_) => "a fractional number",
            Unexpected::Str(_) | Unexpected::Char(_) => "a string",
            Unexpected::Unit | Unexpected::Option => "nothing",
            Unexpected::Seq => "a list",
            Unexpected::Map => "a mapping",
            _ => "something else",
        };
        Mistyped::custom(format_args!("expected {expected}, found {found}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Mistyped {
        Mistyped::custom(format_args!("invalid value: expected {expected}"))
    }

    fn missing_field(field: &'static str) -> Mistyped {
        Mistyped::custom(format_args!("missing field {field}"))
    }
}

pub(crate) fn read<'a, T: Deserialize<'a>>(tree: &'a Tree) -> Result<T, Mistyped> {
    T::deserialize(tree)
}

impl<'de> IntoDeserializer<'de, Mistyped> for &'de Tree {
    type Deserializer = &'de Tree;

    fn into_deserializer(self) -> &'de Tree {
        self
    }
}

impl<'de> Deserializer<'de> for &'de Tree {
    type Error = Mistyped;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistyped> {
        let pair = |entry: &'de Entry| -> (StrDeserializer<'de, Mistyped>, &'de Tree) {
            (entry.key.as_str().into_deserializer(), &entry.value)
        };
        let read = match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Int(number) => visitor.visit_i64(*number),
            Value::Large(number) => visitor.visit_u64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Value::Map(entries) => {
                visitor.visit_map(MapDeserializer::new(entries.iter().map(pair)))
            }
        };
        read.map_err(|wrong| wrong.at(self.highlight()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistyped> {
        match &self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mistyped> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistyped> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map struct enum identifier
    }
}
