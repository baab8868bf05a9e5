//! The address space that an instance reserves.
//!
//! Without a limit of address space, each linear memory reserves all 4 GiB that its addresses can reach, and a guard
//! region. Then accesses need no checks, and memory never moves. Under a limit (`ulimit -v`) a few such reservations
//! would exhaust it. There a memory reserves little more than its size and moves when it outgrows that; instructions
//! check the accesses.

use std::fs;

use wasmtime::Config;

/// The kernel's file with the limits of this process.
const LIMITS_FILE: &str = "/proc/self/limits";

const LIMIT_NAME: &str = "Max address space";

/// Bytes that a memory reserves beyond its size under a limit. Few guests outgrow them.
const HEADROOM_BYTES: u64 = 4 << 20;

/// Size of the guard regions at both ends of a memory under a limit.
const GUARD_BYTES: u64 = 64 << 10;

/// Whether the address space of this process is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressSpace {
    /// No limit: accesses are unchecked, and guard regions catch errors.
    Free,
    /// Limited: memories reserve little.
    Limited,
}

impl AddressSpace {
    /// Reads the limit of this process; without the kernel's file there is no limit.
    pub(crate) fn of_process() -> Self {
        fs::read_to_string(LIMITS_FILE).map_or(Self::Free, |text| Self::from_table(&text))
    }

    /// Parses the kernel's table of limits: name, soft limit, hard limit, unit.
    fn from_table(table: &str) -> Self {
        let row = table.lines().find_map(|line| line.strip_prefix(LIMIT_NAME));
        let soft = row.and_then(|row| row.split_whitespace().next());
        match soft {
            Some(soft) if soft != "unlimited" => Self::Limited,
            _ => Self::Free,
        }
    }

    pub(crate) fn apply(self, config: &mut Config) {
        if self == Self::Limited {
            config
                .memory_reservation(HEADROOM_BYTES)
                .memory_reservation_for_growth(HEADROOM_BYTES)
                .memory_guard_size(GUARD_BYTES)
                .memory_may_move(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use wasmtime::{Engine, Instance, Module, Store};

    use super::*;
    use crate::sandbox;

    #[test]
    fn the_table_of_limits_is_read() {
        let table = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max resident set          unlimited            unlimited            bytes\n\
                 Max address space         {soft}           unlimited            bytes\n"
            )
        };
        assert_eq!(AddressSpace::from_table(&table("unlimited")), AddressSpace::Free);
        assert_eq!(AddressSpace::from_table(&table("2097152000")), AddressSpace::Limited);
        assert_eq!(AddressSpace::from_table("nonsense"), AddressSpace::Free);
    }

    /// Runs a guest that accesses its memory in bounds, grows it beyond the reservation, and accesses it out of
    /// bounds. Returns the answers, the fuel used and the error.
    fn tried(address_space: AddressSpace) -> (Vec<i32>, u64, String) {
        let engine = Engine::new(&sandbox::config(address_space)).expect("the settings can be used");
        let text = r#"(module (memory (export "memory") 1)
            (func (export "fill") (param i32) (result i32)
                (i32.store (i32.const 65000) (local.get 0))
                (drop (memory.grow (i32.const 200)))
                (i32.store (i32.const 13000000) (i32.const 5))
                (i32.add (i32.load (i32.const 65000)) (i32.load (i32.const 13000000))))
            (func (export "out") (param i32) (result i32) (i32.load offset=65536 (local.get 0))))"#;
        let module = Module::new(&engine, wat::parse_str(text).expect("the text is WebAssembly")).expect("it compiles");
        let mut store = Store::new(&engine, ());
        store.set_fuel(1_000_000).expect("fuel is on");
        store.set_epoch_deadline(u64::MAX / 2);
        let instance = Instance::new(&mut store, &module, &[]).expect("it can be made");
        let fill = instance.get_typed_func::<i32, i32>(&mut store, "fill").expect("it is there");
        let answers = [7, 8].map(|value| fill.call(&mut store, value).expect("it is in bounds"));
        let out = instance.get_typed_func::<i32, i32>(&mut store, "out").expect("it is there");
        let trap = out.call(&mut store, i32::MAX).expect_err("it is out of bounds");
        let trap = trap.downcast_ref::<wasmtime::Trap>().map(ToString::to_string).unwrap_or_default();
        (answers.to_vec(), store.get_fuel().expect("fuel is on"), trap)
    }

    #[test]
    fn a_guest_answers_and_uses_the_same_however_much_is_reserved() {
        let free = tried(AddressSpace::Free);
        assert_eq!(free.0, [12, 13]);
        assert!(free.2.contains("out of bounds"), "{}", free.2);
        assert_eq!(tried(AddressSpace::Limited), free);
    }

    #[test]
    fn machine_code_of_one_kind_is_never_taken_for_the_other() {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};

        let name = |address_space| {
            let engine = Engine::new(&sandbox::config(address_space)).expect("the settings can be used");
            let mut hash = DefaultHasher::new();
            engine.precompile_compatibility_hash().hash(&mut hash);
            hash.finish()
        };
        assert_ne!(name(AddressSpace::Free), name(AddressSpace::Limited));
        assert_eq!(name(AddressSpace::Limited), name(AddressSpace::Limited));
    }
}
