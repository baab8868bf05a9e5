//! Counts the size of a component as the compiler sees it, before it is compiled.
//!
//! A file of a few kilobytes can expand enormously: if each component instantiates the next one twice, some nested
//! levels make millions of instances, and the compiler writes out each of them.

use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExternalKind, ComponentInstance, ComponentOuterAliasKind, FunctionBody,
    Operator, Parser, Payload,
};

use crate::error::LoadProblem;

/// Nesting limit of components. Guests have two levels.
const DEPTH_MAX: usize = 16;

/// Limit of instances, imports, exports, aliases, types and canonical functions. Those of a component count once per
/// instantiation. A Python guest has some thousand.
const ITEMS_MAX: u64 = 100_000;

/// Limit of functions in all core modules. A tiny function takes about half a millisecond to compile.
const FUNCTIONS_MAX: u64 = 50_000;

/// Code size limit of one function: the compiler's memory grows faster than the code.
const FUNCTION_BYTES_MAX: u64 = 512 << 10;

/// Limit of a function's blocks and loops times its variables: the values that the compiler may have to merge.
const MERGES_MAX: u64 = 16_000_000;

/// Memory limit for compiling one function, estimated from its instructions.
const FUNCTION_MEMORY_MAX: u64 = 256 << 20;

/// Memory limit for all large functions together: processors compile concurrently, each one function at a time.
const LARGE_MEMORY_MAX: u64 = 2 << 30;

/// A function that needs more memory counts as large. The largest ones of a language runtime take some ten MiB.
const LARGE_FUNCTION: u64 = 16 << 20;

/// Measured compiler memory in bytes by kind of instruction. A loop also checks fuel and time.
const LOOP_MEMORY: u64 = 24_000;
const BRANCH_MEMORY: u64 = 5_000;
const CALL_MEMORY: u64 = 3_000;
const CODE_BYTE_MEMORY: u64 = 64;

/// Limit of types, imports, exports, globals and table elements in all core modules.
const MODULE_ITEMS_MAX: u64 = 1_000_000;

/// Checks a component before it is compiled.
pub(crate) fn check(bytes: &[u8]) -> Result<(), LoadProblem> {
    let mut counts = Counts::default();
    for payload in Parser::new(0).parse_all(bytes) {
        let counted = payload.map_err(Excess::from).and_then(|payload| counts.count(payload));
        counted.map_err(LoadProblem::from)?;
    }
    Ok(())
}

/// The reason why counting stops.
enum Excess {
    Damaged(BinaryReaderError),
    Over {
        what: &'static str,
        limit: u64,
    },
    /// The number of instances would depend on arguments of instantiations.
    ComponentsPassed,
}

impl From<BinaryReaderError> for Excess {
    fn from(error: BinaryReaderError) -> Self {
        Self::Damaged(error)
    }
}

impl From<Excess> for LoadProblem {
    fn from(excess: Excess) -> Self {
        match excess {
            Excess::Damaged(error) => Self::Damaged { reason: error.to_string() },
            Excess::Over { what, limit } => Self::TooComplex { what, limit },
            Excess::ComponentsPassed => Self::PassesComponents,
        }
    }
}

/// A module or component that is being read.
#[derive(Default)]
struct Scope {
    /// Items that one instantiation makes.
    items: u64,
    /// Items that one instantiation of each known inner component makes, by its index.
    components: Vec<u64>,
    is_component: bool,
}

#[derive(Default)]
struct Counts {
    scopes: Vec<Scope>,
    functions: u64,
    module_items: u64,
    /// Total memory to compile the large functions.
    large_memory: u64,
}

