//! The subset of CEL that our definitions use: combinations of `has`. Everything else
//! is unsupported.
//!
//! `CHOICE := OR ["?" CHOICE ":" CHOICE]`, `OR := AND {"||" AND}`,
//! `AND := NOT {"&&" NOT}`, `NOT := "!" NOT | "(" CHOICE ")" | "true" | "false" | "has(self.FIELD)"`

use serde_json::Value;

use crate::crd::Unsupported;
use crate::json::at;

#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) message: String,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    Is(bool),
    Has(String),
    Not(Box<Test>),
    And(Box<Test>, Box<Test>),
    Or(Box<Test>, Box<Test>),
    Choice(Box<[Test; 3]>),
}

impl Rule {
    pub(super) fn parse(rule: &Value, path: &str) -> Result<Rule, Unsupported> {
        let unsupported = || Unsupported::new(format!("the rule {rule} in the schema at {path:?}"));
        let known = |name: &String| name == "rule" || name == "message";
        if !rule.as_object().is_some_and(|rule| rule.keys().all(known)) {
            return Err(unsupported());
        }
        let text = at(rule, &["rule"]).as_str().ok_or_else(unsupported)?;
        let mut parser = Parser { rest: text };
        let test = parser
            .choice()
            .filter(|_| parser.rest.trim_start().is_empty())
            .ok_or_else(unsupported)?;
        let message = at(rule, &["message"])
            .as_str()
            .map_or_else(|| format!("failed rule: {text}"), str::to_owned);
        Ok(Rule { message, test })
    }

    pub(super) fn holds(&self, value: &Value) -> bool {
        self.test.holds(value)
    }
}

impl Test {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Test::Is(truth) => *truth,
            Test::Has(field) => value.get(field).is_some(),
            Test::Not(test) => !test.holds(value),
            Test::And(one, two) => one.holds(value) && two.holds(value),
            Test::Or(one, two) => one.holds(value) || two.holds(value),
            Test::Choice(parts) => {
                let [condition, then, otherwise] = &**parts;
                if condition.holds(value) {
                    then.holds(value)
                } else {
                    otherwise.holds(value)
                }
            }
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn take(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn choice(&mut self) -> Option<Test> {
        let condition = self.or()?;
        if !self.take("?") {
            return Some(condition);
        }
        let then = self.choice()?;
        if !self.take(":") {
            return None;
        }
        let otherwise = self.choice()?;
        Some(Test::Choice(Box::new([condition, then, otherwise])))
    }

    fn or(&mut self) -> Option<Test> {
        let mut test = self.and()?;
        while self.take("||") {
            test = Test::Or(Box::new(test), Box::new(self.and()?));
        }
        Some(test)
    }

    fn and(&mut self) -> Option<Test> {
        let mut test = self.not()?;
        while self.take("&&") {
            test = Test::And(Box::new(test), Box::new(self.not()?));
        }
        Some(test)
    }

    fn not(&mut self) -> Option<Test> {
        if self.take("!") {
            return Some(Test::Not(Box::new(self.not()?)));
        }
        if self.take("(") {
            let test = self.choice()?;
            return self.take(")").then_some(test);
        }
        if self.take("has") {
            return self.has();
        }
        match self.word() {
            "true" => Some(Test::Is(true)),
            "false" => Some(Test::Is(false)),
            _ => None,
        }
    }

    fn has(&mut self) -> Option<Test> {
        let opened = self.take("(") && self.take("self") && self.take(".");
        let field = self.word().to_owned();
        (opened && !field.is_empty() && self.take(")")).then_some(Test::Has(field))
    }

    fn word(&mut self) -> &str {
        let rest = self.rest.trim_start();
        let end = rest
            .find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
            .unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest;
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn holds(rule: &str, value: &Value) -> bool {
        Rule::parse(&json!({ "rule": rule }), "")
            .unwrap()
            .holds(value)
    }

    #[test]
    fn rules_are_combined_as_the_language_says() {
        let value = json!({ "a": 1, "c": null });
        assert!(holds("has(self.a)", &value));
        assert!(holds("!has(self.b) && has(self.a)", &value));
        assert!(holds("has(self.b) || has(self.a) && !has(self.b)", &value));
        assert!(!holds(
            "(has(self.b) || has(self.a)) && has(self.b)",
            &value
        ));
        assert!(!holds("has(self.a) ? has(self.b) : true", &value));
        assert!(holds(
            "has(self.b) ? false : has(self.a) ? true : false",
            &value
        ));
    }

    #[test]
    fn the_rest_of_the_language_is_refused() {
        for rule in [
            "self.a",
            "self.a == 1",
            "has(self.a.b)",
            "has(self.a",
            "has(self.a) &&",
            "size(self) > 1",
            "oldSelf == self",
            "trueish",
        ] {
            assert!(Rule::parse(&json!({ "rule": rule }), "").is_err(), "{rule}");
        }
        assert!(
            Rule::parse(
                &json!({ "rule": "true", "reason": "FieldValueForbidden" }),
                ""
            )
            .is_err()
        );
    }
}
