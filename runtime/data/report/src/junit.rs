//! Writes `junit.xml`: a test case for each assertion.

use std::io::{self, Write};

use crate::document::Document;
use crate::text::Escaped;

/// Writes the assertions as JUnit test cases. If a run was stopped early, one more test case has an error, so that
/// the result does not look complete.
///
/// # Errors
/// If the writer fails.
pub fn write(out: &mut dyn Write, report: &Document) -> io::Result<()> {
    let failures = report.assertions.iter().filter(|assertion| !assertion.passed).count();
    let errors = usize::from(report.partial.is_some());
    let tests = report.assertions.len() + errors;
    let totals = format!(r#"tests="{tests}" failures="{failures}" errors="{errors}" skipped="0""#);
    let name = Escaped(&report.scenario);
    writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
    writeln!(out, r#"<testsuites name="vcr" {totals}>"#)?;
    writeln!(out, r#"  <testsuite name="{name}" {totals}>"#)?;
    writeln!(out, "    <properties>")?;
    for (key, value) in &report.parameters {
        writeln!(out, r#"      <property name="{}" value="{}"/>"#, Escaped(key), Escaped(value))?;
    }
    writeln!(out, r#"      <property name="fingerprint" value="{}"/>"#, Escaped(&report.fingerprint))?;
    writeln!(out, "    </properties>")?;
    for assertion in &report.assertions {
        let class = match &assertion.run {
            Some(run) => format!("{}: {run}", report.scenario),
            None => report.scenario.clone(),
        };
        write!(out, r#"    <testcase classname="{}" name="{}""#, Escaped(class), Escaped(assertion.title()))?;
        if assertion.passed {
            writeln!(out, "/>")?;
            continue;
        }
        let observed = assertion.observed_text();
        let message = if observed.is_empty() { "not true".to_owned() } else { format!("observed {observed}") };
        writeln!(out, ">\n      <failure message=\"{}\"/>\n    </testcase>", Escaped(message))?;
    }
    if let Some(partial) = &report.partial {
        let reason = Escaped(partial.reason());
        writeln!(out, r#"    <testcase classname="{name}" name="the scenario runs to its end">"#)?;
        writeln!(out, "      <error message=\"{reason}\"/>\n    </testcase>")?;
    }
    writeln!(out, "  </testsuite>\n</testsuites>")
}
