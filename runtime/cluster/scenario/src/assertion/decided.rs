//! Conditions on gates: `"decision == promote"`.

use vcr_gate::Decision;

use crate::assertion::malformed::Malformed;

/// The first word of a condition.
const SUBJECT: &str = "decision";
const DECISIONS: [Decision; 3] = [Decision::Promote, Decision::Hold, Decision::Rollback];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecisionCondition {
    decision: Decision,
    is_equal: bool,
}

impl DecisionCondition {
    /// Whether a text is a condition on a gate, well-formed or not.
    pub(crate) fn is_one(text: &str) -> bool {
        text.trim_start().starts_with(SUBJECT)
    }

    /// Reads `decision == NAME` or `decision != NAME`.
    pub(crate) fn parse(text: &str) -> Result<Self, Malformed> {
        let malformed = || {
            let known = DECISIONS.map(Decision::name).join(", ");
            Malformed {
                message: format!("invalid condition `{text}` on a gate: expected `decision == NAME` or `!=`"),
                hint: Some(format!("decisions are {known}")),
            }
        };
        let rest = text.trim().strip_prefix(SUBJECT).ok_or_else(malformed)?.trim_start();
        let (is_equal, name) = match (rest.strip_prefix("=="), rest.strip_prefix("!=")) {
            (Some(name), _) => (true, name.trim()),
            (None, Some(name)) => (false, name.trim()),
            (None, None) => return Err(malformed()),
        };
        let decision = DECISIONS.into_iter().find(|decision| decision.name() == name).ok_or_else(malformed)?;
        Ok(Self { decision, is_equal })
    }

    pub(crate) fn holds(self, decision: Decision) -> bool {
        (decision == self.decision) == self.is_equal
    }

    /// The condition without its subject.
    pub(crate) fn limit(self) -> String {
        format!("{} {}", if self.is_equal { "==" } else { "!=" }, self.decision.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_name_a_decision() {
        let promote = DecisionCondition::parse(" decision==promote ").unwrap();
        assert!(promote.holds(Decision::Promote) && !promote.holds(Decision::Hold));
        let other = DecisionCondition::parse("decision != rollback").unwrap();
        assert!(other.holds(Decision::Hold) && !other.holds(Decision::Rollback));
        assert_eq!(other.limit(), "!= rollback");
        for wrong in ["decision", "decision == maybe", "decision > hold", "promote"] {
            assert!(DecisionCondition::parse(wrong).unwrap_err().message.contains(wrong), "{wrong}");
        }
    }
}
