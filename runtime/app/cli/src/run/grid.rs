//! The results of a grid of executions, and their table.

use std::collections::BTreeSet;

use vcr_scenario::AssertionResult;
use vcr_trace::import::table::{Cells, Column};

use crate::run::measured::{Measured, MeasuredRun};
use crate::run::statistics::Mean;
use crate::sweep::{Axis, value_cells};

pub(crate) struct Grid {
    pub(crate) axes: Vec<Axis>,
    pub(crate) cells: Vec<Cell>,
    /// Whether each combination was executed with several seeds.
    pub(crate) is_repeated: bool,
}

/// A combination of values and its executions.
pub(crate) struct Cell {
    /// Number of the combination in the whole grid.
    pub(crate) point: usize,
    /// A value for each axis.
    pub(crate) values: Vec<String>,
    /// Executions, one for each seed; at least one.
    pub(crate) repetitions: Vec<Measured>,
}

/// A run of the scenario, over all executions of a combination.
pub(crate) struct Row<'a> {
    pub(crate) cell: &'a Cell,
    pub(crate) run: &'a str,
    /// The results of this run, one for each execution that has it.
    runs: Vec<&'a MeasuredRun>,
}

/// Identifies an assertion across executions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AssertionKey {
    pub(crate) run: Option<String>,
    pub(crate) subject: String,
    pub(crate) condition: Option<String>,
}

/// The results of an assertion in all executions.
pub(crate) struct Kept {
    pub(crate) kept: usize,
    pub(crate) of: usize,
    /// Observed values.
    pub(crate) observed: Vec<f64>,
    /// Indices of the executions that broke the assertion.
    pub(crate) broken_in: Vec<usize>,
}

impl AssertionKey {
    fn of(assertion: &AssertionResult) -> Self {
        Self { run: assertion.run.clone(), subject: assertion.subject.clone(), condition: assertion.condition.clone() }
    }

    /// Column title in a table whose rows are runs.
    fn column(&self) -> String {
        let condition = self.condition.as_ref().map(|condition| format!(" {condition}")).unwrap_or_default();
        format!("{}{condition}", self.subject)
    }
}

impl Cell {
    /// Number of executions that keep all assertions.
    pub(crate) fn kept(&self) -> usize {
        self.repetitions.iter().filter(|one| one.passed).count()
    }

    /// The reason why an execution was infeasible, if any was.
    pub(crate) fn infeasible(&self) -> Option<&str> {
        self.repetitions.iter().find_map(|one| one.infeasible.as_deref())
    }

    /// The runs by name, in the order of the first execution that has runs. If none has, the combination is
    /// infeasible, and gets a row without a run.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        let Some(first) = self.repetitions.iter().find(|one| !one.runs.is_empty()) else {
            return vec![Row { cell: self, run: "", runs: Vec::new() }];
        };
        let names = first.runs.iter();
        let run = |name: &'_ str| {
            let named = |one: &'_ Measured| one.runs.iter().position(|run| run.name == name);
            self.repetitions.iter().filter_map(|one| Some(&one.runs[named(one)?])).collect()
        };
        names.map(|first| Row { cell: self, run: &first.name, runs: run(&first.name) }).collect()
    }

    /// The assertions in the order of the script, without duplicates.
    pub(crate) fn assertions(&self) -> Vec<AssertionKey> {
        let mut keys: Vec<AssertionKey> = Vec::new();
        for assertion in self.repetitions.iter().flat_map(|one| &one.assertions) {
            let key = AssertionKey::of(assertion);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    pub(crate) fn kept_of(&self, key: &AssertionKey) -> Kept {
        let mut kept = Kept { kept: 0, of: 0, observed: Vec::new(), broken_in: Vec::new() };
        for (index, one) in self.repetitions.iter().enumerate() {
            let made: Vec<_> = one.assertions.iter().filter(|made| AssertionKey::of(made) == *key).collect();
            if made.is_empty() {
                continue;
            }
            kept.of += 1;
            // JSON has no infinity, which a rate over no time is.
            let finite = |made: &&AssertionResult| made.observed.filter(|value| value.is_finite());
            kept.observed.extend(made.iter().filter_map(finite));
            if made.iter().all(|made| made.passed) {
                kept.kept += 1;
            } else {
                kept.broken_in.push(index);
            }
        }
        kept
    }
}

impl Row<'_> {
    /// Number of executions that keep all assertions, except perhaps those on other runs.
    pub(crate) fn kept(&self) -> usize {
        let repetitions = self.cell.repetitions.iter();
        repetitions.filter(|one| one.infeasible.is_none() && one.failed(self.run).next().is_none()).count()
    }

    /// The assertions that the first execution breaks, without those on other runs.
    pub(crate) fn failed(&self) -> Option<String> {
        let failed = self.cell.repetitions.first()?.failed(self.run);
        let texts: Vec<String> = failed.map(|made| AssertionKey::of(made).column()).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }

    /// The mean of a metric over the executions.
    pub(crate) fn mean(&self, metric: &str) -> Option<Mean> {
        let samples: Vec<f64> = self.runs.iter().filter_map(|run| run.metrics.get(metric).copied()).collect();
        Mean::of(&samples)
    }

    pub(crate) fn metrics(&self) -> BTreeSet<&str> {
        self.runs.iter().flat_map(|run| run.metrics.keys()).map(String::as_str).collect()
    }
}

