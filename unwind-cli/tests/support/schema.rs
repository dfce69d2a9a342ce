//! JSON of the command beside its schema in `docs/schema`.

#![allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "as the rest of what tests share"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Value, json};

/// A schema.
pub struct Schema {
    name: String,
    validator: Validator,
}

impl Schema {
    /// That of this name.
    pub fn of(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
        let text = fs::read(folder.join(name).with_extension("json")).unwrap();
        let schema: Value = serde_json::from_slice(&text).unwrap();
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        Self { name: name.to_owned(), validator }
    }

    /// The value has to be as the schema says. None with one field more is, none with one field
    /// less that is not in `optional`, and none with a value of a kind that it does not have.
    pub fn check(&self, value: &Value, optional: &[&str]) {
        let faults: Vec<_> =
            self.validator.iter_errors(value).map(|fault| fault.to_string()).collect();
        assert!(faults.is_empty(), "{}: {faults:#?}\n{value:#}", self.name);
        let mut kinds = BTreeSet::new();
        for place in places(value) {
            // Entries of a list are alike, and few of them show it.
            if kinds.insert(place.replace(|digit: char| digit.is_ascii_digit(), "")) {
                self.check_place(value, &place, optional);
            }
        }
    }

    fn check_place(&self, value: &Value, place: &str, optional: &[&str]) {
        let refuses = |changed: &Value, what: &str| {
            assert!(!self.validator.is_valid(changed), "{}: {place} {what}", self.name);
        };
        let mut changed = value.clone();
        let at = changed.pointer_mut(place).unwrap();
        if let Value::Object(fields) = at {
            let is_map = fields.keys().any(|name| optional.contains(&format!("{name}…").as_str()));
            let names: Vec<_> = fields.keys().cloned().collect();
            if !is_map {
                fields.insert("unplanned".into(), json!("x"));
                refuses(&changed, "with a field more");
            }
            for name in names.iter().filter(|name| !is_map && !optional.contains(&name.as_str())) {
                let mut changed = value.clone();
                let fields = changed.pointer_mut(place).unwrap().as_object_mut().unwrap();
                fields.remove(name);
                refuses(&changed, &format!("without {name}"));
            }
        }
        let mut changed = value.clone();
        *changed.pointer_mut(place).unwrap() = json!({ "unplanned": [1.5] });
        refuses(&changed, "with an object in its place");
    }
}

/// The places of all values, as JSON pointers.
fn places(value: &Value) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut below = |name: &str, value: &Value| {
        let name = name.replace('~', "~0").replace('/', "~1");
        all.extend(places(value).into_iter().map(|place| format!("/{name}{place}")));
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| below(name, value)),
        Value::Array(entries) => {
            // Long lists have all kinds of entries near their begin.
            let entries = entries.iter().take(64).enumerate();
            entries.for_each(|(number, value)| below(&number.to_string(), value));
        }
        _ => {}
    }
    all
}