impl Counts {
    fn count(&mut self, payload: Payload<'_>) -> Result<(), Excess> {
        match payload {
            Payload::Version { encoding, .. } => {
                self.scopes
                    .push(Scope { is_component: encoding == wasmparser::Encoding::Component, ..Scope::default() });
                within(self.scopes.len() as u64, DEPTH_MAX as u64, "levels of components and modules")?;
            }
            Payload::End(_) => self.end(),
            Payload::CodeSectionEntry(body) => {
                let bytes = body.range().len() as u64;
                within(bytes, FUNCTION_BYTES_MAX, "bytes of code in one function")?;
                let shape = Shape::of(&body)?;
                let merges = shape.blocks.saturating_mul(variables(&body)?);
                within(merges, MERGES_MAX, "blocks times variables in one function")?;
                let memory = shape.memory() + bytes * CODE_BYTE_MEMORY;
                within(memory, FUNCTION_MEMORY_MAX, "bytes of memory to compile one function")?;
                if memory >= LARGE_FUNCTION {
                    self.large_memory += memory;
                    within(self.large_memory, LARGE_MEMORY_MAX, "bytes of memory to compile its large functions")?;
                }
            }
            Payload::FunctionSection(section) => {
                self.functions += u64::from(section.count());
                within(self.functions, FUNCTIONS_MAX, "functions")?;
            }
            Payload::ComponentInstanceSection(section) => {
                for instance in section {
                    self.instance(&instance?)?;
                }
            }
            Payload::ComponentAliasSection(section) => {
                for alias in section {
                    self.alias(&alias?)?;
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section {
                    self.passed(import?.ty.kind())?;
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section {
                    self.passed(export?.kind)?;
                }
            }
            Payload::InstanceSection(section) => self.items(u64::from(section.count()))?,
            Payload::CoreTypeSection(section) => self.items(u64::from(section.count()))?,
            Payload::ComponentTypeSection(section) => self.items(u64::from(section.count()))?,
            Payload::ComponentCanonicalSection(section) => self.items(u64::from(section.count()))?,
            Payload::TypeSection(section) => self.module_items(section.count())?,
            Payload::ImportSection(section) => self.module_items(section.count())?,
            Payload::ExportSection(section) => self.module_items(section.count())?,
            Payload::GlobalSection(section) => self.module_items(section.count())?,
            Payload::TableSection(section) => self.module_items(section.count())?,
            Payload::MemorySection(section) => self.module_items(section.count())?,
            Payload::TagSection(section) => self.module_items(section.count())?,
            Payload::ElementSection(section) => self.module_items(section.count())?,
            Payload::DataSection(section) => self.module_items(section.count())?,
            _ => {}
        }
        Ok(())
    }

    /// Ends the innermost scope and adds its component to the outer scope.
    fn end(&mut self) {
        if let Some(Scope { items, is_component: true, .. }) = self.scopes.pop()
            && let Some(outer) = self.scopes.last_mut()
        {
            outer.components.push(items);
        }
    }

    fn instance(&mut self, instance: &ComponentInstance<'_>) -> Result<(), Excess> {
        match instance {
            ComponentInstance::Instantiate { component_index, args } => {
                for argument in args {
                    self.passed(argument.kind)?;
                }
                // The compiler refuses an index out of range.
                let scope = self.scopes.last();
                let items = scope.and_then(|scope| scope.components.get(*component_index as usize).copied());
                self.items(items.unwrap_or(0).saturating_add(1))
            }
            ComponentInstance::FromExports(exports) => {
                exports.iter().try_for_each(|export| self.passed(export.kind))?;
                self.items(1)
            }
        }
    }

    fn alias(&mut self, alias: &ComponentAlias<'_>) -> Result<(), Excess> {
        match alias {
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::Component, count, index } => {
                let place = self.scopes.len().checked_sub(1 + *count as usize);
                let known = place.and_then(|place| self.scopes[place].components.get(*index as usize).copied());
                if let Some(scope) = self.scopes.last_mut() {
                    scope.components.push(known.unwrap_or(0));
                }
                self.items(1)
            }
            ComponentAlias::InstanceExport { kind, .. } => self.passed(*kind),
            _ => self.items(1),
        }
    }

    /// Counts an item that one component passes to another.
    fn passed(&mut self, kind: ComponentExternalKind) -> Result<(), Excess> {
        if kind == ComponentExternalKind::Component {
            return Err(Excess::ComponentsPassed);
        }
        self.items(1)
    }

    fn items(&mut self, count: u64) -> Result<(), Excess> {
        let Some(scope) = self.scopes.last_mut() else { return Ok(()) };
        scope.items = scope.items.saturating_add(count);
        within(scope.items, ITEMS_MAX, "instances, imports, exports, aliases and types")
    }

    fn module_items(&mut self, count: u32) -> Result<(), Excess> {
        self.module_items += u64::from(count);
        within(self.module_items, MODULE_ITEMS_MAX, "types, imports, exports and data of modules")
    }
}

/// Counts of a function's instructions that determine the compiler's memory.
#[derive(Default)]
struct Shape {
    /// Blocks, loops and conditions.
    blocks: u64,
    loops: u64,
    /// Branches to other blocks.
    branches: u64,
    /// Calls, including instructions that call the host.
    calls: u64,
}

impl Shape {
    fn of(body: &FunctionBody<'_>) -> Result<Self, BinaryReaderError> {
        let mut operators = body.get_operators_reader()?;
        let mut shape = Self::default();
        while !operators.eof() {
            match operators.read()? {
                Operator::Loop { .. } => shape.loops += 1,
                Operator::Block { .. } | Operator::If { .. } => shape.blocks += 1,
                // The targets of a `br_table` take little more than their code bytes.
                Operator::Br { .. } | Operator::BrIf { .. } | Operator::BrTable { .. } => shape.branches += 1,
                Operator::Call { .. }
                | Operator::CallIndirect { .. }
                | Operator::CallRef { .. }
                | Operator::ReturnCall { .. }
                | Operator::ReturnCallIndirect { .. }
                | Operator::ReturnCallRef { .. }
                | Operator::MemoryGrow { .. }
                | Operator::MemoryCopy { .. }
                | Operator::MemoryFill { .. }
                | Operator::MemoryInit { .. }
                | Operator::DataDrop { .. }
                | Operator::TableGet { .. }
                | Operator::TableSet { .. }
                | Operator::TableGrow { .. }
                | Operator::TableCopy { .. }
                | Operator::TableFill { .. }
                | Operator::TableInit { .. }
                | Operator::ElemDrop { .. } => shape.calls += 1,
                _ => {}
            }
        }
        shape.blocks += shape.loops;
        Ok(shape)
    }