impl Grid {
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        self.cells.iter().flat_map(Cell::rows).collect()
    }

    /// The table: a row for each run of each combination, with values, assertions, results of searches, and all
    /// metrics. With several seeds, metrics are means with confidence intervals.
    pub(crate) fn columns(&self) -> Vec<Column> {
        let rows = self.rows();
        let mut columns = Vec::new();
        for (index, axis) in self.axes.iter().enumerate() {
            let values: Vec<&String> = rows.iter().map(|row| &row.cell.values[index]).collect();
            columns.push(Column { name: axis.name.clone(), cells: value_cells(&values) });
        }
        let texts = |text: fn(&Row<'_>) -> String| Cells::Texts(rows.iter().map(text).collect());
        let counts = |count: fn(&Row<'_>) -> usize| Cells::Counts(rows.iter().map(|row| count(row) as u64).collect());
        columns.push(Column { name: "run".to_owned(), cells: texts(|row| row.run.to_owned()) });
        let seed = |row: &Row<'_>| row.runs.first().map_or(0, |run| run.seed);
        columns.push(Column { name: "seed".to_owned(), cells: Cells::Counts(rows.iter().map(seed).collect()) });
        if self.is_repeated {
            columns.push(Column { name: "seeds".to_owned(), cells: counts(|row| row.runs.len()) });
        }
        let kept = |row: &Row<'_>| Some(row.kept() as f64 / row.cell.repetitions.len() as f64);
        let cells =
            if self.is_repeated { Cells::Numbers(rows.iter().map(kept).collect()) } else { counts(|row| row.kept()) };
        columns.push(Column { name: "passed".to_owned(), cells });
        if self.cells.iter().any(|cell| cell.infeasible().is_some()) {
            let cells = texts(|row| row.cell.infeasible().unwrap_or_default().to_owned());
            columns.push(Column { name: "infeasible".to_owned(), cells });
        }
        columns.extend(self.assertion_columns(&rows));
        columns.extend(self.found_columns(&rows));
        columns.extend(self.metric_columns(&rows));
        if !self.is_repeated {
            let fingerprint = |row: &Row<'_>| row.runs.first().map(|run| run.fingerprint.clone()).unwrap_or_default();
            columns.push(Column { name: "fingerprint".to_owned(), cells: texts(fingerprint) });
        }
        columns
    }

    /// A column for each assertion: the share of executions that keep it.
    fn assertion_columns(&self, rows: &[Row<'_>]) -> Vec<Column> {
        let mut names: Vec<String> = Vec::new();
        for key in self.cells.iter().flat_map(Cell::assertions) {
            if !names.contains(&key.column()) {
                names.push(key.column());
            }
        }
        let mut columns = Vec::new();
        for name in names {
            let of_row: Vec<Option<Kept>> = rows
                .iter()
                .map(|row| {
                    let is_of = |key: &AssertionKey| key.run.as_deref().is_none_or(|run| run == row.run);
                    let key = row.cell.assertions().into_iter().find(|key| key.column() == name && is_of(key))?;
                    Some(row.cell.kept_of(&key))
                })
                .collect();
            let kept = of_row.iter().map(|kept| kept.as_ref().map(|kept| kept.kept as f64 / kept.of as f64));
            columns.push(Column { name: format!("kept: {name}"), cells: Cells::Numbers(kept.collect()) });
            let means: Vec<_> = of_row.iter().map(|kept| Mean::of(&kept.as_ref()?.observed)).collect();
            if means.iter().any(Option::is_some) {
                columns.extend(self.mean_columns(&format!("observed: {name}"), &means));
            }
        }
        columns
    }

    fn found_columns(&self, rows: &[Row<'_>]) -> Vec<Column> {
        let all = self.cells.iter().flat_map(|cell| &cell.repetitions).flat_map(|one| &one.found);
        let names: BTreeSet<&String> = all.map(|(name, _)| name).collect();
        let of_row = |name: &String, row: &Row<'_>| {
            let found = |one: &Measured| one.found.iter().find(|(of, _)| of == name).and_then(|(_, value)| *value);
            Mean::of(&row.cell.repetitions.iter().filter_map(found).collect::<Vec<_>>())
        };
        let columns = names.into_iter().flat_map(|name| {
            let means: Vec<_> = rows.iter().map(|row| of_row(name, row)).collect();
            self.mean_columns(&format!("found: {name}"), &means)
        });
        columns.collect()
    }

    fn metric_columns(&self, rows: &[Row<'_>]) -> Vec<Column> {
        let names: BTreeSet<&str> = rows.iter().flat_map(Row::metrics).collect();
        let columns = names.into_iter().flat_map(|name| {
            let means: Vec<_> = rows.iter().map(|row| row.mean(name)).collect();
            self.mean_columns(name, &means)
        });
        columns.collect()
    }

    fn mean_columns(&self, name: &str, means: &[Option<Mean>]) -> Vec<Column> {
        let numbers = |of: &dyn Fn(&Mean) -> Option<f64>| {
            Cells::Numbers(means.iter().map(|mean| mean.as_ref().and_then(of)).collect())
        };
        let mut columns = vec![Column { name: name.to_owned(), cells: numbers(&|mean| Some(mean.mean)) }];
        if self.is_repeated {
            let end = |index: usize| numbers(&|mean| mean.interval.map(|ends| ends[index]));
            columns.push(Column { name: format!("{name}_low"), cells: end(0) });
            columns.push(Column { name: format!("{name}_high"), cells: end(1) });
        }
        columns
    }
}
