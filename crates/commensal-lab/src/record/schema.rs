//! The JSON Schema of `run.json`, generated from the Rust types so that schema and types stay consistent.

use super::Run;
use schemars::generate::SchemaSettings;

/// Identifier of this version of the schema. It is only a name: nothing can be fetched from it.
const ID: &str = "urn:commensal:lab:1";

/// Returns the JSON Schema (draft 2020-12) of a run, indented, with a final newline.
pub fn json_schema() -> String {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Run>();
    schema.insert("$id".to_owned(), ID.into());
    schema.insert("title".to_owned(), "A run of the commensal lab".into());
    let mut text = format!("{:#}", schema.as_value());
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use serde_json::{Value, json};

    fn validator() -> jsonschema::Validator {
        let schema: Value = serde_json::from_str(&json_schema()).unwrap();
        jsonschema::draft202012::options().should_validate_formats(true).build(&schema).unwrap()
    }

    #[test]
    fn the_schema_names_its_draft_and_itself() {
        let schema: Value = serde_json::from_str(&json_schema()).unwrap();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        assert_eq!(schema["$id"], ID);
        assert!(json_schema().ends_with("}\n"));
        assert!(jsonschema::meta::is_valid(&schema));
    }

    #[test]
    fn a_run_is_valid_before_and_after_the_analysis() {
        let mut run = fixture::small_run();
        let schema = validator();
        for _ in 0..2 {
            let value = serde_json::to_value(&run).unwrap();
            let errors: Vec<String> = schema.iter_errors(&value).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{errors:?}");
            crate::analysis::conclude(&mut run);
        }
        assert!(!run.results.is_empty() && run.verdict.is_some());
    }

    #[test]
    fn unknown_fields_are_allowed_because_later_versions_add_some() {
        let mut value = serde_json::to_value(fixture::small_run()).unwrap();
        value["later"] = json!(1);
        assert!(validator().is_valid(&value));
        assert!(Run::from_json(value.to_string().as_bytes()).is_ok());
    }

    #[test]
    fn broken_runs_are_not_valid() {
        let schema = validator();
        let good = serde_json::to_value(fixture::small_run()).unwrap();
        let breakages: [(&str, Value); 10] = [
            ("/schema", json!("commensal.lab/9")),
            ("/blocks", json!([])),
            ("/arms", json!([])),
            ("/seed", json!(-1)),
            ("/started", json!("yesterday")),
            ("/design/threshold_pct", json!(0)),
            ("/design/gates/0", json!("p42")),
            ("/arms/0/role", json!("spectator")),
            ("/blocks/0/valid", json!("yes")),
            ("/blocks/0/errors", json!(-1)),
        ];
        for (at, value) in breakages {
            let mut broken = good.clone();
            *broken.pointer_mut(at).unwrap() = value;
            assert!(!schema.is_valid(&broken), "{at} was accepted");
        }
        for field in ["tool", "machine", "design", "arms", "blocks"] {
            let mut broken = good.clone();
            broken.as_object_mut().unwrap().remove(field);
            assert!(!schema.is_valid(&broken), "a run without {field} was accepted");
        }
    }
}