    fn memory(&self) -> u64 {
        self.loops * LOOP_MEMORY + (self.blocks + self.branches) * BRANCH_MEMORY + self.calls * CALL_MEMORY
    }
}

/// Number of local variables of a function, without its parameters.
fn variables(body: &FunctionBody<'_>) -> Result<u64, BinaryReaderError> {
    let groups = body.get_locals_reader()?.into_iter();
    groups.map(|group| group.map(|(count, _)| u64::from(count))).sum()
}

fn within(count: u64, limit: u64, what: &'static str) -> Result<(), Excess> {
    if count > limit { Err(Excess::Over { what, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn checked(text: &str) -> Result<(), LoadProblem> {
        check(&wat::parse_str(text).expect("the text is WebAssembly"))
    }

    fn over(what: &'static str, limit: u64) -> Result<(), LoadProblem> {
        Err(LoadProblem::TooComplex { what, limit })
    }

    /// Nested components, each of which instantiates the previous one twice.
    fn doubled(levels: usize) -> String {
        let mut text = "(component (component $c0)".to_owned();
        for level in 1..=levels {
            let last = level - 1;
            write!(
                text,
                "(component $c{level} (alias outer 1 $c{last} (component $c)) (instance (instantiate $c)) (instance \
                 (instantiate $c)))"
            )
            .expect("a text takes it");
        }
        write!(text, "(instance (instantiate $c{levels})))").expect("a text takes it");
        text
    }

    #[test]
    fn instances_are_counted_as_often_as_they_are_made() {
        assert_eq!(checked(&doubled(12)), Ok(()));
        // Without saturation the count would overflow to zero.
        for levels in [29, 64, 100] {
            assert_eq!(checked(&doubled(levels)), over("instances, imports, exports, aliases and types", ITEMS_MAX));
        }
    }

    #[test]
    fn components_that_are_passed_are_refused() {
        for text in [
            "(component (import \"c\" (component)))",
            "(component (component $c) (export \"c\" (component $c)))",
            "(component (component $c) (component $d) (instance (instantiate $d (with \"c\" (component $c)))))",
        ] {
            assert_eq!(checked(text), Err(LoadProblem::PassesComponents), "{text}");
        }
    }

    #[test]
    fn levels_functions_and_code_are_limited() {
        let nested = |levels: usize| format!("{}{}", "(component ".repeat(levels), ")".repeat(levels));
        assert_eq!(checked(&nested(16)), Ok(()));
        assert_eq!(checked(&nested(17)), over("levels of components and modules", 16));
        let functions = |count: usize| format!("(component (core module {}))", "(func)".repeat(count));
        assert_eq!(checked(&functions(50_000)), Ok(()));
        assert_eq!(checked(&functions(50_001)), over("functions", FUNCTIONS_MAX));
        let long = |count: usize| format!("(component (core module (func {})))", "nop ".repeat(count));
        assert_eq!(checked(&long(500_000)), Ok(()));
        assert_eq!(checked(&long(512 << 10)), over("bytes of code in one function", FUNCTION_BYTES_MAX));
        let merges = |count: usize| {
            let (variables, loops) = ("i32 ".repeat(1000), "loop end ".repeat(count));
            format!("(component (core module (func (local {variables}) {loops})))")
        };
        assert_eq!(checked(&merges(8_000)), Ok(()));
        assert_eq!(checked(&merges(16_001)), over("blocks times variables in one function", MERGES_MAX));
    }

    /// Without this limit, 170,000 loops (half a megabyte of code) took 3.6 GB.
    #[test]
    fn memory_to_compile_functions_is_limited() {
        let functions = |code: &str, count: usize| {
            let function = format!("(func {code})");
            format!("(component (core module (memory 1) {}))", function.repeat(count))
        };
        let of_one = over("bytes of memory to compile one function", FUNCTION_MEMORY_MAX);
        for (code, most) in [("loop end ", 9_000), ("i32.const 0 if end ", 50_000), ("call 0 ", 85_000)] {
            assert_eq!(checked(&functions(&code.repeat(most), 1)), Ok(()), "{code}");
            assert_eq!(checked(&functions(&code.repeat(most + most / 8), 1)), of_one, "{code}");
        }
        let loops = "loop end ".repeat(5_000);
        assert_eq!(checked(&functions(&loops, 14)), Ok(()));
        let of_all = over("bytes of memory to compile its large functions", LARGE_MEMORY_MAX);
        assert_eq!(checked(&functions(&loops, 15)), of_all);
    }
}
